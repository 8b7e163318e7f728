"""Which rows are used, held out for everyone, and held back by each client; and what of it can be checked later."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cotune.core.contracts import Row, Split
from cotune.core.errors import Code, CotuneError
from cotune.core.rows import Identity as Identity  # noqa: PLC0414  # tasks import these from here
from cotune.core.rows import text_and_label as text_and_label  # noqa: PLC0414
from cotune.core.seeds import numpy_generator
from cotune.task.column import by_value


def subset(count: int, limit: int | None, seed: int) -> list[int]:
    """At most `limit` of the positions 0..count-1, ascending."""
    if limit is None or limit >= count:
        return list(range(count))
    return sorted(numpy_generator(seed).permutation(count)[:limit].tolist())


def held_out(count: int, test: float, seed: int, groups: Sequence[object] | None = None) -> tuple[list[int], list[int]]:
    """The positions 0..count-1 as (for the clients, held out), each ascending.

    Args:
        count: how many rows.
        test: held-out rows, or their share when it is a float.
        seed: decides which.
        groups: one value a row, or None; rows of one value are never divided, so the size is met as nearly as the
            order in which groups are drawn allows.

    Raises:
        CotuneError: E_DATA when nothing would be left for the clients.
    """
    wanted = max(1, round(test * count)) if isinstance(test, float) and test > 0 else int(test)
    if wanted == 0:
        return list(range(count)), []
    units = [[row] for row in range(count)] if groups is None else list(by_value(groups).values())
    if wanted >= count or len(units) < 2:
        got = f"{count} rows" if groups is None else f"{count} rows in {len(units)} groups"
        raise CotuneError(
            Code.DATA, "nothing left for the clients", where="test", got=got, expected=f"more than {wanted} held out"
        )
    order = [units[unit] for unit in numpy_generator(seed).permutation(len(units)).tolist()]
    held: list[int] = []
    for unit in order[:-1]:
        if abs(len(held) + len(unit) - wanted) < abs(len(held) - wanted):
            held += unit
    held = held or min(order, key=len)
    out = frozenset(held)
    return [row for row in range(count) if row not in out], sorted(held)


def held_back(rows: Sequence[Row], share: float, seed: int) -> Split:
    """A client's rows as (train, held): a share held back, at least one of two rows, none of one."""
    count = min(max(1, round(share * len(rows))), len(rows) - 1) if share > 0 and rows else 0
    back = frozenset(subset(len(rows), count, seed))
    return Split(
        train=[row for position, row in enumerate(rows) if position not in back],
        held=[row for position, row in enumerate(rows) if position in back],
    )


def row_hash(text: str, label: object = "") -> str:
    """The SHA-256 of a row's text and label, as 64 hex digits."""
    return hashlib.sha256(f"{label}\0{text}".encode("utf-8", "surrogatepass")).hexdigest()


def manifest(rows: Iterable[Row], identity: Identity = text_and_label) -> str:
    """The SHA-256 over the hashes of rows, in their order: equal for equal data."""
    return hashlib.sha256("".join(row_hash(*identity(row)) for row in rows).encode()).hexdigest()


def duplicates(
    clients: Mapping[str, Split], test: Sequence[Row], identity: Identity = text_and_label
) -> dict[str, int]:
    """Rows that are there more than once, by text.

    Returns:
        within_clients: repetitions of a text in the same client.
        between_clients: rows whose text another client has too.
        test: held-out rows whose text a client has.
    """
    own = {name: Counter(row_hash(identity(row)[0]) for row in [*s.train, *s.held]) for name, s in clients.items()}
    holders = Counter(text for texts in own.values() for text in texts)
    return {
        "within_clients": sum(texts.total() - len(texts) for texts in own.values()),
        "between_clients": sum(n for texts in own.values() for text, n in texts.items() if holders[text] > 1),
        "test": sum(row_hash(identity(row)[0]) in holders for row in test),
    }


def label_counts(rows: Iterable[Row], classes: int) -> list[int]:
    """How many rows each class has."""
    found: Counter[Any] = Counter(row["label"] for row in rows)
    return [found[label] for label in range(classes)]
