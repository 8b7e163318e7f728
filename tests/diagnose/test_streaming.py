"""Bins along a stream against plain loops over its tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.core.record import Bin
from cotune.diagnose.streaming import doubling_bins, equal_bins, relative

Z = 1.959963984540054


def looped(values: list[float]) -> tuple[float | None, float | None, float | None]:
    """(mean, low, high) of numbers, the interval from two on."""
    if not values:
        return None, None, None
    mean = sum(values) / len(values)
    if len(values) == 1:
        return mean, None, None
    half = Z * math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))
    return mean, mean - half, mean + half


def check(found: Bin, values: list[float], first: int, last: int, n: int) -> None:
    assert (found.first, found.last, found.n) == (first, last, n)
    assert (found.mean, found.low, found.high) == pytest.approx(looped(values), abs=1e-12)


STREAM = st.lists(st.one_of(st.floats(0, 20), st.just(math.nan)), min_size=1, max_size=150)


@given(STREAM, st.integers(1, 40))
def test_every_token_is_in_the_one_equal_bin_that_counts_it(stream: list[float], width: int) -> None:
    bins = equal_bins(stream, width)
    assert [one.first for one in bins] == list(range(0, len(stream), width))
    for one in bins:
        inside = stream[one.first : one.first + width]
        scored = [value for value in inside if not math.isnan(value)]
        check(one, scored, one.first, one.first + len(inside) - 1, len(scored))


@given(STREAM)
def test_doubling_bins_hold_1_2_4_tokens_and_so_on(stream: list[float]) -> None:
    bins, first = doubling_bins(stream), 0
    for power, one in enumerate(bins):
        inside = stream[first : first + 2**power]
        scored = [value for value in inside if not math.isnan(value)]
        check(one, scored, first, first + len(inside) - 1, len(scored))
        first += 2**power
    assert first >= len(stream)


def test_doubling_bins_end_with_one_of_1024_tokens() -> None:
    bins = doubling_bins(np.arange(5000.0))
    assert [(one.first, one.last) for one in bins[:4]] == [(0, 0), (1, 2), (3, 6), (7, 14)]
    assert (len(bins), bins[-1].first, bins[-1].last, bins[-1].n) == (11, 1023, 2046, 1024)


def test_equal_bins_hold_1024_tokens_unless_told_otherwise() -> None:
    bins = equal_bins(np.ones(2500))
    assert [(one.first, one.last) for one in bins] == [(0, 1023), (1024, 2047), (2048, 2499)]


@given(st.integers(2, 6), st.integers(0, 1000))
def test_several_streams_have_the_mean_of_their_means_and_the_interval_over_them(streams: int, seed: int) -> None:
    table = np.random.default_rng(seed).exponential(2.0, (streams, 40))
    table[0, 5:] = math.nan
    bins = equal_bins(table, 10)
    for i, one in enumerate(bins):
        own = [[v for v in row[10 * i : 10 * i + 10] if not math.isnan(v)] for row in table.tolist()]
        means = [sum(row) / len(row) for row in own if row]
        check(one, means, 10 * i, 10 * i + 9, sum(map(len, own)))


def test_a_table_of_one_stream_is_that_stream() -> None:
    stream = np.random.default_rng(0).exponential(2.0, 100)
    assert equal_bins(stream[None], 16) == equal_bins(stream, 16)
    assert doubling_bins(stream[None]) == doubling_bins(stream)


def test_losses_of_0_and_1_have_the_normal_interval_not_that_of_a_share() -> None:
    (one,) = equal_bins([0.0, 1.0, 1.0, 1.0])
    check(one, [0.0, 1.0, 1.0, 1.0], 0, 3, 4)


def test_one_token_has_no_interval_and_no_token_no_mean() -> None:
    one, none = equal_bins([3.0, math.nan], 1)
    assert (one.n, one.mean, one.low, one.high) == (1, 3.0, None, None)
    assert (none.n, none.mean, none.low, none.high) == (0, None, None, None)


def test_relative_is_to_the_first_bin() -> None:
    bins = equal_bins([2.0, 1.0, math.nan, 3.0], 1)
    assert relative(bins) == [0.0, -0.5, None, 0.5]
    assert relative(equal_bins([math.nan, 1.0], 1)) == [None, None], "a first bin without a mean"
    assert relative([]) == []


def test_a_permuted_bin_is_the_same_and_the_stream_stays_as_it_was() -> None:
    stream = np.random.default_rng(1).exponential(2.0, 64)
    kept = stream.copy()
    turned = np.concatenate([part[::-1] for part in np.split(stream, 4)])
    for one, other in zip(equal_bins(stream, 16), equal_bins(turned, 16), strict=True):
        assert (one.mean, one.low, one.high) == pytest.approx((other.mean, other.low, other.high), abs=1e-12)
    np.testing.assert_array_equal(stream, kept)


@pytest.mark.parametrize("wrong", [[], [[]], np.ones((2, 2, 2))])
def test_what_is_no_stream_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="a stream is"):
        doubling_bins(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"a stream is|at least one token"):
        equal_bins(wrong, 4)  # type: ignore[arg-type]


def test_a_bin_of_no_width_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        equal_bins([1.0], 0)
