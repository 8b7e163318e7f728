"""Memory: where in the context the model still answers, its gates and its clients' conflict by round, and the probe."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cotune.core.record import RoundRecord
from cotune.report import series
from cotune.report.html import Html, table, titled
from cotune.report.pages.cells import cells, strata
from cotune.report.pages.probe import probe
from cotune.report.plot import Choice, Columns, Json, Option, Page, Plot, css, label, when
from cotune.report.shown import COLOURS, Shown

DASHES = ("solid", "dash", "dot", "dashdot")
MEASURES = {"agreement": "Agreement", "cosine": "Mean cosine"}
# Groups of roles as diagnose/conflict.py names them, in the order of their colours.
ROLES = ("rule", "lora", "head", "full")


def memory(runs: Sequence[Shown]) -> Page | None:
    """Nothing for runs without cells, gates, memory rules or a probe: others show their conflict by round elsewhere."""
    if not any(_has_memory(run) for run in runs):
        return None
    columns: Columns = {}
    for run in runs:
        columns[f"{run.key}/rounds"] = [record.round for record in run.rounds]
    which = series.which(runs)
    blocks: list[Html | Plot] = [
        *cells(runs, which, columns),
        *_gates(runs, which, columns),
        *_conflict(runs, which, columns),
        *probe(runs, which, columns),
    ]
    return Page("memory", "Memory", blocks, columns, (which,)) if blocks else None


def _has_memory(run: Shown) -> bool:
    told = series.diagnostics([run])
    rules = any(name.startswith(series.GATE) or name.endswith("_rule") for name in told)
    return rules or run.memory is not None or any(strata(record) for record in run.rounds)


def _gates(runs: Sequence[Shown], which: Choice, columns: Columns) -> list[Plot]:
    """A line for each layer; nothing where no record tells of a gate."""
    told = {run.key: [name for name in series.diagnostics([run]) if name.startswith(series.GATE)] for run in runs}
    if not any(told.values()):
        return []
    figures, tables = {}, []
    for run in runs:
        names = told[run.key]
        for i, name in enumerate(names):
            columns[f"{run.key}/gate/{i}"] = series.finite(record.diagnostics.get(name) for record in run.rounds)
        layers = [f"layer {name.removeprefix(series.GATE)}" for name in names]
        lines = [line(run, layer, i, f"{run.key}/gate/{i}") for i, layer in enumerate(layers)]
        figures[run.key] = {"data": lines, "layout": layout(run, "Mean of |gate|", "tozero")}
        rows = [[record.round, *(record.diagnostics.get(name) for name in names)] for record in run.rounds]
        heads = ("Round", *map(titled, layers))
        tables += [table(f"Gates of {run.label}", heads, rows, data_when=when(run=run.key))] if names else []
    return [
        Plot(
            id="gates",
            title="How far the gates have opened",
            says="The mean size of each layer's gate in the committed theta, which starts at 0 where the memory starts "
            "closed; it says how much a layer lets its memory through, not whether that helps.",
            figures=figures,
            by="run",
            follows=(which,),
            tables=tables,
        )
    ]


def _conflict(runs: Sequence[Shown], which: Choice, columns: Columns) -> list[Plot]:
    """Agreement and mean cosine of the clients' updates, a line for each role; nothing where no record has them."""
    told = {run.key: _roles(run) for run in runs}
    known = {
        name: text for name, text in MEASURES.items() if any(name in pair for roles in told.values() for pair in roles)
    }
    if not known:
        return []
    figures, tables = {}, []
    for run in runs:
        roles = [role for role in ROLES if any(role == other for _, other in told[run.key])]
        for role in roles:
            for name in MEASURES:
                columns[f"{run.key}/conflict/{name}/{role}"] = _values(run, f"{name}_{role}")
            columns[f"{run.key}/conflict/floor/{role}"] = [_floor(record, role) for record in run.rounds]
        figures[run.key] = {"data": _conflict_traces(run, roles), "layout": layout(run, "", "normal")}
        tables += [_conflict_table(run, roles)] if roles else []
    options = [Option(name, text, {"yaxis.title.text": text}) for name, text in known.items()]
    return [
        Plot(
            id="conflict",
            title="How far the clients' updates agree",
            says="By role, over the clients that moved: agreement is the length of the mean update over the mean "
            "length, 1 when all point one way, and the dotted line is 1/√K, where K updates at right angles to each "
            "other and of one weight and length would be; it says how updates lie to each other, not which is right.",
            figures=figures,
            by="run",
            choices=(Choice("conflict", "Show", options),),
            follows=(which,),
            tables=tables,
        )
    ]


def _roles(run: Shown) -> set[tuple[str, str]]:
    """(measure, role) of every number about conflict that the records of a run hold."""
    pairs = {(name, role) for told in series.diagnostics([run]) for name, _, role in [told.partition("_")]}
    return {(name, role) for name, role in pairs if name in MEASURES and role in ROLES}


def _values(run: Shown, name: str) -> list[float | None]:
    return series.finite(record.diagnostics.get(name) for record in run.rounds)


def _floor(record: RoundRecord, role: str) -> float | None:
    """1/√K; None where fewer than two clients moved."""
    count = record.diagnostics.get(f"clients_{role}", 0.0)
    return 1 / math.sqrt(count) if count > 1 else None


def _conflict_traces(run: Shown, roles: Sequence[str]) -> list[Json]:
    lines = [line(run, role, ROLES.index(role), f"{run.key}/conflict/{{conflict}}/{role}") for role in roles]
    floors = {tuple(_floor(record, role) for record in run.rounds): role for role in reversed(roles)}
    at_right_angles = [
        {
            **line(run, "1/√K" if len(floors) == 1 else f"1/√K of {role}", 0, f"{run.key}/conflict/floor/{role}"),
            "mode": "lines",
            "line": {"width": 1.6, "dash": "dot", "color": css("muted")},
            "when": {"conflict": "agreement"},
        }
        for role in reversed(floors.values())
    ]
    return [*lines, *at_right_angles]


def _conflict_table(run: Shown, roles: Sequence[str]) -> Html:
    heads = ["Round"]
    for role in roles:
        heads += [f"Agreement, {role}", f"1/√K, {role}", f"Mean cosine, {role}", f"Mean update, {role}", f"K, {role}"]
    rows: list[list[object]] = []
    for record in run.rounds:
        row: list[object] = [record.round]
        for role in roles:
            told = record.diagnostics
            row += [told.get(f"agreement_{role}"), _floor(record, role), told.get(f"cosine_{role}")]
            count = told.get(f"clients_{role}")
            row += [told.get(f"update_{role}"), None if count is None else int(count)]
        rows.append(row)
    return table(f"Updates of the clients of {run.label}", heads, rows, data_when=when(run=run.key))


def line(run: Shown, name: str, slot: int, y: str) -> Json:
    """A run's numbers by round, in the colour and dash of a slot."""
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": label(name),
        "line": {
            "color": css(f"run-{slot % COLOURS}"),
            "width": 2,
            "dash": DASHES[slot // COLOURS % len(DASHES)],
        },
        "marker": {"size": 6},
        "hovertemplate": "%{y:.4g}",
        "points": True,
        "bind": {"x": f"{run.key}/rounds", "y": y},
    }


def layout(run: Shown, title: str, least: str) -> Json:
    """Lines of a run by round, with the axis' title and where it begins."""
    return {
        "height": 400,
        "xaxis": series.rounds_axis([run]),
        "yaxis": {"title": {"text": title}, "rangemode": least},
        "hovermode": "x unified",
        "hoverdistance": -1,
        "showlegend": True,
    }
