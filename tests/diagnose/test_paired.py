"""Paired statistics against plain loops, hand-computed cases and simulations of what they promise."""

from __future__ import annotations

import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.diagnose import paired_interval
from cotune.diagnose.paired import (
    EXACT,
    LOWER_IS_BETTER,
    detectable,
    direction,
    holm,
    mcnemar,
    paired_bootstrap,
    sign_flip,
)


def drawing(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


def plain_bootstrap(table: np.ndarray, seed: int, resamples: int) -> list[float]:
    """Rows drawn one by one, seeds averaged one by one."""
    generator, rows = drawing(seed), len(table)
    means = []
    for _ in range(resamples):
        chosen = [table[i] for i in generator.integers(0, rows, (1, rows))[0]]
        columns = [[row[s] for row in chosen if not math.isnan(row[s])] for s in range(table.shape[1])]
        by_seed = [sum(column) / len(column) for column in columns if column]
        means.append(sum(by_seed) / len(by_seed))
    return means


@pytest.mark.parametrize("seeds", [1, 3])
def test_the_bootstrap_is_that_of_a_plain_loop(seeds: int) -> None:
    table = drawing(5).normal(size=(17, seeds))
    if seeds > 1:
        table[3, 0] = table[4, 1] = table[5, 2] = math.nan
    mean, low, high = paired_bootstrap(table, drawing(9), resamples=200)
    assert mean == pytest.approx(np.nanmean(table, axis=0).mean(), abs=1e-12)
    tail = NormalDist().cdf(-math.sqrt(17 / 16) * 2.1199)  # Student's t of 16 degrees at 97.5 %, from the tables
    assert (low, high) == pytest.approx(np.quantile(plain_bootstrap(table, 9, 200), (tail, 1 - tail)), abs=0.02)
    assert low < np.quantile(plain_bootstrap(table, 9, 200), 0.025)


def test_many_rows_are_drawn_in_portions_and_narrow_to_the_normal_interval() -> None:
    values = drawing(1).normal(0.1, 1, 5000)
    found = paired_bootstrap(values, drawing(2), resamples=500)
    assert found == pytest.approx(paired_interval(values.tolist(), [0.0] * 5000), abs=3e-3)


def test_the_same_draws_give_the_same_interval_and_a_turned_table_the_turned_one() -> None:
    table = drawing(1).normal(size=(30, 2))
    mean, low, high = paired_bootstrap(table, drawing(3))
    assert paired_bootstrap(table, drawing(3)) == (mean, low, high)
    assert paired_bootstrap(-table, drawing(3)) == pytest.approx((-mean, -high, -low), abs=1e-14)


def test_no_difference_anywhere_is_exactly_none() -> None:
    assert paired_bootstrap(np.zeros((20, 2)), drawing()) == (0.0, 0.0, 0.0)
    assert sign_flip(np.zeros((20, 2)), drawing()) == 1.0
    assert detectable(np.zeros((20, 2))) == 0.0


def test_a_row_that_every_seed_saw_counts_once() -> None:
    values = drawing(1).normal(size=40)
    twice = np.stack([values, values], axis=1)
    assert paired_bootstrap(twice, drawing(3)) == pytest.approx(paired_bootstrap(values, drawing(3)), abs=1e-12)
    assert detectable(twice) == pytest.approx(detectable(values))
    apart = np.full((80, 2), math.nan)
    apart[:40, 0], apart[40:, 1] = values, values
    assert detectable(apart) == pytest.approx(detectable(values) / math.sqrt(2), rel=0.02)
    _, low, high = paired_bootstrap(values, drawing(3))
    _, lower, higher = paired_bootstrap(apart, drawing(3))
    assert (higher - lower) / (high - low) == pytest.approx(1 / math.sqrt(2), rel=0.1)


def test_ninety_five_of_a_hundred_intervals_hold_the_truth() -> None:
    """1000 comparisons of 80 test rows by two seeds, half of the rows seen by both; the shares differ by 0.05."""
    generator, held = drawing(), 0
    for _ in range(1000):
        shared = generator.random((120, 1)) < 0.3
        own = generator.random((120, 2)) < 0.3
        where = np.where(generator.random((120, 1)) < 0.5, shared, own)  # what is hard for one seed is often for both
        table = where * np.where(generator.random((120, 2)) < 0.5 + 0.05 / 0.6, 1.0, -1.0)
        table[:40, 0] = table[80:, 1] = math.nan
        _, low, high = paired_bootstrap(table, generator, resamples=400)
        held += low <= 0.05 <= high
    assert 0.93 <= held / 1000 <= 0.97


def test_the_sign_flip_is_exact_where_few_rows_differ() -> None:
    """Four of a hundred rows, all in one direction: two of the sixteen ways to turn them are as extreme."""
    few = np.array([1.0] * 4 + [0.0] * 96)
    assert sign_flip(few, drawing(), 20_000) == pytest.approx(2 / 16, abs=0.01)
    assert paired_bootstrap(few, drawing())[1] > 0, "the control: the bootstrap alone would see a difference"
    values = [0.5, 0.2, -0.1, 0.4, 0.3]
    ways = [sum(sign * value for sign, value in zip(signs, values, strict=True)) for signs in _signs(5)]
    exact = sum(abs(way) >= sum(values) - 1e-9 for way in ways) / len(ways)
    assert sign_flip(values, drawing(), 20_000) == pytest.approx(exact, abs=0.01)


def _signs(count: int) -> list[tuple[int, ...]]:
    return list(itertools.product((-1, 1), repeat=count))


def test_without_a_difference_the_sign_flip_claims_one_at_most_one_time_in_twenty() -> None:
    """400 comparisons where 12 of 100 rows differ, each way as often; the allowance is three deviations."""
    generator = drawing(11)
    claims = sum(
        sign_flip(np.where(generator.random(12) < 0.5, 1.0, -1.0), generator, resamples=400) <= 0.05 for _ in range(400)
    )
    assert claims / 400 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)


