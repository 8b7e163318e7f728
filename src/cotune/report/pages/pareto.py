"""What each run reached against what it cost, and the front: the runs that no other beats for less.

The runs of a row of a comparison, one a seed, are one point: the mean of what they reached and of what they cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from cotune.core.record import Metric
from cotune.report import series
from cotune.report.html import Html, table
from cotune.report.plot import Choice, Columns, Json, Option, Plot, chosen, css, label, when
from cotune.report.shown import Shown

COSTS = {"bytes": "Training bytes", "flops": "FLOPs", "peak": "Peak memory in bytes", "seconds": "Seconds"}
_SHORT = {"bytes": "Bytes", "flops": "FLOPs", "peak": "Memory", "seconds": "Seconds"}


def costs(run: Shown) -> dict[str, float]:
    """What a run cost in all."""
    traffic = run.total("uplink_bytes") + run.total("downlink_bytes")
    return {"bytes": traffic, "flops": run.total("flops"), "peak": run.peak, "seconds": run.total("seconds")}


def front(points: Sequence[tuple[float, float]], less: bool) -> list[int]:
    """The positions of the points (cost, value) that no other beats, by cost; equal points stand or fall together."""
    placed = [(cost, value if less else -value) for cost, value in points]
    beaten = {
        mine for mine in placed for other in placed if other != mine and other[0] <= mine[0] and other[1] <= mine[1]
    }
    return sorted((i for i, mine in enumerate(placed) if mine not in beaten), key=placed.__getitem__)


@dataclass(frozen=True)
class Row:
    """One point: a run, or the runs of a row.

    Attributes:
        runs: one a seed.
        label: of the run, or the name of the row.
    """

    runs: Sequence[Shown]
    label: str

    @property
    def first(self) -> Shown:
        """Whose colour, symbol and key it has."""
        return self.runs[0]

    @property
    def key(self) -> str:
        """Names its columns."""
        return self.first.key

    @property
    def costs(self) -> dict[str, float]:
        """What its runs cost in all, on average."""
        each = [costs(run) for run in self.runs]
        return {cost: sum(one[cost] for one in each) / len(each) for cost in COSTS}

    def final(self, metric: str) -> Final | None:
        """What it reached; None where one of its runs was not scored."""
        rounds, ends = list[int](), list[Metric]()
        for run in self.runs:
            found = series.last_scored(run, metric)
            if found is None:
                return None
            rounds.append(found[0].round)
            ends.append(found[1])
        values = [end.value for end in ends]
        low, high = (ends[0].low, ends[0].high) if len(ends) == 1 else (min(values), max(values))
        return Final(sum(values) / len(values), low, high, sum(end.n for end in ends), rounds)


@dataclass(frozen=True)
class Final:
    """The mean over seeds of a metric at the end, its 95 % interval or the range over seeds, rows, and last rounds."""

    value: float
    low: float | None
    high: float | None
    n: int
    rounds: Sequence[int]


def rows_of(runs: Sequence[Shown]) -> list[Row]:
    """The runs of a row together, in the order of the first of each."""
    together: dict[str, list[Shown]] = {}
    for run in runs:
        together.setdefault(run.row, []).append(run)
    return [Row(ones, row if len(ones) > 1 else ones[0].label) for row, ones in together.items()]


def pareto(runs: Sequence[Shown], columns: Columns) -> list[Plot]:
    """The plot, from two scored rows on."""
    metrics, rows = series.global_metrics(runs), rows_of(runs)
    if len(rows) < 2 or not metrics:
        return []
    known = [cost for cost in COSTS if any(row.costs[cost] > 0 for row in rows)]
    if not known:
        return []
    for row in rows:
        spent = row.costs
        columns |= {f"{row.key}/cost/{cost}": [spent[cost] or None] for cost in known}  # 0 has no place on a log axis
        for metric in metrics:
            found = row.final(metric)
            for end in ("value", "low", "high"):
                columns[f"{row.key}/final/{metric}/{end}"] = series.finite([getattr(found, end) if found else None])
    tables = []
    for metric, cost in product(metrics, known):
        points = {row.key: point for row in rows if (point := _place(row.key, metric, cost, columns))}
        best = [list(points)[i] for i in front(list(points.values()), series.less_is_better(metric))]
        columns[f"front/{metric}/{cost}/x"] = [points[key][0] for key in best]
        columns[f"front/{metric}/{cost}/y"] = [points[key][1] for key in best]
        tables.append(_table(rows, metric, cost, best))
    several = any(len(row.runs) > 1 for row in rows)
    what = "row" if several else "run"
    seeds = "A point is a row, the mean over its seeds; whiskers reach from its lowest seed to its highest. "
    says = f"A ring marks a {what} that no other beats for less. Costs are on a logarithmic axis"
    says = f"{seeds}{says}." if several else f"{says}; whiskers are 95 % intervals."
    return [
        Plot(
            id="pareto",
            title="What it cost",
            says=says,
            figures={"": {"data": [_front(), *(_point(row) for row in rows)], "layout": _layout()}},
            choices=(
                Choice("final", "Final", series.options(metrics)),
                Choice("cost", "Against", [_option(cost) for cost in known]),
            ),
            tables=tables,
        )
    ]


def _option(cost: str) -> Option:
    return Option(cost, _SHORT[cost], {"xaxis.title.text": f"{COSTS[cost]} of the whole run"})


def _place(key: str, metric: str, cost: str, columns: Columns) -> tuple[float, float] | None:
    """(cost, value) of a point that has both."""
    x, y = columns[f"{key}/cost/{cost}"][0], columns[f"{key}/final/{metric}/value"][0]
    return None if x is None or y is None else (x, y)


def _layout() -> Json:
    return {
        "height": 420,
        "hovermode": "x",
        "xaxis": {"type": "log", "tickformat": "~s", "dtick": "D2"},
        "yaxis": {"title": {"text": chosen("final")}},
    }


def _front() -> Json:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": "front",
        "line": {"color": css("ink"), "width": 1.2, "dash": "dot", "shape": "hv"},
        "marker": {"size": 21, "symbol": "circle-open", "color": css("ink"), "line": {"width": 1.6}},
        "legendrank": 2000,
        "hoverinfo": "skip",
        "points": True,
        "bind": {"x": "front/{final}/{cost}/x", "y": "front/{final}/{cost}/y"},
    }


def _point(row: Row) -> Json:
    value = f"{row.key}/final/{{final}}"
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label(row.label),
        "marker": {
            "size": 12,
            "color": css(row.first.colour),
            "symbol": row.first.symbol,
            "line": {"color": css("surface"), "width": 1},
        },
        "hovertemplate": "%{y:.4g} for %{x:.4~s}",
        "points": True,
        "bind": {"x": f"{row.key}/cost/{{cost}}", "y": f"{value}/value"},
        "interval": [f"{value}/low", f"{value}/high"],
    }


def _table(rows: Sequence[Row], metric: str, cost: str, best: Sequence[str]) -> Html:
    heads = ("Run", series.title(metric), "Low", "High", "n", "At round", COSTS[cost], "On the front")
    cells: list[list[object]] = []
    for row in rows:
        found = row.final(metric)
        at = " to ".join(dict.fromkeys(map(str, (min(found.rounds), max(found.rounds))))) if found else None
        last = [found.value, found.low, found.high, found.n, int(at) if at and at.isdecimal() else at] if found else []
        cells.append([row.label, *(last or [None] * 5), row.costs[cost], row.key in best])
    return table(f"Final {metric} against {COSTS[cost].lower()}", heads, cells, data_when=when(final=metric, cost=cost))
