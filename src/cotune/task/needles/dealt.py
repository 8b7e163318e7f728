"""Rows of haystacks by client: what all tasks of this kind have in their fields, and how many rows that makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from cotune.core.contracts import Row, Split

Make = Callable[[str, str, int, Sequence[int]], Row]


class Sized(Protocol):
    """The fields that say how many rows there are, and how long."""

    @property
    def lengths(self) -> Sequence[int]:
        """Of prompts, in tokens, in turn."""
        ...

    @property
    def long(self) -> Sequence[int]:
        """Lengths that only test rows have."""
        ...

    @property
    def rows(self) -> int:
        """That each client trains on."""
        ...

    @property
    def held(self) -> float:
        """What it holds back beside those, as a share of them; at least one row, unless it is 0."""
        ...

    @property
    def test_rows(self) -> int:
        """Of each name at each length."""
        ...


def dealt(task: Sized, make: Make, clients: Sequence[str], tested: Sequence[str]) -> tuple[dict[str, Split], list[Row]]:
    """The rows of each client, and the test rows: names take turns, so that the first few are of all of them.

    Args:
        task: how many, and how long.
        make: the row of (name, 'train', 'held' or 'test', its number, the lengths that take turns).
        clients: names that are clients.
        tested: names that have test rows.
    """
    back = max(1, round(task.held * task.rows)) if task.held else 0
    lengths = tuple(dict.fromkeys((*task.lengths, *task.long)))

    def made(name: str, use: str, count: int) -> list[Row]:
        return [make(name, use, number, lengths if use == "test" else task.lengths) for number in range(count)]

    splits = {name: Split(train=made(name, "train", task.rows), held=made(name, "held", back)) for name in clients}
    columns = [made(name, "test", task.test_rows * len(lengths)) for name in tested]
    return splits, [row for rows in zip(*columns, strict=True) for row in rows]
