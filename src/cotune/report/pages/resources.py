"""What each round took: seconds, memory and FLOPs."""

from __future__ import annotations

from collections.abc import Sequence

from cotune.report import series
from cotune.report.html import table
from cotune.report.pages.convergence import line
from cotune.report.plot import Choice, Columns, Json, Option, Plot
from cotune.report.shown import Shown, counted

FIELDS = {"seconds": "Seconds", "peak_bytes": "Peak memory in bytes", "flops": "FLOPs"}
_SHORT = {"seconds": "Seconds", "peak_bytes": "Memory", "flops": "FLOPs"}


def resources(runs: Sequence[Shown], columns: Columns) -> list[Plot]:
    """A curve for each run; nothing when no record counts any of it."""
    known = [field for field in FIELDS if any(run.total(field) for run in runs)]
    if not known:
        return []
    rows: list[list[object]] = []
    for run in runs:
        spent = {field: [counted(r, field) if run.total(field) else None for r in run.rounds] for field in known}
        columns |= {f"{run.key}/spent/{field}": series.finite(values) for field, values in spent.items()}
        rows += [[run.label, r.round, *values] for r, *values in zip(run.rounds, *spent.values(), strict=True)]
    traces = [_line(run) for run in runs]
    return [
        Plot(
            id="resources",
            title="Time and memory",
            says="Of each round as the server saw it; memory is the largest resident size of its process.",
            figures={"": {"data": traces, "layout": _layout(runs)}},
            choices=(Choice("spent", "Show", [_option(field) for field in known]),),
            tables=(table("Time and memory by round", ("Run", "Round", *(FIELDS[field] for field in known)), rows),),
        )
    ]


def _option(field: str) -> Option:
    form = "" if field == "seconds" else "~s"
    return Option(field, _SHORT[field], {"yaxis.title.text": f"{FIELDS[field]}, a round", "yaxis.tickformat": form})


def _line(run: Shown) -> Json:
    marker = {"size": 7, "symbol": run.symbol}
    return {
        **line(run, f"{run.key}/rounds", f"{run.key}/spent/{{spent}}"),
        "marker": marker,
        "hovertemplate": "%{y:,.4~r}",
    }


def _layout(runs: Sequence[Shown]) -> Json:
    return {
        "height": 380,
        "xaxis": series.rounds_axis(runs),
        "yaxis": {"rangemode": "tozero"},
        "hovermode": "x unified",
        "hoverdistance": -1,
    }
