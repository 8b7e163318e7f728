"""Intervals against published values and dense formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.diagnose import client_metric, mean_interval, paired_interval, ratio_interval
from cotune.diagnose.metrics import client_metrics, global_metrics


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


def lengths_and_losses(rows: int, seed: int) -> tuple[list[float], list[float]]:
    """Rows of unequal length; the loss of a token depends on its row, and a little on the length."""
    generator = np.random.default_rng(seed)
    tokens = np.floor(generator.gamma(2.0, 20.0, rows)) + 1
    return list(tokens * (3 + 0.3 * generator.normal(size=rows) + 0.002 * tokens)), list(tokens)


@pytest.mark.parametrize("rows", [40, 200])
def test_a_ratio_has_the_interval_that_the_bootstrap_over_rows_finds(rows: int) -> None:
    above, below = lengths_and_losses(rows, rows)
    value, low, high = ratio_interval(above, below)
    assert value == pytest.approx(math.exp(sum(above) / sum(below)))
    drawn = np.random.default_rng(0).integers(0, rows, (20000, rows))
    ratios = np.exp(np.take(above, drawn).sum(1) / np.take(below, drawn).sum(1))
    expected = np.quantile(ratios, [0.025, 0.975])
    assert np.log([low, high]) == pytest.approx(np.log(expected), abs=0.08 * math.log(high / low))
    assert low < value < high


def test_a_ratio_interval_holds_the_truth_nineteen_times_of_twenty() -> None:
    population = lengths_and_losses(200_000, 9)
    truth = math.exp(sum(population[0]) / sum(population[1]))
    held = 0
    for seed in range(400):
        _, low, high = ratio_interval(*lengths_and_losses(60, 1000 + seed))
        held += low <= truth <= high
    assert 0.92 <= held / 400 <= 0.98


@given(
    st.lists(st.tuples(st.floats(0, 500), st.integers(1, 99)), min_size=2, max_size=30),
    st.integers(2, 5),
)
def test_the_ratio_of_sums_is_no_mean_of_ratios_and_does_not_care_for_order(
    rows: list[tuple[float, int]], times: int
) -> None:
    above, below = [a for a, _ in rows], [float(b) for _, b in rows]
    value, low, high = ratio_interval(above, below)
    assert ratio_interval(above[::-1], below[::-1]) == pytest.approx((value, low, high), rel=1e-9)
    assert ratio_interval(above * times, below * times)[0] == pytest.approx(value, rel=1e-9)
    assert low <= value <= high


def test_rows_that_agree_leave_no_doubt_and_one_row_leaves_all() -> None:
    assert ratio_interval([2.0, 4.0, 6.0], [1.0, 2.0, 3.0]) == pytest.approx((math.exp(2),) * 3)
    assert ratio_interval([2.0], [1.0]) == (math.exp(2), 0.0, math.inf)
    assert ratio_interval([1e6, 1e6], [1.0, 1.0])[0] == math.inf


def test_a_ratio_of_means_is_the_ratio_of_sums_for_clients_and_for_all() -> None:
    ratios = {"perplexity": ("nll", "tokens")}
    scored = {"loss": [1.0, 2.0], "nll": [3.0, 8.0], "tokens": [3.0, 4.0]}
    found = global_metrics(scored, ratios, {"perplexity": 50.0})
    assert list(found) == ["loss", "nll", "tokens", "perplexity"]
    assert found["perplexity"].value == pytest.approx(math.exp(11 / 7))
    assert (found["perplexity"].n, found["perplexity"].chance, found["loss"].chance) == (2, 50.0, None)
    means = {"loss": 1.5, "nll": 5.5, "tokens": 3.5}
    client = client_metrics(("loss", "nll", "tokens"), ratios, {}, means, 2)["perplexity"]
    assert client.federated == pytest.approx(math.exp(11 / 7))
    assert (client.local, client.drop, client.n) == (None, None, 2)
    both = client_metrics(("loss", "nll", "tokens"), ratios, means, {**means, "nll": 7.0}, 2)["perplexity"]
    assert both.drop == pytest.approx(math.exp(11 / 7) - math.exp(2)), "in its own unit, not in points"
    empty = client_metrics(("loss", "nll", "tokens"), ratios, means, dict.fromkeys(means, math.nan), 0)
    assert empty["perplexity"].federated is None
    assert global_metrics({"nll": [], "tokens": []}, ratios, {}) == {}
    assert client_metrics(("nll", "tokens"), ratios, {}, {"nll": 1.0, "tokens": 0.0}, 1)["perplexity"].federated is None
