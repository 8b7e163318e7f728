"""`cotune data show`: who holds what, before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cotune.cli.progress import data_lines
from cotune.core.contracts import Corpus
from cotune.core.errors import one_line
from cotune.core.record import HEAD, TAIL

BAR = 30  # characters of the longest bar
MOST = 40  # clients listed one by one, and rare classes
MOST_TOPICS = 3  # of a client, named


def show(
    text: str, *, seed: int, sets: tuple[str, ...], plot: Path | None = None, hashes: Path | None = None
) -> Iterator[str]:
    """The lines about a task's data: what was read and skipped, each client's rows and labels, and what is there twice.

    Args:
        text: a data reference, `KIND:REFERENCE`, or `KIND?key=value` of a task that draws its rows.
        seed: of the division.
        sets: assignments to the task, `partition.clients=10`.
        plot: where to write the same as one HTML file.
        hashes: where to write the hash of every row.

    Raises:
        CotuneError: whatever naming, reading or dividing the data raises; E_DISK for a file that cannot be written.
    """
    from cotune import resolve
    from cotune.core.seeds import Seeds

    said: list[str] = []
    task = resolve.task(text, sets=sets, say=said.append)
    corpus = task.load(Seeds(seed=seed), said.append)
    lines = [
        *data_lines({name: fact for name, fact in corpus.facts.items() if name != "duplicates"}, len(corpus.clients)),
        f"{task.kind} · head {corpus.head} · {', '.join(_chances(corpus)) or 'no chance level'}",
        *(f"{side} from {' and '.join(names) or 'no split'}" for side, names in corpus.facts.get("splits", {}).items()),
        f"partition {_settings(corpus.facts.get('partition', {}))} · seed {seed}",
        *_tail(corpus.facts),
        *_overlap(corpus.facts),
    ]
    yield from (one_line(line, 1000) for line in (*said, *lines))
    yield ""
    yield from _clients(corpus)
    for path, write in ((plot, _plotted), (hashes, _hashed)):
        if path is not None:
            write(path, text, seed, corpus, lines)
            yield f"written · {path}"


def _chances(corpus: Corpus) -> Iterator[str]:
    return (f"guessing scores {name} {value:.4g}" for name, value in corpus.chance.items())


def _settings(partition: Mapping[str, Any]) -> str:
    """`kind=iid clients=10`; of a map, the names."""
    told = {
        name: ",".join(map(str, value)) if isinstance(value, Mapping) else value for name, value in partition.items()
    }
    return " ".join(f"{name}={value}" for name, value in told.items() if value is not None)


def _tail(facts: Mapping[str, Any]) -> Iterator[str]:
    """Which classes are rare and who has them; nothing where no class is."""
    if not (tail := facts.get("tail")):
        return
    classes = [f"{name} ({', '.join(clients)})" for name, clients in tail["classes"].items()]
    more = f", and {len(classes) - MOST} more" if len(classes) > MOST else ""
    yield f"tail by {tail['by']} · {len(classes)} rare classes: {', '.join(classes[:MOST])}{more}"
    test = {name: count for name, count in tail["test"].items() if count or name in (HEAD, TAIL)}
    yield f"test rows · {', '.join(f'{count} {name}' for name, count in test.items())}"


def _overlap(facts: Mapping[str, Any]) -> Iterator[str]:
    """How many rows are there twice, and a warning where test rows are among them."""
    if (found := facts.get("duplicates")) is None:
        return
    within, between, test = (found[name] for name in ("within_clients", "between_clients", "test"))
    yield f"overlap · again in the same client {within} · in several clients {between} · of the test at a client {test}"
    if test:
        yield (
            f"warning · test rows that a client has too: {test} · they tell what it remembers, not what it has learned "
            "· take them out, or name the column whose values belong together: group"
        )


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


def _plotted(path: Path, text: str, seed: int, corpus: Corpus, lines: list[str]) -> None:
    """Write the page."""
    from cotune.report.division import division
    from cotune.store import write_atomic

    del seed
    about = {
        "data": corpus.facts,
        "clients": {name: {"rows": len(s.train), "held": len(s.held)} for name, s in corpus.clients.items()},
        "labels": corpus.labels,
    }
    write_atomic(path, division(text, about, lines).encode("utf-8", "replace"))


def _hashed(path: Path, text: str, seed: int, corpus: Corpus, lines: list[str]) -> None:
    """Write the hashes of all rows, in order; the SHA-256 over a client's, training rows first, is its manifest."""
    from cotune.store import write_json
    from cotune.task.divide import manifest, row_hash

    del lines
    same = corpus.identity
    clients = {
        name: {
            "sha256": manifest([*split.train, *split.held], same),
            "train": [row_hash(*same(row)) for row in split.train],
            "held": [row_hash(*same(row)) for row in split.held],
        }
        for name, split in sorted(corpus.clients.items())
    }
    test = {"sha256": manifest(corpus.test, same), "rows": [row_hash(*same(row)) for row in corpus.test]}
    write_json(path, {"version": 1, "task": text, "seed": seed, "clients": clients, "test": test})
