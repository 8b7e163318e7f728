"""Means over rows with their 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

Z = 1.959963984540054


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


def paired_interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """(mean, low, high) of the differences row by row: both models saw the same rows, so rows' difficulty cancels.

    Always the normal interval: Wilson's would take differences of 0 and 1 for shares, which are never below 0.
    """
    return _normal([a - b for a, b in zip(ours, theirs, strict=True)])
