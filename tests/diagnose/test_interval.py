"""Intervals against published values and dense formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.diagnose import client_metric, mean_interval, paired_interval


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [
        (8, 10, 0.490, 0.943),
        (0, 10, 0.000, 0.278),
        (10, 10, 0.722, 1.000),
        (1, 1, 0.207, 1.000),
        (0, 1, 0.000, 0.793),
        (50, 100, 0.404, 0.596),
        (15, 148, 0.062, 0.160),  # Newcombe (1998), Table I: 0.0624 to 0.1605
        (81, 263, 0.255, 0.366),  # Newcombe (1998), Table I: 0.2553 to 0.3662
    ],
)
def test_a_share_has_the_interval_of_wilson(hits: int, n: int, low: float, high: float) -> None:
    mean, *found = mean_interval([1.0] * hits + [0.0] * (n - hits))
    assert mean == pytest.approx(hits / n)
    assert found == pytest.approx([low, high], abs=5e-4)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_the_ends_of_wilson_solve_its_equation_and_stay_between_zero_and_one(case: tuple[int, int]) -> None:
    """An end p is where the observed share lies 1.96 deviations away: (share − p)² = z² p (1 − p) / n."""
    n, hits = case
    mean, *ends = mean_interval([1.0] * hits + [0.0] * (n - hits))
    for p in ends:
        assert (mean - p) ** 2 == pytest.approx(1.959963984540054**2 * p * (1 - p) / n, abs=1e-12)
    assert -1e-12 <= ends[0] <= mean + 1e-12
    assert mean - 1e-12 <= ends[1] <= 1 + 1e-12


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=40).filter(lambda values: not set(values) <= {0.0, 1.0}))
def test_other_numbers_have_the_normal_interval(values: list[float]) -> None:
    mean, low, high = mean_interval(values)
    half = 1.959963984540054 * np.std(values, ddof=1) / math.sqrt(len(values))
    assert mean == pytest.approx(np.mean(values), abs=1e-10)
    assert (low, high) == pytest.approx((np.mean(values) - half, np.mean(values) + half), abs=1e-9)


def test_one_number_says_nothing_about_its_spread() -> None:
    assert mean_interval([3.5]) == (3.5, -math.inf, math.inf)
    assert paired_interval([1.0], [0.0]) == (1.0, -math.inf, math.inf)


ROWS = st.lists(st.tuples(st.sampled_from([0.0, 1.0]), st.sampled_from([0.0, 1.0])), min_size=2, max_size=40)


@given(ROWS)
def test_turning_a_comparison_around_turns_its_interval_around(rows: list[tuple[float, float]]) -> None:
    ours, theirs = [a for a, _ in rows], [b for _, b in rows]
    mean, low, high = paired_interval(ours, theirs)
    assert paired_interval(theirs, ours) == pytest.approx((-mean, -high, -low), abs=1e-12)
    differences = np.subtract(ours, theirs)
    half = 1.959963984540054 * differences.std(ddof=1) / math.sqrt(len(rows))
    assert (low, high) == pytest.approx((differences.mean() - half, differences.mean() + half), abs=1e-12)


def test_one_better_row_of_ten_is_no_significant_difference() -> None:
    ours, theirs = [1.0] * 10, [0.0] + [1.0] * 9
    _, low, high = paired_interval(ours, theirs)
    assert low < 0 < high
    assert mean_interval([1.0] + [0.0] * 9)[1] > 0, "the control: as a share of rows it would look like one"


def test_pairing_takes_out_what_both_models_find_hard() -> None:
    hard = [float(i) for i in range(20)]
    ours, theirs = [x - 0.1 - 0.01 * (i % 2) for i, x in enumerate(hard)], hard
    _, low, high = paired_interval(ours, theirs)
    assert high < 0
    _, mine, _ = mean_interval(ours)
    assert mine < mean_interval(theirs)[0] < mean_interval(ours)[2], "the control: unpaired intervals overlap"
    assert low < high


def test_only_the_same_rows_can_be_paired() -> None:
    with pytest.raises(ValueError, match="zip"):
        paired_interval([1.0, 0.0], [1.0])


def test_a_drop_is_local_minus_federated_in_points_for_shares() -> None:
    share = client_metric("accuracy", 0.75, 0.5, 8)
    assert (share.drop, share.local, share.federated, share.n) == (25.0, 0.75, 0.5, 8)
    assert client_metric("loss", 1.5, 1.25, 8).drop == 0.25
    assert client_metric("accuracy", 0.25, 0.5, 8).drop == -25.0
    assert client_metric("accuracy", None, 0.5, 8).drop is None
    assert client_metric("accuracy", 0.5, None, 8).drop is None
