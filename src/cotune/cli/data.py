"""`cotune data show`: who holds what, before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cotune.cli.progress import data_lines
from cotune.core.contracts import Corpus
from cotune.core.errors import one_line

BAR = 30  # characters of the longest bar
MOST = 40  # clients listed one by one
MOST_TOPICS = 3  # of a client, named


def show(text: str, *, seed: int, sets: tuple[str, ...]) -> Iterator[str]:
    """The lines about a task's data: what was read and skipped, and each client's rows and labels.

    Args:
        text: a data reference, `KIND:REFERENCE`, or `KIND?key=value` of a task that draws its rows.
        seed: of the division.
        sets: assignments to the task, `partition.clients=10`.

    Raises:
        CotuneError: whatever naming, reading or dividing the data raises.
    """
    from cotune import resolve
    from cotune.core.seeds import Seeds

    said: list[str] = []
    task = resolve.task(text, sets=sets, say=said.append)
    corpus = task.load(Seeds(seed=seed), said.append)
    yield from said
    yield from data_lines(corpus.facts, len(corpus.clients))
    yield f"{task.kind} · head {corpus.head} · {', '.join(_chances(corpus)) or 'no chance level'}"
    for side, names in corpus.facts.get("splits", {}).items():
        yield f"{side} from {' and '.join(names) or 'no split'}"
    partition = corpus.facts.get("partition", {})
    yield "partition " + " ".join(f"{key}={value}" for key, value in partition.items() if value is not None)
    yield ""
    yield from _clients(corpus)


def _chances(corpus: Corpus) -> Iterator[str]:
    return (f"guessing scores {name} {value:.4g}" for name, value in corpus.chance.items())


def _clients(corpus: Corpus) -> Iterator[str]:
    """One line a client: rows to train on, rows held back, a bar, and its labels, or its most frequent topics."""
    sizes = {name: len(rows.train) for name, rows in sorted(corpus.clients.items())}
    largest = max(sizes.values(), default=1) or 1
    labels: Mapping[str, Any] = corpus.facts.get("labels", {})
    topics: Mapping[str, Mapping[str, int]] = corpus.facts.get("topics", {})
    width = max((len(one_line(name, 40)) for name in sizes), default=0)
    for name, size in list(sizes.items())[:MOST]:
        bar = "█" * max(round(BAR * size / largest), 1 if size else 0)
        held = len(corpus.clients[name].held)
        counts = ", ".join(f"{label} {n}" for label, n in zip(corpus.labels, labels.get(name, ()), strict=False) if n)
        counts = counts or _topics(topics.get(name, {}))
        yield f"{one_line(name, 40):<{width}}  {size:>7} + {held:<6} {bar:<{BAR}}  {one_line(counts, 60)}".rstrip()
    if len(sizes) > MOST:
        yield f"and {len(sizes) - MOST} more clients"
    yield f"{'rows to train on + held back':>{width}}"


def _topics(found: Mapping[str, int]) -> str:
    """`3 topics, anatomy 7, …`: how many there are, and the most frequent of them."""
    some = [f"{topic or '?'} {count}" for topic, count in list(found.items())[:MOST_TOPICS]]
    return ", ".join([f"{len(found)} topics", *some]) if found else ""
