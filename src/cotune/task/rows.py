"""Rows as they were read, each with the place that it came from; errors name places and never what stands there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cotune.core.errors import Code, CotuneError, nearest


@dataclass(frozen=True)
class Table:
    """Rows in the order of their source.

    Attributes:
        columns: in the order in which they first appear.
        rows: plain dicts; a row may lack a column.
        places: (file and unit, number from 1) of each row, such as ('a.jsonl, line', 3).
        names: column -> class names, where the source declares them.
        owner: the column that says whose row it is, where the source is divided already.
        skipped: reason -> rows that the source has and this table leaves out.
        facts: what else is known about the source.
    """

    columns: tuple[str, ...]
    rows: Sequence[Mapping[str, Any]]
    places: Sequence[tuple[str, int]]
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    owner: str | None = None
    skipped: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)

    def place(self, row: int) -> str:
        """Where a row came from, for errors: `a.jsonl, line 3`."""
        unit, number = self.places[row]
        return f"{unit} {number}"

    def cells(self, column: str, where: str) -> list[Any]:
        """One cell a row; None where a row lacks it.

        Raises:
            CotuneError: E_DATA when no row has the column.
        """
        if column not in self.columns:
            raise CotuneError(Code.DATA, f"no column '{column}'", where=where, fix=nearest(column, self.columns))
        return [row.get(column) for row in self.rows]


def columns_of(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Every column of `rows`, in the order of first appearance."""
    return tuple(dict.fromkeys(name for row in rows for name in row))