def test_the_detectable_difference_is_the_textbook_one() -> None:
    values = drawing(3).normal(size=50)
    assert detectable(values) == pytest.approx((1.959964 + 0.841621) * values.std(ddof=1) / math.sqrt(50), rel=1e-6)
    assert detectable([0.5]) == math.inf


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_detectable_difference_is_detected_four_times_in_five(seeds: int) -> None:
    generator = drawing(13)
    pilot = generator.normal(size=(4000, 1)) + generator.normal(size=(4000, seeds))
    gap = detectable(pilot) * math.sqrt(4000 / 100)
    seen = 0
    for _ in range(400):
        table = gap + generator.normal(size=(100, 1)) + generator.normal(size=(100, seeds))
        mean = float(table.mean())
        seen += abs(mean) > detectable(table) * 1.959964 / (1.959964 + 0.841621)
    assert seen / 400 == pytest.approx(0.8, abs=0.06)


def test_holm_is_the_hand_computed_case() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_what_its_steps_reject(p_values: list[float]) -> None:
    """The procedure itself: the smallest against 0.05/m, the next against 0.05/(m−1), until one holds."""
    ranked = sorted(range(len(p_values)), key=lambda i: p_values[i])
    rejected: set[int] = set()
    for step, place in enumerate(ranked):
        if (len(p_values) - step) * p_values[place] > 0.05:
            break
        rejected.add(place)
    assert {i for i, p in enumerate(holm(p_values)) if p <= 0.05} == rejected


def test_a_lower_loss_is_better() -> None:
    assert direction("accuracy") == 1
    assert {direction(name) for name in LOWER_IS_BETTER} == {-1}


def test_an_empty_table_is_refused() -> None:
    with pytest.raises(ValueError, match="not empty"):
        paired_bootstrap([], drawing())


@pytest.mark.parametrize("n", [0, 1, 2, 5, 10])
def test_mcnemars_p_value_is_the_share_of_all_turnings_that_are_as_uneven(n: int) -> None:
    turnings = [sum(sides) for sides in itertools.product((0, 1), repeat=n)]
    for ours in range(n + 1):
        as_uneven = sum(abs(2 * other - n) >= abs(2 * ours - n) for other in turnings) / len(turnings)
        assert mcnemar(ours, n - ours) == pytest.approx(as_uneven, abs=1e-14)
        assert mcnemar(ours, n - ours) == mcnemar(n - ours, ours)


def test_mcnemars_p_value_of_a_textbook_table() -> None:
    assert mcnemar(2, 10) == pytest.approx(2 * (1 + 12 + 66) / 4096)
    assert mcnemar(0, 5) == 2 / 32


@pytest.mark.parametrize("apart", [1, 21, 41, 81, 121])
def test_beyond_the_exact_limit_mcnemars_p_value_hardly_changes(apart: int) -> None:
    n = EXACT + 1
    fewer = (n - apart) // 2
    exact = min(1.0, 2 * math.fsum(math.comb(n, k) / (1 << n) for k in range(fewer + 1)))
    assert mcnemar(fewer, n - fewer) == pytest.approx(exact, rel=0.05)
    assert mcnemar(10**5, 10**5 + 1) == 1.0
