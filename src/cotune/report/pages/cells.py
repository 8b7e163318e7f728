"""Where in the context the model still answers: shares of test rows by stratum, at the last round that has them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product

from cotune.core.record import HEAD, TAIL, Metric, RoundRecord
from cotune.report import series
from cotune.report.html import Html, number, table, tag, titled
from cotune.report.pages.convergence import chance, line
from cotune.report.pages.participation import by_client
from cotune.report.plot import Choice, Columns, Json, Option, Plot, chosen, css, height, when
from cotune.report.shown import Shown

_PLACE = re.compile(r"depth (\d+(?:\.\d+)?) · length (\d+)")
_GAP = re.compile(r"gap (\d+)")

Cells = Mapping[str, Metric]


def cells(runs: Sequence[Shown], which: Choice, columns: Columns) -> list[Html | Plot]:
    """A map of depth by length, a curve over the gap, and a table of whatever strata have other names."""
    names = list(dict.fromkeys(name for run in runs for name in _last(run)[1]))
    if not names:
        return []
    metric = Choice("cell_metric", "Metric", [Option(name, titled(name)) for name in names])
    by_place = [run for run in runs if any(_places(_cells(run, name)) for name in names)]
    by_gap = [run for run in runs if any(_gaps(_cells(run, name)) for name in names)]
    blocks: list[Html | Plot] = []
    if by_place:
        blocks.append(_map(by_place, names, which, metric, columns))
    if by_gap:
        blocks.append(_curve(by_gap, names, metric, bool(by_place), columns))
    return [*blocks, *_others(runs, names)]


def strata(record: RoundRecord) -> dict[str, Cells]:
    """Metric -> stratum -> share, of a record that has any but head and tail: those stand with the clients."""
    found = {
        name: {cell: one for cell, one in of.items() if cell not in (HEAD, TAIL)} for name, of in record.cells.items()
    }
    return {name: of for name, of in found.items() if of}


def _last(run: Shown) -> tuple[RoundRecord | None, Mapping[str, Cells]]:
    """The last record with strata, and what it says of them."""
    record = next((record for record in reversed(run.rounds) if strata(record)), None)
    return record, strata(record) if record else {}


def _cells(run: Shown, name: str) -> Cells:
    return _last(run)[1].get(name, {})


def _places(found: Cells) -> dict[tuple[str, int], Metric]:
    """(depth, length) -> share."""
    matches = ((_PLACE.fullmatch(cell), metric) for cell, metric in found.items())
    return {(match[1], int(match[2])): metric for match, metric in matches if match}


def _gaps(found: Cells) -> dict[int, Metric]:
    """Gap -> share, by gap."""
    matches = ((_GAP.fullmatch(cell), metric) for cell, metric in found.items())
    gaps = {int(match[1]): metric for match, metric in matches if match}
    return dict(sorted(gaps.items()))


def _said(metric: Metric) -> str:
    """What belongs to a share beside its value."""
    chance = "" if metric.chance is None else f", chance {number(metric.chance)}"
    return f"{series.interval(metric)}, n = {metric.n:,}{chance}"


def _map(runs: Sequence[Shown], names: Sequence[str], which: Choice, metric: Choice, columns: Columns) -> Plot:
    tables, most = [], 1
    for run, name in product(runs, names):
        found = _places(_cells(run, name))
        depths = sorted({depth for depth, _ in found}, key=float)
        lengths = sorted({length for _, length in found})
        most = max(most, len(depths))
        grid = [[found.get((depth, length)) for length in lengths] for depth in depths]
        key = f"{run.key}/place/{name}"
        columns[f"{key}/depth"], columns[f"{key}/length"] = depths, [f"{length:,}" for length in lengths]
        columns[f"{key}/value"] = [series.finite(one.value if one else None for one in row) for row in grid]
        columns[f"{key}/text"] = [[f"{one.value:.2f}<br>n = {one.n:,}" if one else "" for one in row] for row in grid]
        columns[f"{key}/note"] = [[_said(one) if one else "" for one in row] for row in grid]
        rows = [
            [length, float(depth), *_numbers(found[depth, length])]
            for length, depth in product(lengths, depths)
            if (depth, length) in found
        ]
        heads = ("Length", "Depth", titled(name), "Low", "High", "n", "Chance")
        caption = f"{titled(name)} of {run.label} by length and depth{_when(run)}"
        tables.append(table(caption, heads, rows, data_when=when(run=run.key, cell_metric=name)))
    return Plot(
        id="places",
        title="What is found, by how long the context is and where in it the answer lies",
        says="Test rows at the last round that scores them, by length in tokens and by depth, 0 at the start of the "
        "context; a cell has few rows, so its interval and its chance level, beside it on hovering and in the table, "
        "say how much a difference between cells means.",
        figures={run.key: {"data": [_heat(run)], "layout": _map_layout(most)} for run in runs},
        by="run",
        choices=(metric,),
        follows=(which,),
        tables=tables,
    )


def _heat(run: Shown) -> Json:
    key = f"{run.key}/place/{{cell_metric}}"
    return {
        "type": "heatmap",
        "bind": {
            "x": f"{key}/length",
            "y": f"{key}/depth",
            "z": f"{key}/value",
            "text": f"{key}/text",
            "customdata": f"{key}/note",
        },
        "texttemplate": "%{text}",
        "zmin": 0,
        "zmax": 1,
        "colorscale": [[0, css("heat-0")], [0.5, css("heat-1")], [1, css("heat-2")]],
        "xgap": 2,
        "ygap": 2,
        "hoverongaps": False,
        "hovertemplate": "depth %{y}, length %{x}<br>%{z:.4g}  %{customdata}<extra></extra>",
        "colorbar": {"thickness": 10, "outlinewidth": 0, "ticks": ""},
    }


def _map_layout(depths: int) -> Json:
    x = {"type": "category", "showgrid": False, "title": {"text": "Length in tokens"}}
    y = {**by_client(), "title": {"text": "Depth"}}
    return {"height": height(depths, each=56), "xaxis": x, "yaxis": y, "hovermode": "closest"}


def _curve(runs: Sequence[Shown], names: Sequence[str], metric: Choice, follows: bool, columns: Columns) -> Plot:
    rows: dict[str, list[list[object]]] = {name: [] for name in names}
    for run, name in product(runs, names):
        found, key = _gaps(_cells(run, name)), f"{run.key}/gap/{name}"
        columns[f"{key}/place"] = [gap + 1 for gap in found]  # a gap of 0 has no place on a log axis
        for end in ("value", "low", "high", "chance"):
            columns[f"{key}/{end}"] = series.finite(getattr(one, end) for one in found.values())
        columns[f"{key}/note"] = [f"gap {gap:,}: {_said(one)}" for gap, one in found.items()]
        rows[name] += [[run.label, _round(run), gap, *_numbers(one)] for gap, one in found.items()]
    guessed = chance([f"{run.key}/gap/{{cell_metric}}/chance" for run in runs])
    gaps = sorted({gap for run in runs for name in names for gap in _gaps(_cells(run, name))})
    x = {"title": {"text": "Gap between the last write and the first question"}, "type": "log"}
    layout = {
        "height": 400,
        "xaxis": {**x, "tickvals": [gap + 1 for gap in gaps], "ticktext": [f"{gap:,}" for gap in gaps]},
        "yaxis": {"title": {"text": chosen("cell_metric")}, "rangemode": "tozero"},
        "hovermode": "closest",
        "showlegend": True,
    }
    heads = ("Run", "Round", "Gap", "Value", "Low", "High", "n", "Chance")
    return Plot(
        id="gaps",
        title="What is recalled, by how long ago it was written",
        says="Test rows at the last round that scores them; whiskers are 95 % intervals over rows, and the dotted "
        "line is chance. A curve that stays up says that the value is still there, not by which part of the model.",
        figures={"": {"data": [guessed, *(_recall(run) for run in runs)], "layout": layout}},
        choices=() if follows else (metric,),
        follows=(metric,) if follows else (),
        tables=[table(f"{titled(name)} by gap", heads, rows[name], data_when=when(cell_metric=name)) for name in names],
    )


def _recall(run: Shown) -> Json:
    key = f"{run.key}/gap/{{cell_metric}}"
    drawn = line(run, f"{key}/place", f"{key}/value")
    return {
        **drawn,
        "mode": "lines+markers",
        "marker": {"size": 8, "symbol": run.symbol},
        "bind": {**drawn["bind"], "text": f"{key}/note"},
        "hovertemplate": "%{y:.4g}  %{text}",
        "interval": [f"{key}/low", f"{key}/high"],
    }


def _others(runs: Sequence[Shown], names: Sequence[str]) -> list[Html]:
    """A table of the strata that are neither a place nor a gap."""
    rows: list[list[object]] = []
    for run, name in product(runs, names):
        for cell, metric in _cells(run, name).items():
            if not (_PLACE.fullmatch(cell) or _GAP.fullmatch(cell)):
                rows.append([run.label, _round(run), titled(name), cell, *_numbers(metric)])
    if not rows:
        return []
    heads = ("Run", "Round", "Metric", "Rows", "Value", "Low", "High", "n", "Chance")
    return [tag("section", tag("h3", "By other kinds of rows"), table("Other kinds of test rows", heads, rows))]


def _numbers(metric: Metric) -> list[object]:
    return [metric.value, metric.low, metric.high, metric.n, metric.chance]


def _round(run: Shown) -> int | None:
    record, _ = _last(run)
    return record.round if record else None


def _when(run: Shown) -> str:
    """`, round 3`."""
    record, _ = _last(run)
    return f", round {record.round}" if record else ""
