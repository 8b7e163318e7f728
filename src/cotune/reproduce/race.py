"""How much a row spends until it reaches a loss: curves over FLOPs, the first crossing, and ratios over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cotune.core.record import RoundRecord
from cotune.reproduce.tables import over_seeds


@dataclass(frozen=True)
class Curve:
    """A run's loss on test rows after each round, and what all its clients had computed until then."""

    flops: tuple[float, ...]
    losses: tuple[float, ...]

    @classmethod
    def of(cls, records: Sequence[RoundRecord]) -> Curve:
        """From the records of a run; rounds that were not scored are left out."""
        total, flops, losses = 0.0, list[float](), list[float]()
        for record in records:
            total += record.flops
            if "loss" in record.global_metrics:
                flops.append(total)
                losses.append(record.global_metrics["loss"].value)
        return cls(tuple(flops), tuple(losses))

    def reaches(self, loss: float) -> float | None:
        """FLOPs at the first crossing, along the straight line between two rounds; None where it never gets there."""
        for i, value in enumerate(self.losses):
            if value > loss:
                continue
            if i == 0:
                return self.flops[0]
            before, gone = self.losses[i - 1], self.flops[i - 1]
            return gone + (self.flops[i] - gone) * (before - loss) / (before - value)
        return None


def goals(rows: Sequence[Sequence[Curve]]) -> list[float]:
    """Under each seed, the lowest loss that all of these rows reach: a seed's start and rows are its own."""
    return [max(min(curve.losses) for curve in curves) for curves in zip(*rows, strict=True)]


def spent(curves: Sequence[Curve], losses: Sequence[float]) -> float | None:
    """The mean over seeds of the FLOPs until each seed's loss; None where one never gets there."""
    found = [curve.reaches(loss) for curve, loss in zip(curves, losses, strict=True)]
    known = [value for value in found if value is not None]
    return math.fsum(known) / len(known) if len(known) == len(found) else None


@dataclass(frozen=True)
class Ratio:
    """What a peer spends until a loss over what ours does.

    Attributes:
        value: the geometric mean over seeds; None where a run never gets there.
        by_seed: of each seed; None where one of the two never gets there.
        low: of the 95 % interval of the geometric mean over seeds, by Student's t; None without two seeds or more.
        high: of the same.
    """

    value: float | None
    by_seed: tuple[float | None, ...]
    low: float | None
    high: float | None


def ratio(ours: Sequence[Curve], theirs: Sequence[Curve], losses: Sequence[float]) -> Ratio:
    """Their FLOPs until each seed's loss over ours, seed by seed, and over seeds."""

    def between(mine: Curve, other: Curve, loss: float) -> float | None:
        here, there = mine.reaches(loss), other.reaches(loss)
        return there / here if here and there else None

    each = tuple(between(*three) for three in zip(ours, theirs, losses, strict=True))
    logs = [math.log(value) for value in each if value]
    if len(logs) < len(each):
        return Ratio(None, each, None, None)
    value, ends = math.exp(math.fsum(logs) / len(logs)), over_seeds(logs)
    return Ratio(value, each, *((None, None) if ends is None else map(math.exp, ends)))


def verdict(claim: str, found: Ratio, least: float) -> str:
    """Whether a ratio is `least` or more, in words, whichever way it falls."""
    seeds = ", ".join("–" if value is None else f"{value:.1f}" for value in found.by_seed)
    if found.value is None:
        return f"{claim}: not told, since a row never reaches the loss (by seed {seeds})."
    figure = f"{found.value:.1f} times (by seed {seeds}"
    figure += f"; 95 % over seeds {found.low:.1f} to {found.high:.1f})" if found.low and found.high else ")"
    said = "yes" if found.value >= least else "no"
    if said == "yes" and (found.low is None or found.low < least):
        said += ", though over other seeds it might not be"
    return f"{claim}: {said}, {figure}."
