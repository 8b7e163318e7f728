"""The laws of what makes the global theta a client's own."""

from __future__ import annotations

from dataclasses import replace

from cotune.core.contracts import Personalize
from cotune.core.state import Private, Theta
from cotune.core.view import View
from cotune.laws.toy import OBJECTIVE, layout_of, numbers, same, view


def _after(part: Personalize, rounds: int) -> View:
    """A client after so many rounds with the part, each from another theta, in which training moved every number."""
    here = view()
    for round_ in range(1, rounds + 1):
        down = Theta(numbers(20 + round_))
        here = part.begin(replace(here, round=round_, theta=down, anchor=down, step=0), OBJECTIVE)
        arrived = {name: tensor + 0.1 * numbers(40 + round_)[name] for name, tensor in here.theta.items()}
        here = part.end(here.moved(arrived))
    return here


def _own(part: Personalize, here: View) -> Private:
    return here.private.get(part.kind, Private())


def starts_from_the_global_model(part: Personalize) -> None:
    """A client that has no numbers of its own has the global theta, bit for bit."""
    theta = Theta(numbers(3))
    same("theta", part.view(theta, Private()).sha256(), theta.sha256())


def keeps_the_layout(part: Personalize) -> None:
    """A theta of a client's own has the names, dtypes and shapes of the global one, in scoring and in training."""
    theta, here = Theta(numbers(3)), _after(part, rounds=3)
    same("layout in scoring", layout_of(part.view(theta, _own(part, here))), layout_of(theta))
    begun = part.begin(replace(here, theta=theta, anchor=theta, step=0), OBJECTIVE)
    same("layout in training", layout_of(begun.theta), layout_of(theta))
    same("anchor", begun.anchor.sha256(), theta.sha256())


def leaves_inputs(part: Personalize) -> None:
    """It leaves its inputs as they are, and the same inputs again give the same bits."""
    theta, here = Theta(numbers(3)), _after(part, rounds=2)
    own = _own(part, here)
    before = theta.sha256(), own.sha256(), here.theta.sha256()
    first, second = (part.view(theta, own).sha256() for _ in range(2))
    ones = [part.end(part.begin(replace(here, theta=theta, anchor=theta, step=0), OBJECTIVE)) for _ in range(2)]
    same("inputs", (theta.sha256(), own.sha256(), here.theta.sha256()), before)
    same("the same model again", second, first)
    same("the same round again", *((one.theta.sha256(), _own(part, one).sha256()) for one in ones))


def makes_a_model_of_its_own(part: Personalize) -> None:
    """After three rounds it makes another theta of the global one: otherwise it is no part of a method."""
    theta = Theta(numbers(3))
    mine = part.view(theta, _own(part, _after(part, rounds=3)))
    assert mine.sha256() != theta.sha256(), "the global theta itself"


LAWS = (
    starts_from_the_global_model,
    keeps_the_layout,
    leaves_inputs,
    makes_a_model_of_its_own,
)
