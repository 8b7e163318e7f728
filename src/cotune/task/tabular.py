"""Rows of one table, divided: which are used, which are held out, and whose the rest are."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import BeforeValidator, Field, SerializeAsAny, StrictInt

from cotune.core.contracts import Corpus, Row, Split, Task
from cotune.core.errors import Code, CotuneError
from cotune.core.events import Say, silent
from cotune.core.part import resolve
from cotune.core.seeds import Purpose, Seeds
from cotune.task.column import is_missing
from cotune.task.divide import Identity, duplicates, held_back, held_out, manifest, subset, text_and_label
from cotune.task.files import OWNER
from cotune.task.partition import Iid, Natural, Partition, classed
from cotune.task.partitions import PARTITIONS
from cotune.task.table import Table, read
from cotune.task.tail import Tail


@dataclass(frozen=True)
class Parsed:
    """The rows of a table that a task has a use for.

    Attributes:
        rows: position in the table -> the row as the task knows it, in the order of the table.
        skipped: reason -> how many rows it has no use for.
        labels: position -> class number; empty where there are no classes.
        names: of the classes, in the order of their numbers.
    """

    rows: Mapping[int, Row]
    skipped: Mapping[str, int]
    labels: Mapping[int, int] = field(default_factory=dict)
    names: tuple[str, ...] = ()


class Tabular(Task):
    """A task on the rows of one table; subclasses say what a row is.

    Attributes:
        data: the reference of the data.
        partition: how rows are divided; None follows the source where that is divided already (a folder: one file is
            one client; a column `client_id`), else ten even clients.
        test: rows, or as a float the share of rows, that no client gets.
        group: rows that share a value of this column are never on both sides of the test split.
        held: the share of its rows that each client holds back to score on: at least one of two, none of one.
        limit: rows used at all, drawn by seed.
        test_limit: held-out rows used, drawn by seed.
    """

    data: str
    partition: Annotated[
        SerializeAsAny[Partition] | None, BeforeValidator(lambda value: resolve("partition", PARTITIONS, value))
    ] = None
    test: Annotated[StrictInt, Field(ge=0)] | Annotated[float, Field(ge=0, lt=1)] = 0.2
    group: str | None = None
    held: Annotated[float, Field(ge=0, lt=1)] = 0.2
    limit: Annotated[int, Field(ge=2)] | None = None
    test_limit: Annotated[int, Field(ge=1)] | None = None

    @abstractmethod
    def parse(self, table: Table) -> Parsed:
        """The rows that the task has a use for; `place` in each says where it was read, for errors."""

    @property
    def identity(self) -> Identity:
        """What makes two rows the same: their text and their label."""
        return text_and_label

    def load(self, seeds: Seeds, say: Say = silent) -> Corpus:
        """The data, divided among the clients; a function of the data seed alone. `say` is told before a download.

        Raises:
            CotuneError: E_DATA for data that cannot be read, is empty or cannot be divided as asked; E_LABEL for a
                label that is none of the classes.
        """
        table, apart = self.sides(say)
        parsed = self.parse(table)
        used = self.used(parsed, seeds)
        partition = self._partition(table, parsed)
        groups = None if self.group is None else self._filled(table, self.group, used)
        if partition.column is not None:
            self._filled(table, partition.column, used)

        def rows(positions: Sequence[int]) -> list[Row]:
            return [parsed.rows[position] for position in positions]

        if apart is None:
            shared, out = held_out(len(used), self.test, seeds.of(Purpose.DATA, "test"), groups)
            outside, beside = [used[position] for position in out], Parsed({}, {})
        else:
            beside = self.parse(apart)
            shared, outside = list(range(len(used))), list(beside.rows)
        there = (table, parsed) if apart is None else (apart, beside)
        some = subset(len(outside), self.test_limit, seeds.of(Purpose.DATA, "test_limit"))
        tested = [outside[place] for place in some]
        test = [there[1].rows[position] for position in tested]
        mine = [used[position] for position in shared]
        parts = partition.split(
            [table.rows[row] for row in mine],
            [parsed.labels.get(row) for row in mine],
            seeds.of(Purpose.DATA, "partition"),
        )
        clients = {
            client: self.divided(rows([mine[position] for position in part]), seeds.of(Purpose.DATA, "held", client))
            for client, part in parts.items()
        }
        tail = Tail.of(partition, _classes(partition, table, parsed, mine), _classes(partition, *there, tested))
        tables = [one for one in (table, apart) if one is not None]
        skipped = Counter[str]()
        for left_out in (*(one.skipped for one in tables), parsed.skipped, beside.skipped):
            skipped.update(left_out)
        return Corpus(
            clients=clients,
            test=test,
            head=self.head,
            labels=parsed.names,
            chance={},
            facts={
                **table.facts,
                "data": self.data,
                "rows": sum(len(one) + sum(one.skipped.values()) for one in tables),
                "skipped": dict(skipped),
                "used": len(used) + (0 if apart is None else len(test)),
                "partition": partition.model_dump(mode="json"),
                "empty_clients": [name for name, s in clients.items() if not s.train and not s.held],
                "sizes": {name: {"train": len(s.train), "held": len(s.held)} for name, s in clients.items()},
                "test": {"rows": len(test), "unused": len(outside) - len(test)},
                "duplicates": duplicates(clients, test, self.identity),
                "manifest": {name: manifest([*s.train, *s.held], self.identity) for name, s in clients.items()},
                "test_manifest": manifest(test, self.identity),
                **tail.facts(partition.column, parsed.names, rows(mine), clients),
            },
            strata=tail.test,
            identity=self.identity,
        )

    def sides(self, say: Say) -> tuple[Table, Table | None]:
        """The rows to use, and those that are a test already; None where `test` says how many are held out."""
        return read(self.data, say), None

    def used(self, parsed: Parsed, seeds: Seeds) -> list[int]:
        """Which rows are used at all, ascending."""
        kept = list(parsed.rows)
        return [kept[place] for place in subset(len(kept), self.limit, seeds.of(Purpose.DATA, "limit"))]

    def divided(self, rows: Sequence[Row], seed: int) -> Split:
        """A client's rows, to train on and held back: the same objects, no copies."""
        return held_back(rows, self.held, seed)

    def usual(self) -> Partition:
        """How rows are divided where neither the user nor the source says."""
        return Iid(clients=10)

    def _partition(self, table: Table, parsed: Parsed) -> Partition:
        """The partition asked for, or the one that the source suggests."""
        owner = table.owner or (OWNER if OWNER in table.columns else None)
        partition = self.partition or (Natural(key=owner) if owner else self.usual())
        if partition.labelled and not parsed.names:
            what = "nothing to divide by: the rows of this task have no label"
            raise CotuneError(Code.CONFIG, what, where="task.partition.by", fix="name the column that holds classes")
        return partition

    def _filled(self, table: Table, column: str, used: Sequence[int]) -> list[object]:
        """The cells of a column that every used row must have."""
        cells = table.cells(column, self.data)
        for row in used:
            if is_missing(cells[row]):
                raise CotuneError(Code.DATA, f"no value in column '{column}'", where=table.place(row), fix="fill it in")
        return [cells[row] for row in used]

    def useful(self, table: Table, columns: Iterable[str], what: str, read: Callable[[Row, str], Row | str]) -> Parsed:
        """The rows that `read` makes of a table's cells, each with its `place`; a str says why a row has no use.

        Args:
            table: which must have these columns.
            columns: by name.
            what: the rows have that are of use, for the error.
            read: given the cells of a row, and its place for errors of its own.

        Raises:
            CotuneError: E_DATA when no row is of use, or a column is not there; what `read` raises.
        """
        for column in columns:
            table.cells(column, self.data)
        rows: dict[int, Row] = {}
        skipped: Counter[str] = Counter()
        for number, cells in enumerate(table.rows):
            place = table.place(number)
            found = read(cells, place)
            if isinstance(found, str):
                skipped[found] += 1
            else:
                rows[number] = {**found, "place": place}
        if not rows:
            got = ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items()))
            raise CotuneError(Code.DATA, f"no row has {what}", where=self.data, got=got or "no rows")
        return Parsed(rows, dict(sorted(skipped.items())))

    def texts(self, table: Table, column: str) -> Parsed:
        """The rows that have a text in a column, as `text` and `place`.

        Raises:
            CotuneError: E_DATA when no row has one, or the column is not there.
        """

        def read(cells: Row, _place: str) -> Row | str:
            return no_text(cell := cells.get(column)) or {"text": cell}

        return self.useful(table, (column,), f"a text in column '{column}'", read)


def _classes(partition: Partition, table: Table, parsed: Parsed, positions: Sequence[int]) -> Sequence[Hashable]:
    """The class of each row, as a partition sees it."""
    labels = [parsed.labels.get(row) for row in positions]
    return classed([table.rows[row] for row in positions], labels, partition.column)


def no_text(cell: object) -> str:
    """Why a cell is no text: 'empty', 'whitespace', 'missing', 'not text'; nothing when it is one."""
    if isinstance(cell, str):
        return "" if cell.strip() else "whitespace" if cell else "empty"
    return "missing" if is_missing(cell) else "not text"
