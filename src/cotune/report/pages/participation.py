"""Who was asked in each round, who counted, and who did not, by code."""

from __future__ import annotations

from collections.abc import Sequence

from cotune.core.record import RoundRecord
from cotune.report import series
from cotune.report.html import Html, table
from cotune.report.plot import Choice, Columns, Json, Plot, css, height, label, when
from cotune.report.shown import Shown

ACCEPTED, FUTILE, SILENT = "counted", "round abandoned", "asked, no word"


def participation(runs: Sequence[Shown], which: Choice, columns: Columns) -> Plot:
    """A strip of states by client and round."""
    figures = {}
    for run in runs:
        states = _states(run)
        number = {state: i for i, state in enumerate(states)}
        fates = [_fates(record) for record in run.rounds]
        columns[f"{run.key}/fate"] = [
            [number[fate[client]] if client in fate else None for fate in fates] for client in run.clients
        ]
        columns.setdefault(f"{run.key}/rounds", [record.round for record in run.rounds])
        figures[run.key] = _figure(run, states)
    return Plot(
        id="participation",
        title="Who took part",
        says="A client that was asked either counted, or was dropped with a code; blank where it was not asked.",
        figures=figures,
        by="run",
        follows=(which,),
        tables=[_table(run) for run in runs],
    )


def _fates(record: RoundRecord) -> dict[str, str]:
    """Client -> what became of it in a round."""
    fates = dict.fromkeys(record.cohort.selected, SILENT)
    fates |= dict.fromkeys(record.cohort.accepted, FUTILE if record.abandoned else ACCEPTED)
    for code, dropped in record.cohort.dropped.items():
        fates |= dict.fromkeys(dropped, code)
    return fates


def _states(run: Shown) -> list[str]:
    """Every state that occurs, those of replies first, then codes."""
    found = {fate for record in run.rounds for fate in _fates(record).values()}
    first = [state for state in (ACCEPTED, FUTILE, SILENT) if state in found]
    return [*first, *sorted(found - {ACCEPTED, FUTILE, SILENT})]


def _figure(run: Shown, states: Sequence[str]) -> Json:
    known = {ACCEPTED: css("good"), FUTILE: css("good", 0.35), SILENT: css("muted", 0.4)}
    codes = [state for state in states if state not in known]
    colours = {**known, **{code: css(f"bad-{i % 4}") for i, code in enumerate(codes)}}
    count = max(len(states), 1)
    scale = [[place / count, colours[state]] for i, state in enumerate(states) for place in (i, i + 1)]
    few = len(run.clients) * len(run.rounds) <= 2000
    heat = {
        "type": "heatmap",
        "bind": {"x": f"{run.key}/rounds", "y": f"{run.key}/clients", "z": f"{run.key}/fate"},
        "zmin": -0.5,
        "zmax": count - 0.5,
        "colorscale": scale or None,
        "showscale": False,
        "xgap": 2 if few else 0,
        "ygap": 2 if few else 0,
        "hoverongaps": False,
        "hovertemplate": "%{y}, round %{x}<extra></extra>",
    }
    keys = [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [None],
            "y": [None],
            "name": label(state),
            "marker": {"symbol": "square", "size": 11, "color": colours[state]},
            "hoverinfo": "skip",
        }
        for state in states
    ]
    layout = {
        "height": height(len(run.clients)),
        "showlegend": True,
        "hovermode": "closest",
        "xaxis": {**series.rounds_axis([run]), "showgrid": False},
        "yaxis": by_client(),
    }
    return {"data": [heat, *keys], "layout": layout}


def by_client() -> Json:
    """The layout of an axis with a place for each client, the first on top."""
    return {"type": "category", "autorange": "reversed", "showgrid": False, "ticks": ""}


def _table(run: Shown) -> Html:
    rows: list[list[object]] = []
    for record in run.rounds:
        cohort = record.cohort
        dropped = "; ".join(f"{code}: {', '.join(clients)}" for code, clients in sorted(cohort.dropped.items()))
        lost = sum(map(len, cohort.dropped.values()))
        rows.append(
            [
                record.round,
                len(cohort.selected),
                len(cohort.accepted),
                lost,
                ", ".join(cohort.accepted) or None,
                dropped or None,
                record.abandoned,
            ]
        )
    heads = (
        "Round",
        "Asked",
        "Accepted",
        "Dropped",
        "Who was accepted",
        "Who was dropped",
        "Why the round was abandoned",
    )
    return table(f"Cohorts of {run.label}", heads, rows, data_when=when(run=run.key))
