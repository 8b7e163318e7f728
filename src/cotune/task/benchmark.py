"""A published data set: which of its splits clients train on, and which is the test that nobody trains on."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from cotune.core.contracts import Corpus, Row
from cotune.core.errors import Code, CotuneError
from cotune.core.events import Say, silent
from cotune.core.seeds import Seeds
from cotune.task.column import is_missing
from cotune.task.divide import Identity, label_counts
from cotune.task.splits import WHOLE, joined, read_splits
from cotune.task.table import Table
from cotune.task.tabular import Tabular


class Benchmark(Tabular):
    """A task on a published data set, from the hub or from local files with the same columns.

    Where the source has splits, `trained` are the clients' and `tested` are the test, which `test_limit` makes smaller;
    else, and where there is no split to test on, `test` says how many rows are held out.
    """

    aside: ClassVar[tuple[str, ...]] = ("label", "gold")  # what a row has, and a model is not shown

    @property
    @abstractmethod
    def trained(self) -> tuple[str, ...]:
        """The splits whose rows the clients get."""

    @property
    @abstractmethod
    def tested(self) -> tuple[str, ...]:
        """The splits whose rows no client gets."""

    @property
    def identity(self) -> Identity:
        """What makes two rows the same: what a model is shown of them, and then all but where they were read."""
        return partial(_content, self.aside)

    def sides(self, say: Say) -> tuple[Table, Table | None]:
        """The rows of the clients' splits, and those of the test's.

        Raises:
            CotuneError: E_DATA when there are splits, and none for the clients.
        """
        found = read_splits(self.data, (*self.trained, *self.tested), say)
        if WHOLE in found:
            return self.prepared(found[WHOLE]), None
        train, test = ([found[name] for name in names if name in found] for names in (self.trained, self.tested))
        if not train:
            what, got = f"no split {' or '.join(self.trained)}", ", ".join(found)
            raise CotuneError(Code.DATA, what, where=self.data, got=got, fix="name a source that has it")
        used = [[name for name in names if name in found] for names in (self.trained, self.tested)]
        facts = {"splits": dict(zip(("clients", "test"), used, strict=True))}
        clients = self.prepared(joined(train))
        return replace(clients, facts={**clients.facts, **facts}), self.prepared(joined(test)) if test else None

    def topic(self, row: Row) -> str:
        """What a row is about, by which clients may differ; '' where nothing says."""
        del row
        return ""

    def prepared(self, table: Table) -> Table:
        """The table with whatever column the task adds to divide by."""
        return table

    def load(self, seeds: Seeds, say: Say = silent) -> Corpus:
        """The data, divided among the clients, with its counts by topic and by label."""
        corpus = super().load(seeds, say)
        held = {name: [*split.train, *split.held] for name, split in corpus.clients.items()}
        facts = dict(corpus.facts)
        if any(map(self.topic, corpus.test)) or any(self.topic(row) for rows in held.values() for row in rows):
            facts["topics"] = {name: dict(Counter(map(self.topic, rows)).most_common()) for name, rows in held.items()}
        if corpus.labels:
            facts["labels"] = {name: label_counts(rows, len(corpus.labels)) for name, rows in held.items()}
            facts["test"] = {**facts["test"], "labels": label_counts(corpus.test, len(corpus.labels))}
        return replace(corpus, facts=facts)


def gold(cell: Any, options: int, place: str) -> int:
    """The number of the right option, from 0.

    Args:
        cell: an integer, also as text, or a truth value.
        options: how many there are.
        place: where the cell stands, for errors.

    Raises:
        CotuneError: E_LABEL for anything else, such as '' and -1, by which data sets hide the labels of a test.
    """
    text = str(int(cell)) if isinstance(cell, bool) else str(cell).strip() if isinstance(cell, int | str) else ""
    if text.isascii() and text.isdecimal() and int(text) < options:
        return int(text)
    hidden = is_missing(cell) or text == "-1"
    raise CotuneError(
        Code.LABEL,
        "the label is hidden" if hidden else "no such option",
        where=place,
        got=None if hidden or not isinstance(cell, int) else cell,
        expected=f"an integer in 0..{options - 1}",
        fix="labels of a test split are not published: use the validation split" if hidden else "mend the label column",
    )


def words(cells: Mapping[str, Any], *columns: str) -> tuple[str, ...]:
    """The texts of some columns of a row; a cell that is none becomes ''."""
    found = (cells.get(column) for column in columns)
    return tuple(cell if isinstance(cell, str) else "" for cell in found)


def texts(cell: Any, count: int, place: str) -> tuple[str, ...]:
    """A cell that is a list of `count` texts.

    Raises:
        CotuneError: E_DATA for anything else.
    """
    if isinstance(cell, list | tuple) and len(cell) == count and all(isinstance(one, str) for one in cell):
        return tuple(cell)
    raise CotuneError(Code.DATA, "not a list of options", where=place, expected=f"{count} texts")


def choices(cells: Mapping[str, Any], count: int, place: str) -> dict[str, Any]:
    """The `question`, `options` and `gold` of a row that has so many `choices`; raises as `texts` and `gold` do."""
    (question,) = words(cells, "question")
    options, right = texts(cells.get("choices"), count, place), gold(cells.get("answer"), count, place)
    return {"question": question, "options": options, "gold": right}


def _content(aside: Sequence[str], row: Row) -> tuple[str, object]:
    shown = {name: value for name, value in row.items() if name != "place" and name not in aside}
    return json.dumps(shown, ensure_ascii=False, sort_keys=True), [row[name] for name in aside if name in row]
