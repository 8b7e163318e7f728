"""The loss along a stream of tokens: by bins that double from its start, and by bins of one width.

A stream is its negative log-likelihoods by token in nats, float: (tokens,), or (streams, tokens) for several of one
length; NaN where a token was not scored. Bins count tokens from 0, and `last` belongs to its bin.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from cotune.core.record import Bin
from cotune.diagnose.interval import paired_interval
from cotune.diagnose.metrics import finite

WIDEST = 1024


def doubling_bins(nll: ArrayLike) -> list[Bin]:
    """Bins of 1, 2, 4 … 1,024 tokens from the start: 0, 1 to 2, 3 to 6, …; what comes after 2,047 tokens is in none."""
    widths = [1 << power for power in range(WIDEST.bit_length())]
    return _bins(nll, [(width - 1, 2 * width - 1) for width in widths])


def equal_bins(nll: ArrayLike, width: int = WIDEST) -> list[Bin]:
    """Bins of `width` tokens over the whole stream; the last one holds what is left."""
    if width < 1:
        raise ValueError(f"a bin holds at least one token, not {width}")
    length = np.shape(nll)[-1]
    return _bins(nll, [(start, start + width) for start in range(0, length, width)])


def relative(bins: Sequence[Bin]) -> list[float | None]:
    """By bin, mean / mean of the first bin − 1; None where a bin has no mean, or the first one has none or 0."""
    first = bins[0].mean if bins else None
    return [one.mean / first - 1 if one.mean is not None and first else None for one in bins]


def _bins(nll: ArrayLike, edges: Iterable[tuple[int, int]]) -> list[Bin]:
    """The bins from `start` to before `end` that begin within the stream, cut where it ends.

    One stream has the normal 95 % interval over its scored tokens. Of several, the mean is that of their own means, and
    so is the interval: tokens of one stream are not independent, streams are.
    """
    table = np.asarray(nll, dtype=np.float64)
    if table.ndim not in (1, 2) or not table.size:
        raise ValueError(f"a stream is (tokens,) or (streams, tokens) and not empty, not {table.shape}")
    rows = table[None] if table.ndim == 1 else table
    found = []
    for start, end in edges:
        if start >= rows.shape[1]:
            break
        within = rows[:, start:end]
        scored = [row[~np.isnan(row)] for row in within]
        own = [float(row.mean()) for row in scored if row.size]
        values = scored[0].tolist() if len(rows) == 1 else own
        # The paired interval is the normal one whatever the values are: a loss of 0 or 1 is no share.
        mean, low, high = paired_interval(values, [0.0] * len(values)) if values else (None, None, None)
        n = sum(row.size for row in scored)
        last = start + within.shape[1] - 1
        found.append(Bin(first=start, last=last, n=n, mean=finite(mean), low=finite(low), high=finite(high)))
    return found
