"""Clients that know a few classes each."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from cotune.core.contracts import Row
from cotune.core.errors import Code, CotuneError
from cotune.core.seeds import derive, numpy_generator
from cotune.task.column import by_class
from cotune.task.dealing import deal, level, numbered
from cotune.task.partition import Clients, Partition, classed


class Classes(Partition):
    """So many classes for each client, and every class divided evenly among those who have it.

    Classes have as equal numbers of clients as can be: a class of fewer rows than that has one client a row, and the
    others have more.

    Attributes:
        clients: how many.
        classes: of each client; together they must take every class there is.
        by: the column that holds the classes; None for the label.
    """

    kind: ClassVar[str] = "classes"

    clients: Clients
    classes: Annotated[int, Field(ge=1)]
    by: str | None = None

    @property
    def column(self) -> str | None:
        """`by`."""
        return self.by

    @property
    def labelled(self) -> bool:
        """Where nothing else is named."""
        return self.by is None

    def split(self, rows: Sequence[Row], labels: Sequence[Hashable], seed: int) -> dict[str, list[int]]:
        """Client id -> positions.

        Raises:
            CotuneError: E_DATA when there are fewer classes than a client is to have, more than all take together, or
                too few rows for everyone to have so many.
        """
        groups = sorted(by_class(classed(rows, labels, self.by)).values(), key=len, reverse=True)
        limits = [min(len(group), self.clients) for group in groups]
        self._check(len(rows), limits)
        generator = numpy_generator(derive(int(seed), "classes"))
        parts: list[list[int]] = [[] for _ in range(self.clients)]
        free = np.full(self.clients, self.classes)
        # Whoever lacks the most classes comes first (Gale and Ryser): so nobody is left with room for one class twice.
        for group, holders in zip(groups, level(limits, self.clients * self.classes), strict=True):
            chosen = np.lexsort((generator.random(self.clients), -free))[:holders]
            free[chosen] -= 1
            deal(generator.permutation(group).tolist(), parts, generator.permutation(chosen).tolist())
        return numbered([sorted(part) for part in parts])

    def _check(self, rows: int, limits: Sequence[int]) -> None:
        """Raise for what cannot be dealt; `limits` are the most clients that each class has rows for."""
        where, places = f"classes, {self.clients} clients with {self.classes}", self.clients * self.classes
        if len(limits) < self.classes:
            what, got, expected = "too few classes", f"{len(limits)} classes", f"at least {self.classes}"
            fix = "ask for fewer classes"
        elif len(limits) > places:
            what, got, expected = "a class would be nobody's", f"{len(limits)} classes", f"at most {places}"
            fix = "ask for more clients, or for more classes of each"
        elif sum(limits) < places:
            what, got = "too few rows for this partition", f"{rows} rows, for {sum(limits)} pairs of client and class"
            expected, fix = f"rows for {places}", "ask for fewer clients or classes"
        else:
            return
        raise CotuneError(Code.DATA, what, where=where, got=got, expected=expected, fix=fix)
