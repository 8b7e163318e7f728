"""Scalars on the wire: the theta they stand for, the sum they are added to, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cotune.core.change import Origin, Tensors
from cotune.core.errors import Code, CotuneError
from cotune.core.seeds import Purpose, Seeds, derive, torch_generator
from cotune.core.spec import Entry, Role, Scope, Spec
from cotune.core.state import Theta
from cotune.noise import ALL, Direction, signs
from cotune.wire import ScalarsUplink
from cotune.wire.scalars import CHUNK

SPEC = Spec(
    (
        Entry("wide", (3, CHUNK // 2 + 7), Role.FULL, "front"),
        Entry("own", (9,), Role.FULL, "front", shared=False),
        Entry("narrow", (4, 5), Role.FULL, "front"),
        Entry("back", (6, 7), Role.FULL, "back", block=1),
    )
)
SCOPE = Scope(SPEC.names, SPEC.shared, SPEC.shared)
HALVES = {"sign/0": torch.tensor([[1e-3, -2e-3], [3e-4, 0.0]]), "sign/1": torch.tensor([[1e-2], [-1e-2]])}
WHOLE = {f"sign/{ALL}": torch.tensor([[1e-3, 0.1, -0.7], [0.5, 1e-7, 2e-3]])}


def origin(scope: Scope = SCOPE) -> Origin:
    theta = {name: torch.randn(SPEC[name].shape, generator=torch_generator(derive(1, name))) for name in SPEC.shared}
    return Origin(Theta(theta), 2**62 + 5, 1.0, SPEC, scope)


def oracle(named: dict[str, Tensor], name: str) -> Tensor:
    """Step by step, direction by direction, a sign for every number of the block."""
    here, entry = origin(), SPEC[name]
    start = 0
    for other in SPEC:
        if other.name == name:
            break
        start += other.numel if other.block == entry.block else 0
    theta = here.anchor[name].clone().view(-1)
    for step in range(2):
        mine = named[f"sign/{ALL}"] if f"sign/{ALL}" in named else named[f"sign/{entry.block}"]
        for direction, c in enumerate(mine[step]):
            z = signs(derive(here.seed, step), entry.block * 2**32 + direction, start, entry.numel)
            theta = theta + c * z
    return theta.view(entry.shape)


@pytest.mark.parametrize("named", [HALVES, WHOLE], ids=["halves", "whole"])
def test_theta_is_replayed_step_by_step_direction_by_direction(named: dict[str, Tensor]) -> None:
    dense = ScalarsUplink().open({"scalars": named}, origin()).dense()
    assert tuple(dense) == SPEC.shared
    for name in SPEC.shared:
        assert torch.equal(dense[name], oracle(named, name))


@pytest.mark.parametrize("kind", list(Direction))
def test_a_sum_takes_it_as_it_takes_theta_itself_bit_for_bit(kind: Direction) -> None:
    named = {name.replace("sign", kind): tensor for name, tensor in HALVES.items()}
    change = ScalarsUplink(exact=False).open({"scalars": named}, origin())
    total = {n: torch.full(SPEC[n].shape, 0.25, dtype=torch.float64) for n in SPEC.shared}
    expected = {n: t.clone() for n, t in total.items()}
    change.add_to(total, 3.0)
    Tensors(change.dense()).add_to(expected, 3.0)
    for name in SPEC.shared:
        assert torch.equal(total[name], expected[name])
    assert dict(change.scalars()) == named


def test_what_did_not_train_comes_back_as_it_went_down() -> None:
    here = origin(Scope(("narrow", "own"), ("wide", "narrow"), SPEC.shared))
    change = ScalarsUplink().open({"scalars": WHOLE}, here)
    total = {n: torch.zeros(SPEC[n].shape, dtype=torch.float64) for n in ("wide", "narrow")}
    change.add_to(total, 1.0)
    assert tuple(change.dense()) == ("wide", "narrow")
    for found in (change.dense(), {n: t.float() for n, t in total.items()}):
        assert torch.equal(found["wide"], here.anchor["wide"])
        assert torch.equal(found["narrow"], oracle(WHOLE, "narrow"))


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, 1e30, -1e30, 1.001])
def test_a_coefficient_that_is_not_finite_or_too_large_is_refused(wrong: float) -> None:
    named = {name: tensor.clone() for name, tensor in HALVES.items()}
    named["sign/1"][1, 0] = wrong
    with pytest.raises(CotuneError) as caught:
        ScalarsUplink().open({"scalars": named}, origin())
    assert caught.value.code is Code.SCALAR


def test_theta_moves_by_no_more_than_the_limit_a_direction() -> None:
    named = {name: torch.full_like(tensor, 0.01) for name, tensor in WHOLE.items()}
    dense = ScalarsUplink(largest=0.01).open({"scalars": named}, origin()).dense()
    assert max(float((dense[n] - t).abs().max()) for n, t in origin().anchor.items()) <= 6 * 0.01 * (1 + 1e-4)


def test_directions_that_another_machine_would_not_repeat_are_refused_before_anything_runs() -> None:
    for kind in Direction:
        traced = {f"{kind}/{ALL}": ("float32", (2, 3))}
        assert ScalarsUplink(exact=False).carries(traced) == {"scalars": traced}
        if kind.exact:
            assert ScalarsUplink().carries(traced) == {"scalars": traced}
        else:
            with pytest.raises(CotuneError) as caught:
                ScalarsUplink().carries(traced)
            assert caught.value.code is Code.CONFLICT


def test_seeds_are_the_server_s_of_a_round_and_a_client_unless_they_are_shared() -> None:
    seeds, others = Seeds(seed=1, directions=2), Seeds(seed=9, directions=2)
    each, shared = ScalarsUplink(), ScalarsUplink(seeds="shared")
    assert each.directions(seeds, 3, "ada") == seeds.of(Purpose.DIRECTIONS, 3, "ada")
    drawn = {each.directions(seeds, r, c) for r in (1, 2) for c in ("ada", "bo")}
    assert len(drawn) == 4
    assert shared.directions(seeds, 3, "ada") == shared.directions(seeds, 3, "bo") != shared.directions(seeds, 4, "bo")
    assert each.directions(others, 3, "ada") == each.directions(seeds, 3, "ada")
    assert min(drawn) > 0
    assert max(drawn) < 2**63
