"""What rows that two models were both scored on say about their difference, and what they could say at all.

A table of differences is (rows,) or (rows, seeds), NaN where a seed did not score a row. Its mean is the mean over
seeds of the mean over rows. A row is drawn, or turned, with all its seeds: what makes it hard or easy counts once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cotune.diagnose.interval import Z

Array = NDArray[np.float64]
RESAMPLES = 2000
EXACT = 1000  # rows up to which McNemar's test is exact
POWER_Z = 0.8416212335729143  # the normal quantile of 80 % power
LOWER_IS_BETTER = frozenset({"loss", "nll", "perplexity"})
_PORTION = 2**20  # draws at once


def direction(metric: str) -> int:
    """1 where a higher metric is better, −1 where a lower one is."""
    return -1 if metric in LOWER_IS_BETTER else 1


def paired_bootstrap(
    differences: ArrayLike, generator: np.random.Generator, resamples: int = RESAMPLES
) -> tuple[float, float, float]:
    """(mean, low, high): the 95 % interval of the bootstrap over rows.

    The percentile interval, expanded for few rows (Hesterberg 2015, The American Statistician 69, 371-386), since the
    plain one takes the rows' own spread for the population's.
    """
    values, scored = _table(differences)
    means = np.empty(resamples)
    for portion in _portions(len(values), resamples):
        rows, size = len(values), portion.stop - portion.start
        drawn = generator.integers(0, rows, (size, rows)) + rows * np.arange(size)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=size * rows).reshape(size, rows).astype(float)
        means[portion] = _mean(counts @ values, counts @ scored)
    tail = _tail(len(values))
    low, high = np.quantile(means, (tail, 1 - tail))
    return float(_mean(values.sum(0), scored.sum(0))), float(low), float(high)


def sign_flip(differences: ArrayLike, generator: np.random.Generator, resamples: int = RESAMPLES) -> float:
    """The two-sided p-value of no difference: how often a mean as far from zero comes of turning rows at random.

    Exact, up to the resamples, however few rows differ. The bootstrap is not: where four rows of a hundred differ, all
    in one direction, its interval excludes zero, though chance does that one time in eight.
    """
    values, scored = _table(differences)
    shares = (values / np.maximum(scored.sum(0), 1)).mean(1)
    shares = shares[shares != 0]
    bound = abs(shares.sum()) * (1 - 1e-12)
    as_far = 0
    for portion in _portions(len(shares), resamples):
        signs = generator.integers(0, 2, (portion.stop - portion.start, len(shares))) * 2.0 - 1
        as_far += int((np.abs(signs @ shares) >= bound).sum())
    return (1 + as_far) / (1 + resamples)


def mcnemar(ours: int, theirs: int) -> float:
    """McNemar's two-sided p-value of no difference, from the rows that one model alone, or the other, has right.

    min(1, 2 · P[Binomial(ours + theirs, 1/2) ≤ the smaller]), which is exact; of more than a thousand rows the normal
    limit with its correction of 1, erfc(√((|ours − theirs| − 1)² / (2 · (ours + theirs)))). McNemar (1947),
    Psychometrika 12, 153-157.
    """
    n, fewer = ours + theirs, min(ours, theirs)
    if n <= EXACT:
        return min(1.0, 2 * sum(math.comb(n, k) for k in range(fewer + 1)) / (1 << n))
    return math.erfc(math.sqrt(max(0, abs(ours - theirs) - 1) ** 2 / (2 * n)))


def detectable(differences: ArrayLike) -> float:
    """(1.96 + 0.84) · sd/√n: the smallest true difference that these rows show four times in five at the 5 % level.

    Over several seeds, sd/√n is the standard error of the mean over seeds, a row's seeds taken together.
    """
    values, scored = _table(differences)
    count = scored.sum(0)
    rows = len(values)
    if rows < 2:
        return math.inf
    apart = (scored * (values - values.sum(0) / np.maximum(count, 1)) / np.maximum(count, 1)).mean(1)
    return (Z + POWER_Z) * float(np.sqrt(np.square(apart).sum() * rows / (rows - 1)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: those below 5 % are wrong together at most one time in twenty."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def _table(differences: ArrayLike) -> tuple[Array, Array]:
    """(values, scored), both (rows, seeds): 0 in both where a seed did not score a row."""
    table = np.asarray(differences, dtype=np.float64)
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2 or table.size == 0:
        raise ValueError(f"differences are (rows,) or (rows, seeds) and not empty, not {table.shape}")
    scored = ~np.isnan(table)
    return np.where(scored, table, 0.0), scored.astype(float)


def _mean(sums: Array, counts: Array) -> Array:
    """The mean over seeds, the last axis, of sum / count; a seed that has no row in a resample is left out of it."""
    there = counts > 0
    means: Array = (np.where(there, sums, 0.0) / np.where(there, counts, 1.0)).sum(-1) / there.sum(-1)
    return means


def _tail(rows: int) -> float:
    """Φ(−√(n/(n−1)) · t), t by its expansion in 1/(n−1): what is cut off each end; 2.5 % for many rows."""
    free = max(1, rows - 1)
    t = Z + (Z**3 + Z) / (4 * free)
    return NormalDist().cdf(-math.sqrt((free + 1) / free) * t)


def _portions(rows: int, resamples: int) -> Iterator[slice]:
    """Slices of 0..resamples-1 of about a million draws."""
    size = max(1, _PORTION // max(1, rows))
    for start in range(0, resamples, size):
        yield slice(start, min(start + size, resamples))
