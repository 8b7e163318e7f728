"""Steps with noise: a row's influence is bounded, the noise is what was asked for, and nothing else tells of a row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import experiment, play, theta
from torch import Tensor

from cotune.core.change import Origin
from cotune.core.errors import Code, CotuneError
from cotune.core.view import NamedTensors, View
from cotune.laws.toy import SPEC, view
from cotune.noise import ALL, Trace
from cotune.optim import ZO, PrivateZO
from cotune.wire import ScalarsUplink

OPEN: dict[str, Any] = {"limit": 1e30, "sigma": 0.0}
NOISES = ("secure", "reproducible")


@dataclass
class Rows:
    """Loss of row r: start_r + tilt_r · Σ head, in portions of rows, each looked at as often as it is asked."""

    tilts: Sequence[float]
    portions: Sequence[int] = ()
    start: float = 0.0
    passes: list[int] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return len(self.tilts)

    def microbatches(self) -> Iterator[Rows]:
        left = list(self.tilts)
        for count in self.portions or [len(left)] * bool(left):
            yield replace(self, tilts=left[:count], portions=(), passes=self.passes)
            del left[:count]

    def __call__(self, tensors: NamedTensors) -> Tensor:
        self.passes.append(len(self.tilts))
        head = tensors["head"]
        whole = head.double().sum()
        return torch.stack([self.start + tilt * whole for tilt in self.tilts]).float()


def begun(**fields: Any) -> View:
    return replace(view(), anchor=view().theta, directions=7, **fields)


def coefficients(part: PrivateZO | ZO, objective: Any, here: View | None = None) -> Tensor:
    trace = part.step(here or begun(), None, objective).trace
    assert isinstance(trace, Trace)
    return trace.coefficients[ALL].double()


LOSS = st.floats(width=32)  # infinities and NaN, too


@settings(max_examples=60)
@given(
    st.lists(st.tuples(LOSS, LOSS), min_size=1, max_size=6),
    st.tuples(LOSS, LOSS),
    st.floats(1e-3, 1e6),
    st.sampled_from([2.0**-10, 1e-3]),
)
def test_a_row_that_is_replaced_changes_a_mean_slope_by_at_most_two_limits_over_the_rows(
    rows: list[tuple[float, float]], other: tuple[float, float], limit: float, mu: float
) -> None:
    part = PrivateZO(lr=1.0, limit=limit, sigma=0.0, mu=mu)

    def slope(pairs: Sequence[tuple[float, float]]) -> float:
        ahead, behind = torch.tensor(pairs, dtype=torch.float64).unbind(1)
        return part.mean_slope(ahead, behind)

    def plain(ahead: float, behind: float) -> float:
        found = (ahead - behind) / (2 * mu)
        return max(-limit, min(limit, found)) if math.isfinite(found) else 0.0

    assert slope(rows) == pytest.approx(sum(plain(*row) for row in rows) / len(rows), rel=1e-9, abs=1e-12 * limit)
    assert abs(slope(rows) - slope([other, *rows[1:]])) <= 2 * limit / len(rows) * (1 + 1e-12)


def test_the_worst_row_reaches_the_bound_whatever_the_other_rows_are_and_no_more() -> None:
    part, others = PrivateZO(lr=1.0, limit=5.0, sigma=0.0), [0.3, -0.2, 1.0]
    worst, opposite, silent = (coefficients(part, Rows([tilt, *others])) for tilt in (1e35, -1e35, 0.0))
    assert float((worst - opposite).abs()) == pytest.approx(2 * 5.0 / 4, rel=1e-6)
    assert float((worst - silent).abs()) == pytest.approx(5.0 / 4, rel=1e-6)
    free = part.model_copy(update={"limit": 1e36})  # without a limit a row is free to drown all others
    assert float((coefficients(free, Rows([1e30, *others])) - coefficients(free, Rows([0.0, *others]))).abs()) > 1e25


@pytest.mark.parametrize("noise", NOISES)
def test_noise_has_the_deviation_sigma_times_limit_over_the_rows_of_all_portions(noise: Any) -> None:
    count, rows = 800, Rows([0.0] * 5, portions=(3, 2))
    part = PrivateZO(lr=1.0, limit=20.0, sigma=0.7, directions=count, noise=noise)
    drawn = -coefficients(part, rows) * count / (0.7 * 20.0 / 5)
    chance = 6 / math.sqrt(count)
    assert abs(float(drawn.mean())) < chance
    assert abs(float(drawn.square().mean()) - 1) < math.sqrt(2) * chance
    assert abs(float((drawn[1:] * drawn[:-1]).mean())) < chance
    assert abs(float((drawn.abs() < 0.6745).double().mean()) - 0.5) < chance / 2


def test_reproducible_noise_is_of_the_seed_the_round_the_client_and_the_step_alone() -> None:
    part, rows = PrivateZO(lr=1.0, limit=1.0, sigma=1.0, noise="reproducible"), Rows([0.0, 0.0])
    first, state = coefficients(part, rows), torch.get_rng_state()
    coefficients(part, Rows([0.0]))  # as a counter of FLOPs throws a step of one row away
    assert torch.equal(coefficients(part, rows), first)
    assert torch.equal(torch.get_rng_state(), state)
    others = [begun(step=1), begun(round=3), begun(client="bo"), begun(seeds=view(2).seeds)]
    drawn = {float(first), *(float(coefficients(part, rows, here)) for here in others)}
    assert len(drawn) == 5
    assert float(coefficients(part, rows, begun())) == float(first)


def test_secure_noise_is_drawn_anew_for_every_step() -> None:
    part, rows = PrivateZO(lr=1.0, limit=1.0, sigma=1.0, directions=2), Rows([0.0, 0.0])
    drawn = torch.cat([coefficients(part, rows) for _ in range(3)])
    assert len(set(drawn.tolist())) == 6
    assert part.hides
    assert not part.model_copy(update={"noise": "reproducible"}).hides
    assert not PrivateZO(lr=1.0, limit=1.0, sigma=0.0).hides


@pytest.mark.parametrize("portions", [(), (3, 1), (1, 1, 1, 1)])
def test_without_noise_and_limit_steps_are_those_of_zo_bit_for_bit(portions: tuple[int, ...]) -> None:
    objective = Rows([0.31, -1.7, 2.9, 0.05], portions, start=0.7)
    ours, plain = begun(), begun()
    for _ in range(50):
        ours = PrivateZO(lr=0.01, directions=2, **OPEN).step(ours, None, objective).view
        plain = ZO(lr=0.01, directions=2).step(plain, None, objective).view
    assert ours.theta.sha256() == plain.theta.sha256() != begun().theta.sha256()


def test_a_run_without_noise_and_limit_is_the_run_of_zo_bit_for_bit(tmp_path: Path) -> None:
    found = [run_of({"kind": "private-zo", **OPEN}, tmp_path / "ours"), run_of({"kind": "zo"}, tmp_path / "zo")]
    assert found[0] == found[1]


def run_of(optimizer: dict[str, Any], out: Path, **sets: Any) -> str:
    given = {"lr": 1e-3, "directions": 2, **optimizer}
    return theta(experiment("mezo", federation={"rounds": 2}, method__optimizer=given, **sets), out)


def test_theta_is_replayed_bit_for_bit_from_scalars_that_carry_noise(tmp_path: Path) -> None:
    part, uplink, traces, objective = PrivateZO(lr=1e-3, limit=5.0, sigma=2.0), ScalarsUplink(), [], Rows([1.0, 2.0])
    here = start = begun()
    for _ in range(300):
        step = part.step(here, None, objective)
        here = step.view
        traces.append(step.trace)
    change = uplink.open(uplink.pack(here, traces), Origin(start.theta, start.directions, 1.0, SPEC, start.scope))
    assert change.dense().sha256() == here.theta.sha256() != start.theta.sha256()


def test_a_reproducible_run_has_one_hash_by_scalars_and_by_tensors_and_a_secure_one_has_none(tmp_path: Path) -> None:
    noisy = {"kind": "private-zo", "limit": 20.0, "sigma": 0.5}
    known = [
        run_of({**noisy, "noise": "reproducible"}, tmp_path / str(i), method__uplink=kind)
        for i, kind in enumerate(("scalars", "scalars", "tensors"))
    ]
    assert known[0] == known[1] == known[2]
    assert len({known[0], *(run_of(noisy, tmp_path / name) for name in "ab")}) == 3


def test_a_row_whose_loss_is_not_finite_counts_as_flat_and_a_step_of_such_rows_is_noise_not_an_error() -> None:
    part, bad = PrivateZO(lr=1.0, limit=1e3, sigma=0.0), math.nan
    assert float(coefficients(part, Rows([bad, 3.0]))) == float(coefficients(part, Rows([0.0, 3.0]))) != 0.0
    noisy = part.model_copy(update={"sigma": 1.0})
    for objective in (Rows([bad, bad]), Rows([1.0], start=math.inf)):
        drawn = coefficients(noisy, objective)
        assert bool(drawn.isfinite().all())
        assert float(drawn) != 0.0


def test_a_step_without_rows_is_refused() -> None:
    with pytest.raises(CotuneError) as caught:
        PrivateZO(lr=1.0, limit=1.0, sigma=1.0).step(begun(), None, Rows([]))
    assert caught.value.code is Code.COUNT


def test_a_step_takes_two_passes_a_direction() -> None:
    objective = Rows([1.0, 2.0, 3.0], portions=(2, 1))
    part = PrivateZO(lr=1.0, limit=1.0, sigma=1.0, directions=3)
    assert part.traced(7) == {"sign/all": ("float32", (7, 3))}
    assert len(coefficients(part, objective)) == 3
    assert objective.passes == [2, 1] * 6


def test_the_loss_on_training_rows_is_not_sent(tmp_path: Path) -> None:
    optimizer = {"kind": "private-zo", "lr": 1e-3, "limit": 5.0, "sigma": 1.0}
    rounds = play(experiment("mezo", federation={"rounds": 1}, method__optimizer=optimizer), tmp_path).rounds
    assert [record.train_loss for record in rounds] == [None]
    assert rounds[0].global_metrics
