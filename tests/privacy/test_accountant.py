"""Epsilon against published numbers and its own definition, and how often a row takes part against a count."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotune.core.errors import Code, CotuneError
from cotune.core.seeds import Seeds
from cotune.core.view import Budget
from cotune.laws.toy import view
from cotune.objective import batch_order
from cotune.privacy import epsilon, most


@pytest.mark.parametrize(
    ("known", "renyi", "tight"),
    [
        ((0.01, 1.0, 1000, 1e-5), 2.101, 1.829),
        ((0.1, 1.0, 100, 1e-5), 7.904, 7.047),
        ((1.0, 5.0, 30, 1e-5), 5.252, 4.866),
        ((0.02, 0.8, 500, 1e-6), 6.165, 5.441),
    ],
)
def test_epsilon_is_the_known_one(known: tuple[float, float, int, float], renyi: float, tight: float) -> None:
    rate, multiplier, times, delta = known
    assert epsilon(multiplier, times, delta, rate) == pytest.approx(tight, rel=0.01)
    assert epsilon(multiplier, times, delta, rate, bound="renyi") == pytest.approx(renyi, rel=0.01)


def test_without_a_coin_for_every_row_nothing_is_gained() -> None:
    """Beside 7.05 at rate 0.1."""
    assert epsilon(1.0, 100, 1e-5) == pytest.approx(91.8, rel=0.01)


@pytest.mark.parametrize(("multiplier", "times"), [(1.0, 1), (0.5, 10), (8.0, 400), (40.0, 3)])
def test_epsilon_of_all_rows_at_once_is_where_two_gaussians_differ_by_delta(multiplier: float, times: int) -> None:
    """δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), μ = √times / multiplier (Balle and Wang, 2018)."""
    delta, mu, found = 1e-5, math.sqrt(times) / multiplier, epsilon(multiplier, times, 1e-5)

    def phi(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    assert phi(mu / 2 - found / mu) - math.exp(found) * phi(-mu / 2 - found / mu) == pytest.approx(delta, rel=1e-4)


def test_no_noise_is_no_privacy_and_no_release_costs_nothing() -> None:
    assert epsilon(0.0, 3, 1e-5) == math.inf == epsilon(1e-160, 10, 1e-5)
    assert 1e11 < epsilon(1.1e-6, 1, 1e-5) < math.inf
    assert epsilon(1.0, 0, 1e-5) == 0.0 == epsilon(0.0, 0, 1e-5)
    assert epsilon(1.0, 2, 1e-5) > epsilon(1.0, 1, 1e-5) > epsilon(2.0, 1, 1e-5) > epsilon(2.0, 1, 1e-3)


@pytest.mark.parametrize("wrong", [(-1.0, 1, 1e-5, 1.0), (1.0, -1, 1e-5, 1.0), (1.0, 1, 0.0, 1.0), (1.0, 1, 1e-5, 0.0)])
def test_numbers_out_of_range_are_refused(wrong: tuple[float, int, float, float]) -> None:
    with pytest.raises(CotuneError) as caught:
        epsilon(*wrong)
    assert caught.value.code is Code.CONFIG


@settings(max_examples=60)
@given(*(st.integers(1, top) for top in (9, 4, 4, 6)), st.integers(0, 50))
def test_no_row_is_in_more_steps_than_counted(rows: int, batch: int, accumulate: int, steps: int, seed: int) -> None:
    budget, counts = Budget(steps=steps, batch=batch, accumulate=accumulate), Counter[int]()
    for step in batch_order(replace(view(), seeds=Seeds(seed=seed)), rows, budget):
        for row, times in Counter(row for batch_ in step for row in batch_).items():
            counts[row] += times**2
    assert max(counts.values()) <= most(rows, budget)
    if math.ceil(rows / batch) % accumulate == 0:
        assert max(counts.values()) == most(rows, budget)


def test_whole_passes_take_every_row_as_often_as_there_are_passes() -> None:
    assert most(100, Budget(epochs=3, batch=16)) == 3
    assert most(100, Budget(steps=7, batch=16)) == 1
    assert most(100, Budget(steps=8, batch=16)) == 2
    assert most(4, Budget(steps=5, batch=4, accumulate=3)) == 5 * 3**2
    assert most(0, Budget(steps=5)) == 0
