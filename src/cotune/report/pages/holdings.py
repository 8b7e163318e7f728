"""Who holds what: the rows of each client, by class or topic, by head and tail, or by what they are for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cotune.core.record import HEAD, TAIL
from cotune.report.html import Html, table, tag, titled
from cotune.report.pages.participation import by_client
from cotune.report.plot import Choice, Columns, Json, Option, Plot, css, height, label, labels, when
from cotune.report.shown import COLOURS, Shown

FEW = 60  # clients; between the bars of more there is no gap
CLASSES = 7  # or topics, with a colour of their own; the rest are one
BY = {"label": "Class", "topic": "Topic", "tail": "Head and tail", "use": "Use"}


@dataclass(frozen=True)
class Stack:
    """One piece of every bar.

    Attributes:
        by: one of BY.
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
    figures, there = {}, set[str]()
    for run in told:
        columns[f"{run.key}/holders"] = labels(_holders(run))
        stacks = [*_by_label(run), *_by_topic(run), *_by_tail(run), *_by_use(run)]
        there |= {stack.by for stack in stacks}
        columns |= {f"{run.key}/holds/{i}": stack.rows for i, stack in enumerate(stacks)}
        figures[run.key] = _figure(run, stacks)
    return [
        Plot(
            id="holdings",
            title="Who holds what",
            says="Rows of each client by class or topic, both training and held back; or by what they are for.",
            figures=figures,
            by="run",
            choices=(Choice("holds", "By", [Option(by, text) for by, text in BY.items() if by in there]),),
            follows=(which,),
            tables=[made for run in told for made in _tables(run)],
        )
    ]


def _sizes(run: Shown) -> dict[str, tuple[int, int]]:
    """Client -> rows to train on, rows held back."""
    return {client: (about["rows"], about["held"]) for client, about in run.about.get("clients", {}).items()}


def _holders(run: Shown) -> list[str]:
    """The clients whose sizes are known, in the order of the report."""
    return [client for client in run.clients if client in _sizes(run)]


def _at(counts: Sequence[int], number: int) -> int:
    """A count, 0 behind the last one."""
    return counts[number] if number < len(counts) else 0


def _topics(run: Shown) -> Mapping[str, Mapping[str, int]]:
    """Client -> topic -> rows; empty where rows have none."""
    return dict(run.about.get("data", {}).get("topics") or {})


def _tailed(run: Shown) -> Mapping[str, Mapping[str, int]]:
    """Client -> rows of the head and of the tail; empty without a long tail."""
    return dict(run.about.get("data", {}).get("tail", {}).get("clients", {}))


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
    number_of = max(map(len, counts.values()), default=0)
    names = _class_names(run, number_of)
    by_class = [[_at(counts.get(client, []), number) for client in _holders(run)] for number in range(number_of)]
    largest = sorted(sorted(range(number_of), key=lambda number: -sum(by_class[number]))[:CLASSES])
    rest = [by_class[number] for number in range(number_of) if number not in largest]
    return _stacks("label", [(names[number], by_class[number]) for number in largest], rest, "other classes")


def _by_topic(run: Shown) -> list[Stack]:
    """The most frequent topics, the most frequent first, and the rest together."""
    topics = _topics(run)
    total = sum((Counter(of) for of in topics.values()), Counter[str]())
    rows = {
        topic: [topics.get(client, {}).get(topic, 0) for client in _holders(run)] for topic, _ in total.most_common()
    }
    largest = list(rows.items())[:CLASSES]
    return _stacks(
        "topic", [(topic or "?", of) for topic, of in largest], list(rows.values())[CLASSES:], "other topics"
    )


def _by_tail(run: Shown) -> list[Stack]:
    """Rows of common classes, and of rare ones; nothing without a long tail."""
    counts = _tailed(run)
    pieces = [(name, [counts.get(client, {}).get(name, 0) for client in _holders(run)]) for name in (HEAD, TAIL)]
    return _stacks("tail", pieces if counts else [], [], "")


def _stacks(
    by: str, pieces: Sequence[tuple[str, Sequence[int]]], rest: Sequence[Sequence[int]], other: str
) -> list[Stack]:
    """The pieces in the first colours, and behind them the sum of the rest."""
    stacks = [Stack(by, name, f"run-{place % COLOURS}", rows) for place, (name, rows) in enumerate(pieces)]
    return [*stacks, Stack(by, other, "muted", [sum(row) for row in zip(*rest, strict=True)])] if rest else stacks


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


def _tables(run: Shown) -> list[Html]:
    """Rows by client, and where there are topics, by client and topic."""
    sizes, counts, tailed = _sizes(run), _counts(run), _tailed(run)
    names = _class_names(run, max(map(len, counts.values()), default=0))
    unknown = [None] * len(names)
    parts = (HEAD, TAIL) if tailed else ()
    rows: list[list[object]] = []
    for client in _holders(run):
        apart = [tailed.get(client, {}).get(part, 0) for part in parts]
        rows.append([client, *sizes[client], *apart, *counts.get(client, unknown)])
    shown = when(run=run.key)
    heads = ("Client", "Training", "Held back", *map(titled, parts), *names)
    by_topic = [
        [client, topic, count] for client in _holders(run) for topic, count in _topics(run).get(client, {}).items()
    ]
    tables = [table(f"Rows of the clients of {run.label}", heads, rows, data_when=shown)]
    if by_topic:
        caption = f"Topics of the clients of {run.label}"
        tables.append(table(caption, ("Client", "Topic", "Rows"), by_topic, data_when=shown))
    return tables
