"""Means over rows, and ratios of sums over rows, with their 95 % intervals."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

Z = 1.959963984540054
_LARGEST = math.log(sys.float_info.max)


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(mean, low, high): Wilson's interval where every value is 0 or 1, the normal one elsewhere; needs one value."""
    if any(value not in (0.0, 1.0) for value in values):
        return _normal(values)
    n = len(values)
    mean = math.fsum(values) / n
    centre = (mean + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(mean * (1 - mean) / n + Z * Z / (4 * n * n))
    return mean, centre - half, centre + half


def _normal(values: Sequence[float]) -> tuple[float, float, float]:
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return mean, -math.inf, math.inf
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = Z * deviation / math.sqrt(n)
    return mean, mean - half, mean + half


def exp_ratio(above: float, below: float) -> float:
    """exp(above / below): the perplexity of a sum of −log p over a count of tokens; infinite past the largest float."""
    exponent = above / below
    return math.exp(exponent) if exponent < _LARGEST else math.inf


def ratio_interval(above: Sequence[float], below: Sequence[float]) -> tuple[float, float, float]:
    """(exp(Σ above / Σ below), low, high): the ratio R by linearisation over rows, then its ends through exp.

    The rows are drawn, and with them both sums: var(R) ≈ n / (n − 1) · Σ (above − R · below)² / (Σ below)². Cochran
    (1977), Sampling Techniques, section 2.11.
    """
    n, total = len(above), math.fsum(below)
    ratio = math.fsum(above) / total
    if n == 1:
        return exp_ratio(ratio, 1.0), 0.0, math.inf
    square = math.fsum((a - ratio * b) ** 2 for a, b in zip(above, below, strict=True))
    half = Z * math.sqrt(n / (n - 1) * square) / total
    return exp_ratio(ratio, 1.0), exp_ratio(ratio - half, 1.0), exp_ratio(ratio + half, 1.0)


def paired_interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """(mean, low, high) of the differences row by row: both models saw the same rows, so rows' difficulty cancels.

    Always the normal interval: Wilson's would take differences of 0 and 1 for shares, which are never below 0.
    """
    return _normal([a - b for a, b in zip(ours, theirs, strict=True)])
