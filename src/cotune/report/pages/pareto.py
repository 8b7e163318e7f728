"""What each run reached against what it cost, and the front: the runs that no other beats for less."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

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


def pareto(runs: Sequence[Shown], columns: Columns) -> list[Plot]:
    """The plot, from two scored runs on."""
    metrics = series.global_metrics(runs)
    if len(runs) < 2 or not metrics:
        return []
    known = [cost for cost in COSTS if any(costs(run)[cost] > 0 for run in runs)]
    if not known:
        return []
    for run in runs:
        spent = costs(run)
        columns |= {f"{run.key}/cost/{cost}": [spent[cost] or None] for cost in known}  # 0 has no place on a log axis
        for metric in metrics:
            found = series.last_scored(run, metric)
            for end in ("value", "low", "high"):
                columns[f"{run.key}/final/{metric}/{end}"] = series.finite([found and getattr(found[1], end)])
    tables = []
    for metric, cost in product(metrics, known):
        points = {run.key: point for run in runs if (point := _place(run, metric, cost, columns))}
        best = [list(points)[i] for i in front(list(points.values()), series.less_is_better(metric))]
        columns[f"front/{metric}/{cost}/x"] = [points[key][0] for key in best]
        columns[f"front/{metric}/{cost}/y"] = [points[key][1] for key in best]
        tables.append(_table(runs, metric, cost, best))
    return [
        Plot(
            id="pareto",
            title="What it cost",
            says="A ring marks a run that no other beats for less. Costs are on a logarithmic axis; whiskers are 95 % "
            "intervals.",
            figures={"": {"data": [_front(), *(_point(run) for run in runs)], "layout": _layout()}},
            choices=(
                Choice("final", "Final", series.options(metrics)),
                Choice("cost", "Against", [_option(cost) for cost in known]),
            ),
            tables=tables,
        )
    ]


def _option(cost: str) -> Option:
    return Option(cost, _SHORT[cost], {"xaxis.title.text": f"{COSTS[cost]} of the whole run"})


def _place(run: Shown, metric: str, cost: str, columns: Columns) -> tuple[float, float] | None:
    """(cost, value) of a run that has both."""
    x, y = columns[f"{run.key}/cost/{cost}"][0], columns[f"{run.key}/final/{metric}/value"][0]
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


def _point(run: Shown) -> Json:
    value = f"{run.key}/final/{{final}}"
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label(run.label),
        "marker": {
            "size": 12,
            "color": css(run.colour),
            "symbol": run.symbol,
            "line": {"color": css("surface"), "width": 1},
        },
        "hovertemplate": "%{y:.4g} for %{x:.4~s}",
        "points": True,
        "bind": {"x": f"{run.key}/cost/{{cost}}", "y": f"{value}/value"},
        "interval": [f"{value}/low", f"{value}/high"],
    }


def _table(runs: Sequence[Shown], metric: str, cost: str, best: Sequence[str]) -> Html:
    heads = ("Run", series.title(metric), "Low", "High", "n", "At round", COSTS[cost], "On the front")
    rows: list[list[object]] = []
    for run in runs:
        found = series.last_scored(run, metric)
        last = [found[1].value, found[1].low, found[1].high, found[1].n, found[0].round] if found else [None] * 5
        rows.append([run.label, *last, costs(run)[cost], run.key in best])
    return table(f"Final {metric} against {COSTS[cost].lower()}", heads, rows, data_when=when(final=metric, cost=cost))
