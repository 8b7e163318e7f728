"""Who holds what: the rows of each client, by class, or by what they are for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cotune.report.html import Html, table, tag
from cotune.report.pages.participation import by_client
from cotune.report.plot import Choice, Columns, Json, Option, Plot, css, height, label, labels, when
from cotune.report.shown import COLOURS, Shown

FEW = 60  # clients; between the bars of more there is no gap
CLASSES = 7  # with a colour of their own; the rest are one


@dataclass(frozen=True)
class Stack:
    """One piece of every bar.

    Attributes:
        by: 'label' or 'use'.
        name: of the piece.
        colour: a CSS variable.
        rows: of each client.
    """

    by: str
    name: str
    colour: str
    rows: Sequence[int]


def holdings(runs: Sequence[Shown], which: Choice, columns: Columns) -> list[Html | Plot]:
    """Bars of rows by client; a sentence when no run left a word about its data."""
    told = [run for run in runs if _sizes(run)]
    if not told:
        return [tag("p", "Nothing is known about the clients' rows.", class_="empty")]
    figures = {}
    for run in told:
        columns[f"{run.key}/holders"] = labels([client for client in run.clients if client in _sizes(run)])
        stacks = [*_by_label(run), *_by_use(run)]
        columns |= {f"{run.key}/holds/{i}": stack.rows for i, stack in enumerate(stacks)}
        figures[run.key] = _figure(run, stacks)
    by_label = [Option("label", "Class")] if any(_by_label(run) for run in told) else []
    return [
        Plot(
            id="holdings",
            title="Who holds what",
            says="Rows of each client by class, training and held-back rows together; or by what they are for.",
            figures=figures,
            by="run",
            choices=(Choice("holds", "By", [*by_label, Option("use", "Use")]),),
            follows=(which,),
            tables=[_table(run) for run in told],
        )
    ]


def _sizes(run: Shown) -> dict[str, tuple[int, int]]:
    """Client -> rows to train on, rows held back."""
    return {client: (about["rows"], about["held"]) for client, about in run.about.get("clients", {}).items()}


def _counts(run: Shown) -> dict[str, list[int]]:
    """Client -> rows of each class; empty where rows have none."""
    counts = run.about.get("data", {}).get("labels")
    return dict(counts) if isinstance(counts, dict) else {}


def _class_names(run: Shown, count: int) -> list[str]:
    """The names of the classes where the run tells them, else their numbers."""
    names = run.about.get("labels") or []
    return [str(names[number]) if number < len(names) else f"class {number}" for number in range(count)]


def _by_label(run: Shown) -> list[Stack]:
    """The largest classes, in their own order, and the rest together."""
    counts = _counts(run)
    if not counts:
        return []
    rows = [counts.get(client, []) for client in run.clients if client in _sizes(run)]
    number_of = max(map(len, counts.values()))
    by_class = [[row[number] if number < len(row) else 0 for row in rows] for number in range(number_of)]
    largest = sorted(sorted(range(number_of), key=lambda number: -sum(by_class[number]))[:CLASSES])
    names = _class_names(run, number_of)
    stacks = [
        Stack("label", names[number], f"run-{place % COLOURS}", by_class[number])
        for place, number in enumerate(largest)
    ]
    rest = [by_class[number] for number in range(number_of) if number not in largest]
    if rest:
        stacks.append(Stack("label", "other classes", "muted", [sum(row) for row in zip(*rest, strict=True)]))
    return stacks


def _by_use(run: Shown) -> list[Stack]:
    sizes = [size for client, size in sorted(_sizes(run).items(), key=lambda item: run.clients.index(item[0]))]
    training, held = ([size[i] for size in sizes] for i in (0, 1))
    return [Stack("use", "training", "run-0", training), Stack("use", "held back", "run-4", held)]


def _figure(run: Shown, stacks: Sequence[Stack]) -> Json:
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": label(stack.name),
            "marker": {"color": css(stack.colour)},
            "hovertemplate": "%{y}: %{x:,}",
            "when": {"holds": stack.by},
            "bind": {"x": f"{run.key}/holds/{i}", "y": f"{run.key}/holders"},
        }
        for i, stack in enumerate(stacks)
    ]
    layout = {
        "height": height(len(_sizes(run))),
        "barmode": "stack",
        "bargap": 0.3 if len(_sizes(run)) <= FEW else 0,
        "xaxis": {"title": {"text": "Rows"}, "tickformat": ",d"},
        "yaxis": by_client(),
        "hovermode": "closest",
        "showlegend": True,
        "legend": {"traceorder": "normal"},
    }
    return {"data": traces, "layout": layout}


def _table(run: Shown) -> Html:
    sizes, counts = _sizes(run), _counts(run)
    names = _class_names(run, max(map(len, counts.values()), default=0))
    unknown = [None] * len(names)
    rows = [[client, *sizes[client], *counts.get(client, unknown)] for client in run.clients if client in sizes]
    heads = ("Client", "Training", "Held back", *names)
    return table(f"Rows of the clients of {run.label}", heads, rows, data_when=when(run=run.key))
