"""Whether one measure goes with another: Spearman's rank correlation, with an interval over rows and seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cotune.core.seeds import derive, numpy_generator

Grid = NDArray[np.float64]  # (rows, seeds)
RESAMPLES = 2000


@dataclass(frozen=True)
class Correlation:
    """A rank correlation, or a difference of two, with its 95 % interval; None where nothing varies."""

    value: float | None
    low: float | None
    high: float | None

    @property
    def side(self) -> int:
        """1 or −1 where the interval excludes 0, else 0."""
        if self.low is None or self.high is None:
            return 0
        return int(self.low > 0) - int(self.high < 0)


def spearman(left: Grid, right: Grid) -> float | None:
    """Pearson's correlation of the ranks of two grids, equal values sharing their mean rank; None if one is constant.

    Cells that are NaN in either grid are left out of both.
    """
    value = float(_each(left.reshape(1, -1), right.reshape(1, -1))[0])
    return None if np.isnan(value) else value


def correlations(
    measures: Mapping[str, Grid], score: Grid, ours: str, seed: int
) -> tuple[dict[str, Correlation], dict[str, Correlation]]:
    """Name -> the rank correlation of each measure with the score; and by how much that of `ours` is above each other.

    Both over all rows and seeds, and in the same resamples.
    """
    drawn = _drawn(measures, score, seed)
    whole = {name: spearman(grid, score) for name, grid in measures.items()}
    ahead, own = {}, whole[ours]
    for name, other in whole.items():
        if name != ours:
            more = None if own is None or other is None else own - other
            ahead[name] = _interval(more, drawn[ours] - drawn[name])
    return {name: _interval(value, drawn[name]) for name, value in whole.items()}, ahead


def _drawn(measures: Mapping[str, Grid], score: Grid, seed: int) -> dict[str, Grid]:
    """Name -> the correlation in each resample, NaN where nothing varies; rows and seeds are drawn each by itself.

    Cells of one row, or of one seed, are alike: drawing cells would take them for as many independent ones.
    """
    draw = numpy_generator(derive(seed, "ranks"))
    rows, seeds = score.shape
    places = draw.integers(0, rows, (RESAMPLES, rows, 1)), draw.integers(0, seeds, (RESAMPLES, 1, seeds))
    scores = score[places].reshape(RESAMPLES, -1)
    return {name: _each(grid[places].reshape(RESAMPLES, -1), scores) for name, grid in measures.items()}


def _interval(value: float | None, drawn: Grid) -> Correlation:
    known = drawn[~np.isnan(drawn)]
    if value is None or not len(known):
        return Correlation(value, None, None)
    low, high = np.quantile(known, (0.025, 0.975))
    return Correlation(value, float(low), float(high))


def _each(left: Grid, right: Grid) -> Grid:
    """The rank correlation of every row of two tables (resamples, cells); NaN where one of them is constant."""
    known = ~(np.isnan(left) | np.isnan(right))
    ours, theirs = (_ranks(values, known) for values in (left, right))
    size = np.sqrt((ours**2).sum(-1) * (theirs**2).sum(-1))
    with np.errstate(invalid="ignore"):  # 0 / 0 where nothing varies
        found: Grid = (ours * theirs).sum(-1) / size
    return found


def _ranks(values: Grid, known: NDArray[np.bool_]) -> Grid:
    """The rank of each known cell of a row, minus their mean; equal values share their mean rank, others are 0."""
    one, other = values[:, :, None], values[:, None, :]
    there = known[:, None, :]
    places = (there & (other < one)).sum(-1) + ((there & (other == one)).sum(-1) + 1) / 2
    count = np.maximum(known.sum(-1, keepdims=True), 1)
    shifted: Grid = np.where(known, places - np.where(known, places, 0).sum(-1, keepdims=True) / count, 0.0)
    return shifted
