"""The corpus of a task whose rows are drawn by seed, and what can be checked of it later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cotune.core.contracts import Corpus, Row, Split
from cotune.task.divide import Identity, duplicates, manifest, text_and_label


def drawn(
    clients: Mapping[str, Split],
    test: Sequence[Row],
    *,
    data: str,
    partition: Mapping[str, object],
    chance: Mapping[str, float],
    identity: Identity = text_and_label,
) -> Corpus:
    """Drawn rows with the facts that read ones have.

    Args:
        clients: id -> rows.
        test: rows that no client holds.
        data: what the rows are, in words.
        partition: what makes the clients' rows differ.
        chance: metric -> what guessing scores.
        identity: what makes two rows the same.
    """
    sizes = {name: {"train": len(s.train), "held": len(s.held)} for name, s in clients.items()}
    rows = sum(sum(size.values()) for size in sizes.values()) + len(test)
    facts: dict[str, Any] = {
        "synthetic": True,
        "data": data,
        "rows": rows,
        "skipped": {},
        "used": rows,
        "partition": dict(partition),
        "empty_clients": [],
        "sizes": sizes,
        "test": {"rows": len(test), "unused": 0},
        "duplicates": duplicates(clients, test, identity),
        "manifest": {name: manifest([*s.train, *s.held], identity) for name, s in clients.items()},
        "test_manifest": manifest(test, identity),
    }
    return Corpus(clients, test, "causal", (), chance, facts, identity=identity)


def many(value: Any) -> Any:
    """A value alone as a tuple of one."""
    return (value,) if isinstance(value, int | str) else value
