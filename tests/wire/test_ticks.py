"""Coefficients as whole numbers of ticks: one theta in any order, and the sum of replies is the reply of the sum."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cotune.aggregate import Mean
from cotune.core.change import Contribution, Origin, Server
from cotune.core.errors import Code, CotuneError
from cotune.core.seeds import Seeds, derive, torch_generator
from cotune.core.spec import Entry, Role, Scope, Spec
from cotune.core.state import Theta
from cotune.core.view import View
from cotune.laws.toy import OBJECTIVE, origin_of, view
from cotune.noise import ALL, Direction, Trace, signs, snapped
from cotune.optim import ZO, SplitZO
from cotune.wire import ScalarsUplink

BITS = 20
TICK = 2.0**-BITS
SPEC = Spec((Entry("a", (7, 9), Role.FULL, "front"), Entry("b", (40,), Role.FULL, "back", block=1)))
SCOPE = Scope(SPEC.names, SPEC.names, SPEC.names)
STEPS, DIRECTIONS = 3, 4
UPLINK = ScalarsUplink(seeds="shared", tick_bits=BITS)


def origin(**fields: object) -> Origin:
    theta = {e.name: torch.randn(e.shape, generator=torch_generator(derive(1, e.name))) for e in SPEC}
    theta["a"][0, :3] = torch.tensor([-0.0, TICK / 3, -TICK / 3])
    return replace(Origin(Theta(theta), 77, 1.0, SPEC, SCOPE), **fields)  # type: ignore[arg-type]


def reply(client: int) -> Tensor:
    """Whole numbers of ticks, (steps, directions) int32."""
    generator = torch_generator(derive(2, client))
    return torch.randint(-900, 900, (STEPS, DIRECTIONS), generator=generator, dtype=torch.int32)


def oracle(ticks: Tensor, weight: float = 1.0) -> dict[str, Tensor]:
    """`weight · θ` on the lattice plus `tick · Σ n z`, in whole numbers."""
    here, found, start = origin(), {}, {0: 0, 1: 0}
    for entry in SPEC:
        total = (here.anchor[entry.name].double() / TICK).round().long().view(-1) * int(weight)
        for step in range(ticks.shape[0]):
            for direction, n in enumerate(ticks[step].tolist()):
                stream = entry.block * 2**32 + direction
                total += n * signs(derive(77, step), stream, start[entry.block], entry.numel).long()
        start[entry.block] += entry.numel
        found[entry.name] = (total.double() * TICK).view(entry.shape)
    return found


def folded(replies: list[tuple[float, Tensor]]) -> Theta:
    here, mean = origin(), Mean()
    fold = mean.init(here.anchor, Server(1, len(replies), SPEC, SPEC.names))
    for i, (weight, ticks) in enumerate(replies):
        change = UPLINK.open({"scalars": {f"sign/{ALL}": ticks}}, here)
        fold = mean.add(fold, Contribution(str(i), weight, change, SPEC))
    return mean.finish(fold).theta


def test_theta_is_that_of_whole_numbers_in_whatever_order_they_are_added() -> None:
    ticks, here = reply(1), origin()
    dense = UPLINK.open({"scalars": {f"sign/{ALL}": ticks}}, here).dense()
    for name, expected in oracle(ticks).items():
        assert torch.equal(dense[name].double(), expected)
        assert not bool((dense[name].signbit() & (dense[name] == 0)).any())
        backwards, start = snapped(here.anchor[name], TICK).view(-1), 0
        for step in reversed(range(STEPS)):
            for direction in reversed(range(DIRECTIONS)):
                z = signs(derive(77, step), SPEC[name].block * 2**32 + direction, start, SPEC[name].numel)
                backwards += torch.tensor(float(ticks[step, direction]) * TICK) * z
        assert torch.equal(backwards.view(SPEC[name].shape), dense[name])


@pytest.mark.parametrize("weights", [(1, 1, 1, 1, 1), (3, 1, 250, 4, 97)])
def test_the_sum_of_what_clients_sent_is_all_that_their_mean_needs(weights: tuple[int, ...]) -> None:
    replies = [(float(weight), reply(i)) for i, weight in enumerate(weights)]
    theta = folded(replies)
    summed = sum(ticks.long() * int(weight) for weight, ticks in replies)
    assert isinstance(summed, Tensor)
    for name, total in oracle(summed, sum(weights)).items():
        assert torch.equal(theta[name], (total / sum(weights)).float())
    assert folded(replies[::-1]).sha256() == theta.sha256()


@pytest.mark.parametrize("part", [ZO(lr=0.01, directions=2), SplitZO(lr=0.01, lr_back=0.02, again=2)], ids=repr)
@pytest.mark.parametrize(
    "uplink", [UPLINK, ScalarsUplink(seeds="client"), ScalarsUplink(seeds="client", tick_bits=18)], ids=repr
)
def test_a_client_that_trained_in_ticks_or_by_its_own_seed_is_replayed_to_the_bit(
    part: ZO | SplitZO, uplink: ScalarsUplink
) -> None:
    start = replace(view(), anchor=view().theta, directions=77)
    here, traces = uplink.begin(start), []
    for _ in range(20):
        step = part.step(here, None, OBJECTIVE)
        here = step.view
        traces.append(step.trace)
    parts = uplink.pack(here, traces)
    numbers = {name: tensor for name, tensor in parts["scalars"].items() if name != "seed"}
    assert sum(tensor.nbytes for tensor in numbers.values()) == 4 * 20 * sum(
        shape[1] for _, shape in part.traced(20).values()
    )
    assert {tensor.dtype for tensor in numbers.values()} == {torch.int32 if uplink.tick else torch.float32}
    change = uplink.open(parts, origin_of(start))
    assert change.dense().sha256() == here.theta.sha256() != start.theta.sha256()
    assert change.scalars().keys() == numbers.keys()
    for name, sent in numbers.items():
        assert torch.equal(sent.double() * (uplink.tick or 1.0), change.scalars()[name].double())


def test_a_step_of_rate_zero_does_no_more_than_put_theta_on_the_lattice() -> None:
    here = UPLINK.begin(replace(view(), directions=77))
    once = ZO(lr=0.0).step(here, None, OBJECTIVE).view
    assert once.theta.sha256() == Theta({n: snapped(t, TICK) for n, t in here.theta.items()}).sha256()
    assert ZO(lr=0.0).step(once, None, OBJECTIVE).view.theta.sha256() == once.theta.sha256()


@given(st.floats(-8, 8, width=32))
def test_a_number_goes_to_the_nearest_multiple_of_a_tick_and_stays_there(number: float) -> None:
    once = snapped(torch.tensor([number]), TICK)
    assert float(once) / TICK == round(number / TICK)
    assert torch.equal(snapped(once, TICK), once)
    assert math.copysign(1, float(once)) == 1 or float(once) != 0


@pytest.mark.parametrize("wrong", [2**BITS + 1, -(2**BITS) - 1, 2**31 - 1, -(2**31)])
def test_more_ticks_than_the_largest_coefficient_has_are_refused(wrong: int) -> None:
    ticks = reply(1)
    ticks[1, 2] = wrong
    with pytest.raises(CotuneError) as caught:
        UPLINK.open({"scalars": {f"sign/{ALL}": ticks}}, origin())
    assert caught.value.code is Code.SCALAR


def test_theta_that_could_leave_the_range_in_which_ticks_are_exact_is_refused_on_either_side() -> None:
    room = 2**24 * TICK
    far = origin().anchor.replace({"b": torch.full((40,), room - 900 * TICK)})
    few, many = torch.full((1, 1), 800, dtype=torch.int32), torch.full((1, 2), 800, dtype=torch.int32)
    UPLINK.open({"scalars": {f"sign/{ALL}": few}}, origin(anchor=far))
    with pytest.raises(CotuneError, match="lower uplink") as caught:
        UPLINK.open({"scalars": {f"sign/{ALL}": many}}, origin(anchor=far))
    assert caught.value.code is Code.SCALAR
    here = UPLINK.begin(View(1, "ada", far, SPEC.divide(dict(far))[1], {}, far, {}, Seeds(), SPEC, SCOPE, directions=7))
    with pytest.raises(CotuneError) as caught:
        UPLINK.pack(here, [trace(many)])
    assert caught.value.code is Code.SCALAR


def trace(ticks: Tensor) -> Trace:
    return Trace(Direction.SIGN, {ALL: ticks[0] * TICK})


def test_directions_that_are_no_signs_have_no_ticks() -> None:
    for kind in Direction:
        traced, uplink = {f"{kind}/{ALL}": ("float32", (2, 3))}, ScalarsUplink(exact=False, tick_bits=BITS)
        if kind.exact:
            assert uplink.carries(traced) == {"scalars": {f"{kind}/{ALL}": ("int32", (2, 3))}}
        else:
            with pytest.raises(CotuneError) as caught:
                uplink.carries(traced)
            assert caught.value.code is Code.CONFLICT


def test_a_seed_of_a_client_s_own_is_verified_by_recomputation() -> None:
    uplink = ScalarsUplink(seeds="client")
    traced = {f"sign/{ALL}": ("float32", (2, 3))}
    assert uplink.carries(traced) == {"scalars": {**traced, "seed": ("int64", (1,))}}
    seed = uplink.begin(view_of(5)).directions
    assert seed not in (0, 5)
    parts = {f"sign/{ALL}": torch.full((1, 2), 0.01), "seed": torch.tensor([seed])}
    assert uplink.open({"scalars": parts}, origin(seed=5)).origin.seed == seed
    for chosen, issued in ((seed + 1, 5), (seed, 6), (5, 5), (0, 5), (-1, 5)):
        with pytest.raises(CotuneError) as caught:
            uplink.open({"scalars": {**parts, "seed": torch.tensor([chosen])}}, origin(seed=issued))
        assert caught.value.code is Code.SEED


def view_of(seed: int) -> View:
    theta, personal = SPEC.divide(dict(origin().anchor))
    return View(1, "ada", theta, personal, {}, theta, {}, Seeds(), SPEC, SCOPE, directions=seed)
