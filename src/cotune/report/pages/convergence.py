"""Convergence: what was reached, by round or for what it cost, and which runs nobody beats for less."""

from __future__ import annotations

from collections.abc import Sequence

from cotune.report import series
from cotune.report.html import Html, table
from cotune.report.pages.pareto import pareto
from cotune.report.plot import Choice, Columns, Json, Page, Plot, chosen, css, label
from cotune.report.shown import Shown

MARKED = 60  # rounds; more points than these are a line alone
BAND = 0.18  # how opaque


def convergence(runs: Sequence[Shown]) -> Page | None:
    """Curves of every number that the records hold, and the front of final value against cost."""
    values = series.by_round(runs)
    if not values:
        return None
    columns: Columns = {}
    for run in runs:
        columns |= series.columns(run, values)
    metric = Choice("metric", "Show", series.options(values))
    over = Choice("x", "Over", series.axes(runs))
    band = BAND if len(runs) <= 2 else min(BAND / 2, BAND * 2 / len(runs))  # many of them lie on each other
    traces = [trace for run in runs for trace in _band(run, band)]
    traces.append(chance([f"{run.key}/{{metric}}/chance" for run in runs]))
    traces += [_curve(run) for run in runs]
    curves = Plot(
        id="curves",
        title="What was reached",
        says="Bands are 95 % intervals over test rows, the dotted line is chance, and a cross is an abandoned round.",
        figures={"": {"data": traces, "layout": {"height": 440, "yaxis": {"title": {"text": chosen("metric")}}}}},
        choices=(metric, over),
        tables=(_curves_table(runs, values),),
    )
    return Page("convergence", "Convergence", [curves, *pareto(runs, columns)], columns)


def line(run: Shown, x: str, y: str) -> Json:
    """The curve of one run through two columns."""
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(run.rounds) <= MARKED else "lines",
        "name": label(run.label),
        "legendgroup": run.key,
        "line": {"color": css(run.colour), "width": 2.2, "dash": run.dash},
        "marker": {"size": 7},
        "points": True,
        "bind": {"x": x, "y": y},
    }


def _curve(run: Shown) -> Json:
    """The line of what is chosen, crossed where a round was abandoned; with whiskers when it is a single point."""
    y = f"{run.key}/{{metric}}"
    drawn = line(run, _x(run), y)
    more = {"text": f"{y}/note", "marker.symbol": f"{run.key}/symbol"}
    ends = {"interval": [f"{y}/low", f"{y}/high"], "alone": True}
    return {**drawn, "bind": {**drawn["bind"], **more}, "hovertemplate": "%{y:.4g}  %{text}", **ends}


def _edge(run: Shown, end: str) -> Json:
    return {
        "type": "scatter",
        "mode": "lines",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
        "legendgroup": run.key,
        "points": True,
        "bind": {"x": _x(run), "y": f"{run.key}/{{metric}}/{end}"},
    }


def _band(run: Shown, alpha: float) -> list[Json]:
    return [_edge(run, "low"), {**_edge(run, "high"), "fill": "tonexty", "fillcolor": css(run.colour, alpha)}]


def chance(across: list[str]) -> Json:
    """The dotted line of what guessing scores, through these columns."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "chance",
        "legendrank": 2000,
        "hovertemplate": "%{y:.4g}",
        "line": {"width": 1.6, "dash": "dot", "color": css("muted")},
        "across": across,
    }


def _x(run: Shown) -> str:
    return f"{run.key}/x/{{x}}"


def _curves_table(runs: Sequence[Shown], values: dict[str, series.Value]) -> Html:
    """A row for each round of each run, with every number that can be drawn."""
    tested = {name for run in runs for record in run.rounds for name in series.tested(record)}
    axes = [option for option in series.axes(runs) if option.value != "round"]
    heads = ["Run", "Round", *(f"{axis.label} so far" for axis in axes)]
    for name in values:
        heads += [series.title(name), *(["Low", "High", "n", "Chance"] if name in tested else [])]
    rows: list[list[object]] = []
    for run in runs:
        spent = series.spent(run)
        for i, record in enumerate(run.rounds):
            row: list[object] = [run.label, record.round, *(spent[axis.value][i] for axis in axes)]
            for name, value in values.items():
                row.append(value(record))
                if name in tested:
                    metric = series.tested(record).get(name)
                    row += [metric.low, metric.high, metric.n, metric.chance] if metric else [None] * 4
            rows.append(row)
    return table("Every number by round", heads, rows, id="table-curves")
