"""Beside the mean: the clients that fare worst, and the rows of rare classes apart from those of common ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cotune.core.record import HEAD, TAIL, ClientMetric
from cotune.report import series
from cotune.report.html import Html, table, tag, titled
from cotune.report.shown import Shown

WORST = 0.25  # of the clients


def beside_the_mean(runs: Sequence[Shown], names: Sequence[str]) -> Html:
    """Mean, worst client and worst quarter of every run, at its last scored round."""
    rows: list[list[object]] = []
    for run in runs:
        for name in names:
            record = next((record for record in reversed(run.rounds) if series.scored(record, name)), None)
            if record is None:
                continue
            found = {client: one for client, one in series.scored(record, name).items() if one.federated is not None}
            rows.append([run.label, titled(name), record.round, *_tail_cells(found, series.less_is_better(name))])
    heads = (
        "Run",
        "Metric",
        "At round",
        "Clients",
        "Mean",
        "Worst quarter",
        "Worst",
        "Worst client",
        "Mean drop",
        "Largest drop",
    )
    return tag(
        "section",
        tag("h3", "Beside the mean"),
        tag(
            "p",
            "Aggregated models on held-back rows at the last scored round: the mean over clients, the mean over the "
            "worst quarter of them, and the worst one.",
        ),
        table("Mean, worst quarter and worst client", heads, rows, id="table-tail"),
    )


def _tail_cells(found: dict[str, ClientMetric], less: bool) -> list[object]:
    ordered = sorted(found, key=lambda client: (found[client].federated or 0.0) * (-1 if less else 1))
    values = [found[client].federated or 0.0 for client in ordered]
    drops = [one.drop for one in found.values() if one.drop is not None]
    if not values:
        return [0, *[None] * 6]
    tail = values[: math.ceil(WORST * len(values))]
    mean_drop = sum(drops) / len(drops) if drops else None
    return [
        len(values),
        sum(values) / len(values),
        sum(tail) / len(tail),
        values[0],
        ordered[0],
        mean_drop,
        max(drops, default=None),
    ]


def head_and_tail(runs: Sequence[Shown]) -> list[Html]:
    """Shares of test rows of common and of rare classes, and who has the rare ones; nothing without a long tail."""
    rows: list[list[object]] = []
    holders: list[list[object]] = []
    for run in runs:
        record = next(
            (r for r in reversed(run.rounds) if any({HEAD, TAIL} & {*cells} for cells in r.cells.values())), None
        )
        for name, cells in record.cells.items() if record else ():
            for stratum in (HEAD, TAIL):
                if record and (one := cells.get(stratum)) is not None:
                    figures = [one.value, one.low, one.high, one.n, one.chance]
                    rows.append([run.label, record.round, titled(name), stratum, *figures])
        known = run.about.get("data", {}).get("tail", {}).get("classes", {})
        holders += [[run.label, name, len(clients), ", ".join(clients)] for name, clients in known.items()]
    if not rows and not holders:
        return []
    heads = ("Run", "Round", "Metric", "Rows", "Value", "Low", "High", "n", "Chance")
    said = (
        "Test rows of the classes that all clients have (head) and of the rare ones that few clients have (tail), at "
        "the last scored round, with 95 % intervals over rows; a mean over both says little of the tail."
    )
    blocks = [table("Head and tail of the test rows", heads, rows, id="table-head-tail")] if rows else []
    blocks.append(table("Who has the rare classes", ("Run", "Class", "Clients", "Which"), holders, id="table-holders"))
    return [tag("section", tag("h3", "Head and tail"), tag("p", said), *blocks)]
