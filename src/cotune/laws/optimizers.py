"""The laws of optimizers."""

from __future__ import annotations

from dataclasses import replace

import torch

from cotune.core.contracts import Optimizer
from cotune.core.part import Capability
from cotune.core.view import View
from cotune.laws.toy import OBJECTIVE, SPEC, close, layout_of, same, view


def _begun(part: Optimizer, here: View) -> tuple[View, object]:
    here = part.begin(here, OBJECTIVE)
    return here, part.init(here)


def is_pure(part: Optimizer) -> None:
    """A step leaves its inputs as they are, and the same step again gives the same bits."""
    here, state = _begun(part, view())
    before = here.theta.sha256(), {kind: private.sha256() for kind, private in here.private.items()}
    first, second = (part.step(here, state, OBJECTIVE).view.theta.sha256() for _ in range(2))
    after = here.theta.sha256(), {kind: private.sha256() for kind, private in here.private.items()}
    same("inputs", after, before)
    same("the same step again", second, first)


def moves_what_trains(part: Optimizer) -> None:
    """A step moves the names in scope, keeps their shapes and dtypes, and no other name."""
    chosen = ("one.B", "head")
    here, state = _begun(part, view(train=chosen))
    after = part.step(here, state, OBJECTIVE).view
    same("layout", layout_of(after.theta), layout_of(here.theta))
    moved = tuple(name for name in SPEC.names if not torch.equal(after.theta[name], here.theta[name]))
    same("what moved", moved, chosen)
    same("steps counted", after.step, here.step + 1)


def obeys_the_schedule(part: Optimizer) -> None:
    """Where the schedule's factor is 0, a step changes nothing, bit for bit."""
    here, state = _begun(part, replace(view(), rate=0.0))
    same("theta", part.step(here, state, OBJECTIVE).view.theta.sha256(), here.theta.sha256())


def descends(part: Optimizer) -> None:
    """Thirty steps on a quadratic lower its loss."""
    here = replace(view(), aux={name: torch.zeros_like(tensor) for name, tensor in view().theta.items()})
    here, state = _begun(part, here)
    start = float(OBJECTIVE(here.trained).mean())
    for _ in range(30):
        here, state, *_rest = part.step(here, state, OBJECTIVE)
    end = float(OBJECTIVE(here.trained).mean())
    assert end < start, f"loss went from {start:.4g} to {end:.4g}"


def hands_out_its_gradient(part: Optimizer) -> None:
    """If it gives a gradient, that is the gradient of the mean loss."""
    if Capability.GRADIENT not in part.gives:
        return
    here, state = _begun(part, view())
    gradient = part.step(here, state, OBJECTIVE).gradient
    assert gradient is not None, "no gradient"
    for name, tensor in here.trained.items():
        mean = torch.stack([target[name] for target in OBJECTIVE.targets]).mean(0)
        close(f"gradient of {name}", gradient[name], tensor - mean, 1e-5)


def fills_its_outbox(part: Optimizer) -> None:
    """What it sends beside theta has the layout that it announces."""
    here, state = _begun(part, view())
    after = part.end(part.step(here, state, OBJECTIVE).view)
    same("outbox", layout_of(after.outbox), dict(part.outbox(SPEC, here.scope)))


LAWS = (
    is_pure,
    moves_what_trains,
    obeys_the_schedule,
    descends,
    hands_out_its_gradient,
    fills_its_outbox,
)
