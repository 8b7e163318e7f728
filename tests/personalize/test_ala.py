"""FedALA against its algorithm in dense float64, its limit cases, and which numbers it mixes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotune.core.errors import CotuneError
from cotune.core.seeds import Seeds
from cotune.core.spec import Entry, Role, Scope, Spec
from cotune.core.state import Personal, Private, Theta
from cotune.core.view import View
from cotune.laws.toy import numbers
from cotune.personalize import ALA
from cotune.personalize.ala import highest, settled
from cotune.resolve import recipe

Array = NDArray[np.float64]
LOW, HIGH = "m.layers.0.q.A", "m.layers.1.q.A"
SPEC = Spec(
    (Entry(LOW, (3,), Role.FACTOR_A, "m.layers.0.q"), Entry(HIGH, (4,), Role.FACTOR_A, "m.layers.1.q")),
)
SCOPE = Scope(SPEC.names, SPEC.names, SPEC.names)
PART = ALA(eta=0.3, first=15, later=2)

_draw = np.random.Generator(np.random.Philox(8))
_ROOT = _draw.normal(size=(7, 7))
CURVE, CENTRE = _ROOT @ _ROOT.T / 7 + np.eye(7) / 2, _draw.normal(size=7)
DOWN = [_draw.normal(size=7) for _ in range(4)]  # theta as it came down in each round that asked the client
MOVES = [_draw.normal(size=7) / 2 for _ in range(4)]  # what training then did


@dataclass(frozen=True)
class Bowl:
    """½ (θ − centre)ᵀ curve (θ − centre), the same for every row; names not given are as in the view."""

    view: View
    rows: int = 2

    def __call__(self, tensors: Mapping[str, Tensor]) -> Tensor:
        at = torch.cat([tensors.get(name, self.view.theta[name]) for name in SPEC.names]) - torch.tensor(CENTRE)
        return (at @ torch.tensor(CURVE) @ at / 2).expand(self.rows)

    def microbatches(self) -> Iterator[Bowl]:
        return iter([self])


def named(values: Array) -> dict[str, Tensor]:
    return {LOW: torch.tensor(values[:3]), HIGH: torch.tensor(values[3:])}


def view(at: int, private: Mapping[str, Private], rate: float = 1.0) -> View:
    theta = Theta(named(DOWN[at]))
    return View(at + 1, "ada", theta, Personal(), private, theta, {}, Seeds(), SPEC, SCOPE, rate=rate)


def algorithm(part: ALA) -> Iterator[tuple[Array, Array]]:
    """Where training starts, and W, in each round: the lower three numbers are always those that came down."""
    own, weights = np.zeros(4), np.ones(4)
    for at, (theta, move) in enumerate(zip(DOWN, MOVES, strict=True)):
        start = theta.copy()
        if at > 0:
            losses: list[float] = []
            for _ in range(part.first if at == 1 else part.later):
                start[3:] = own + weights * (theta[3:] - own)
                losses.append(float((start - CENTRE) @ CURVE @ (start - CENTRE) / 2))
                slope = (CURVE @ (start - CENTRE))[3:] * (theta[3:] - own)
                weights = np.clip(weights - part.eta * slope, 0, 1)
                if at == 1 and len(losses) > 10 and np.std(losses[-10:]) < 0.1:
                    break
            start[3:] = own + weights * (theta[3:] - own)
        yield start, weights
        own = (start + move)[3:]


def play(part: ALA) -> Iterator[tuple[View, View]]:
    private: Mapping[str, Private] = {}
    for at, move in enumerate(MOVES):
        here = view(at, private)
        begun = part.begin(here, Bowl(here))
        arrived = {name: tensor + named(move)[name] for name, tensor in begun.theta.items()}
        ended = part.end(begun.moved(arrived))
        private = ended.private
        yield begun, ended


def test_weights_and_the_start_of_training_are_those_of_the_algorithm() -> None:
    played = list(play(PART))
    for (begun, ended), (start, weights) in zip(played, algorithm(PART), strict=True):
        got = np.concatenate([begun.theta[name].numpy() for name in SPEC.names])
        np.testing.assert_allclose(got, start, rtol=1e-9, atol=1e-12)
        own = ended.private["ala"]
        np.testing.assert_allclose(own[f"weight/{HIGH}"] if f"weight/{HIGH}" in own else np.ones(4), weights, rtol=1e-9)
        assert torch.equal(own[f"own/{HIGH}"], ended.theta[HIGH])
        assert not [name for name in own if name.endswith(LOW)]
    inside = played[-1][1].private["ala"][f"weight/{HIGH}"]
    assert bool(((inside > 0) & (inside < 1)).any()), "no weight was learned"


def test_what_training_starts_from_is_what_scoring_would_use_at_that_moment() -> None:
    for begun, _ in play(PART):
        own = begun.private.get("ala", Private())
        assert PART.view(begun.anchor, own).sha256() == begun.theta.sha256()


def test_a_client_that_was_never_asked_and_one_that_was_asked_once_have_the_global_model() -> None:
    theta = Theta(named(DOWN[3]))
    assert PART.view(theta, Private()).sha256() == theta.sha256()
    _, once = next(play(PART))
    assert PART.view(theta, once.private["ala"]).sha256() == theta.sha256()


def test_weights_of_one_are_theta_to_the_bit_and_weights_of_zero_are_the_clients_own() -> None:
    theta, own = Theta(numbers(1)), numbers(2)
    ones = {f"weight/{name}": torch.ones_like(tensor) for name, tensor in own.items()}
    kept = {f"own/{name}": tensor * 1e8 for name, tensor in own.items()}
    assert PART.view(theta, Private({**kept, **ones})).sha256() == theta.sha256()
    zeros = {name: torch.zeros_like(tensor) for name, tensor in ones.items()}
    mine = PART.view(theta, Private({**kept, **zeros}))
    assert all(torch.equal(mine[name], kept[f"own/{name}"]) for name in own)


def test_a_rate_of_zero_leaves_the_weights_and_the_model_global() -> None:
    played = list(play(ALA(eta=0.0)))
    for (begun, _), down in zip(played, DOWN, strict=True):
        assert begun.theta.sha256() == Theta(named(down)).sha256()


def test_the_servers_schedule_stands_before_the_rate() -> None:
    _, (_, second), *_ = play(PART)
    here = replace(view(2, second.private), rate=0.0)
    after = PART.begin(here, Bowl(here))
    assert torch.equal(after.private["ala"][f"weight/{HIGH}"], second.private["ala"][f"weight/{HIGH}"])


def test_factors_that_rest_in_a_round_are_not_mixed_and_keep_what_they_have() -> None:
    _, _, (_, third), _ = play(PART)
    resting = replace(view(3, third.private), scope=Scope((LOW,), (LOW,), SPEC.names))
    begun = PART.begin(resting, Bowl(resting))
    assert begun.theta.sha256() == resting.theta.sha256()
    assert PART.end(begun).private["ala"].sha256() == third.private["ala"].sha256()


def test_a_loss_has_settled_when_more_than_ten_are_there_and_the_last_ten_stay_within_a_tenth() -> None:
    assert not settled([1.0] * 10)
    assert settled([5.0, *[1.0] * 10])
    assert not settled([1.0] * 10 + [2.0])
    assert settled([1.0, *[1.0, 1.19] * 5])
    assert not settled([1.0, *[1.0, 1.21] * 5])


@pytest.mark.parametrize(("first", "passes"), [(60, 11), (7, 7)])
def test_weights_are_learned_until_the_loss_settles_when_a_client_first_mixes_and_then_a_few_steps(
    first: int, passes: int
) -> None:
    part, calls = ALA(eta=1e-6, first=first, later=3), list[int]()

    @dataclass(frozen=True)
    class Counted(Bowl):
        def __call__(self, tensors: Mapping[str, Tensor]) -> Tensor:
            calls.append(1)
            return super().__call__(tensors)

    private: Mapping[str, Private] = {}
    counts = []
    for at in range(4):
        here = view(at, private)
        private = part.end(part.begin(here, Counted(here))).private
        counts.append(len(calls))
        calls.clear()
    assert counts == [0, passes, 3, 3]


def entries(*names: str) -> Spec:
    def role(name: str) -> Role:
        return Role.HEAD if name.startswith("head") else Role.FULL

    return Spec(tuple(Entry(name, (1,), role(name), name.rpartition(".")[0] or name) for name in names))


@pytest.mark.parametrize(
    ("names", "layers", "expected"),
    [
        (("m.h.0.q.A", "m.h.0.q.B", "m.h.1.q.A", "m.h.1.v.B", "head.w"), 1, {"m.h.1.q.A", "m.h.1.v.B", "head.w"}),
        (("m.h.9.q.A", "m.h.10.q.A"), 1, {"m.h.10.q.A"}),
        (("m.h.0.q.A", "m.h.1.q.A"), 7, {"m.h.0.q.A", "m.h.1.q.A"}),
        (("m.h.0.q.A", "m.h.1.q.A", "m.h.0.rule", "m.h.1.rule"), 1, {"m.h.1.q.A", "m.h.1.rule"}),
        (("m.embed.w", "m.h.0.q", "m.h.1.q", "m.norm.w"), 1, {"m.h.1.q"}),
        (("one.A", "one.B", "two.A", "head.w"), 1, {"two.A", "head.w"}),
        (("head.w", "head.b"), 1, {"head.w", "head.b"}),
    ],
)
def test_the_highest_layers_are_whole_and_the_head_is_with_them(
    names: tuple[str, ...], layers: int, expected: set[str]
) -> None:
    assert highest(entries(*names), layers) == expected


@pytest.mark.parametrize(
    ("sets", "need"),
    [
        ({"share": "none"}, "anchor"),
        ({"aggregator": {"kind": "product-svd"}}, "elementwise"),
        ({"optimizer": {"kind": "zo", "lr": 0.1}}, "gradient"),
    ],
)
def test_methods_in_which_numbers_cannot_be_mixed_are_refused_in_words(sets: dict[str, object], need: str) -> None:
    with pytest.raises(CotuneError, match=f"personalize needs '{need}'"):
        recipe("fedala", **sets)
