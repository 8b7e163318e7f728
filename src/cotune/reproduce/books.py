"""Whose book is this from: classification of real passages, by groups of the books of the King James Bible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from pydantic import model_validator

from cotune.task import Classify
from cotune.task.table import Table
from cotune.task.tabular import Parsed

POETRY = ("Psalms", "Proverbs", "Job", "Ecclesiastes", "Song of Solomon", "Lamentations")
HISTORY = ("Kings", "Chronicles")


class Books(Classify):
    """Passages of some books; the class is the group that the book is of.

    Attributes:
        groups: class -> words, one of which the name of its books contains; books of no group are left out.
    """

    kind: ClassVar[str] = "cotune.reproduce.books:Books"
    data: str = "pkg:kjv"
    groups: Mapping[str, tuple[str, ...]] = {"poetry": POETRY, "history": HISTORY}

    @model_validator(mode="after")
    def _two(self) -> Books:
        if len(self.groups) < 2:
            raise ValueError("a class is one of two groups or more")
        return self

    def parse(self, table: Table) -> Parsed:
        """The passages whose book is of a group."""
        names = tuple(self.groups)
        found = [self._group(str(book)) for book in table.cells("book", self.data)]
        kept = [row for row, number in enumerate(found) if number is not None]
        chosen = replace(
            table,
            columns=(*table.columns, self.label),
            rows=[{**table.rows[row], self.label: found[row]} for row in kept],
            places=[table.places[row] for row in kept],
            names={**table.names, self.label: names},
            skipped={},
        )
        parsed = super().parse(chosen)

        def placed(position: int) -> int:
            return kept[position]

        skipped = Counter(parsed.skipped) + Counter({"other books": len(found) - len(kept)})
        return Parsed(
            rows={placed(row): content for row, content in parsed.rows.items()},
            skipped=dict(sorted(skipped.items())),
            labels={placed(row): label for row, label in parsed.labels.items()},
            names=parsed.names,
        )

    def _group(self, book: str) -> int | None:
        for number, words in enumerate(self.groups.values()):
            if any(word in book for word in words):
                return number
        return None
