"""A long tail: rare classes that few clients have ever seen."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import accumulate, count, islice
from typing import Annotated, ClassVar, Self

from pydantic import Field, StrictInt, model_validator

from cotune.core.contracts import Row
from cotune.core.errors import Code, CotuneError
from cotune.core.seeds import derive, numpy_generator
from cotune.task.column import by_class
from cotune.task.dealing import deal, enough, numbered
from cotune.task.partition import Clients, Partition, classed

_NEAR = 1e-9  # 0.29 of 100 rows are 29


class LongTail(Partition):
    """Frequent classes divided evenly among all clients, and each rare one kept by few.

    Which classes are rare is a fact of the data, and test rows are scored apart by it, as the strata `head` and `tail`.

    Attributes:
        clients: how many.
        holders: clients that have a rare class, which take turns; fewer where it has fewer rows.
        tail: how many classes are rare, the rarest; or as a float the share of all rows that they make up at most.
        by: the column that holds the classes; None for the label.
    """

    kind: ClassVar[str] = "long-tail"

    clients: Clients
    holders: Annotated[int, Field(ge=1)] = 1
    tail: Annotated[StrictInt, Field(ge=1)] | Annotated[float, Field(gt=0, lt=1)] = 0.2
    by: str | None = None

    @model_validator(mode="after")
    def _no_more_than_all(self) -> Self:
        if self.holders > self.clients:
            raise ValueError(f"{self.holders} holders of {self.clients} clients")
        return self

    @property
    def column(self) -> str | None:
        """`by`."""
        return self.by

    @property
    def labelled(self) -> bool:
        """Where nothing else is named."""
        return self.by is None

    def rare(self, classes: Sequence[Hashable]) -> frozenset[Hashable]:
        """The classes of the tail."""
        groups = _ordered(classes)
        frequent = len(groups) - self._rare([*map(len, groups.values())])
        return frozenset([*groups][frequent:])

    def split(self, rows: Sequence[Row], labels: Sequence[Hashable], seed: int) -> dict[str, list[int]]:
        """Client id -> positions.

        Raises:
            CotuneError: E_DATA when there are too few classes, or fewer rows of frequent ones than clients.
        """
        ordered = [*_ordered(classed(rows, labels, self.by)).values()]
        frequent = len(ordered) - self._rare([*map(len, ordered)])
        enough(sum(map(len, ordered[:frequent])), self.clients, 1, "long-tail, frequent classes")
        generator = numpy_generator(derive(int(seed), "long-tail"))
        parts: list[list[int]] = [[] for _ in range(self.clients)]
        head = [row for group in ordered[:frequent] for row in generator.permutation(group).tolist()]
        deal(head, parts, generator.permutation(self.clients).tolist())
        turn = generator.permutation(self.clients).tolist()
        places = count()
        for group in ordered[frequent:]:
            holders = [turn[place % self.clients] for place in islice(places, min(self.holders, len(group)))]
            deal(generator.permutation(group).tolist(), parts, holders)
        return numbered([sorted(part) for part in parts])

    def _rare(self, sizes: Sequence[int]) -> int:
        """How many of the classes are rare, given the rows of each, the most frequent first."""
        if isinstance(self.tail, int):
            rare = self.tail
        else:
            most, sums = self.tail * sum(sizes) + _NEAR, accumulate(reversed(sizes))
            rare = max(1, sum(rows <= most for rows in sums))
        if rare >= len(sizes):
            got, expected = f"{len(sizes)} classes", f"at least {rare + 1}, {rare} of them rare"
            raise CotuneError(Code.DATA, "too few classes for a tail", where="long-tail", got=got, expected=expected)
        return rare


def _ordered(classes: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    """Class -> its positions, the most frequent first, ties in the order of first appearance."""
    return dict(sorted(by_class(classes).items(), key=lambda item: len(item[1]), reverse=True))
