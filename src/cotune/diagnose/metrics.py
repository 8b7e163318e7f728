"""Metrics of a round from the scores of rows: means, and the ratios of sums that a task names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cotune.core.record import SHARES, ClientMetric, Metric
from cotune.diagnose.drop import client_metric
from cotune.diagnose.interval import exp_ratio, mean_interval, ratio_interval

Ratios = Mapping[str, tuple[str, str]]


def finite(value: float | None) -> float | None:
    """A metric that is no number is no metric."""
    return value if value is not None and math.isfinite(value) else None


def global_metrics(
    scored: Mapping[str, Sequence[float]], ratios: Ratios, chance: Mapping[str, float]
) -> dict[str, Metric]:
    """Metric -> its mean over rows, or its ratio of sums over them, with a 95 % interval.

    Args:
        scored: metric -> one number a row.
        ratios: metric -> (above, below), as a task names them.
        chance: metric -> what guessing scores.
    """
    found = {name: (len(values), mean_interval(values)) for name, values in scored.items() if values}
    for name, (above, below) in ratios.items():
        if scored.get(above) and sum(scored[below]) > 0:
            found[name] = len(scored[above]), ratio_interval(scored[above], scored[below])
    for name in found.keys() & SHARES:  # a share of several answers a row is no proportion, and yet no more than all
        n, (value, low, high) = found[name]
        found[name] = n, (value, max(low, 0.0), min(high, 1.0))
    return {
        name: Metric(value=value, n=n, low=finite(low), high=finite(high), chance=chance.get(name))
        for name, (n, (value, low, high)) in found.items()
    }


def cell_metrics(
    scored: Mapping[str, Sequence[float]], cells: Sequence[Sequence[str]], chance: Mapping[str, float]
) -> dict[str, dict[str, Metric]]:
    """Share -> stratum -> its mean over the rows there, with a 95 % interval; strata as they first appear.

    Args:
        scored: metric -> one number a row.
        cells: the strata of each row, any number.
        chance: metric -> what guessing scores.
    """
    rows: dict[str, list[int]] = {}
    for row, of in enumerate(cells):
        for cell in of:
            rows.setdefault(cell, []).append(row)
    shares = {name: values for name, values in scored.items() if name in SHARES and values}
    found: dict[str, dict[str, Metric]] = {name: {} for name in shares if rows}
    for cell, there in rows.items():
        inside = {name: [values[row] for row in there] for name, values in shares.items()}
        for name, metric in global_metrics(inside, {}, chance).items():
            found[name][cell] = metric
    return found


def client_metrics(
    names: Sequence[str], ratios: Ratios, own: Mapping[str, float], federated: Mapping[str, float], n: int
) -> dict[str, ClientMetric]:
    """Metric -> a client's own model beside the aggregated one; a ratio of sums is that of the means over its rows.

    Args:
        names: of the means.
        ratios: metric -> (above, below), as a task names them.
        own: means of its own model, none where it did not train.
        federated: means of the aggregated model.
        n: how many rows.
    """
    before, after = (
        {**means, **{name: _ratio(means, *pair) for name, pair in ratios.items()}} for means in (own, federated)
    )
    return {
        name: client_metric(name, finite(before.get(name)), finite(after.get(name)), n) for name in (*names, *ratios)
    }


def _ratio(means: Mapping[str, float], above: str, below: str) -> float:
    top, bottom = finite(means.get(above)), finite(means.get(below))
    return exp_ratio(top, bottom) if top is not None and bottom else math.nan
