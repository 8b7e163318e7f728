"""How rows are divided among clients: every row goes to exactly one client, and a seed alone decides which.

Classes are met from the most frequent to the rarest, ties in the order of first appearance, so neither the names nor
the types of labels matter; nothing iterates over a set.
"""

from __future__ import annotations

import heapq
import math
from abc import abstractmethod
from collections.abc import Hashable, Sequence
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from cotune.core.contracts import Row
from cotune.core.errors import Code, CotuneError
from cotune.core.part import Part
from cotune.core.seeds import derive, numpy_generator
from cotune.task.column import by_class, by_value, client_names
from cotune.task.dealing import counts, enough, numbered, proportions, repaired

Clients = Annotated[int, Field(ge=1, le=10**6)]


class Partition(Part):
    """How rows are divided among clients."""

    @property
    def column(self) -> str | None:
        """The column that it reads in every row, beside the label."""
        return None

    @property
    def labelled(self) -> bool:
        """Whether it divides by the label."""
        return False

    def rare(self, classes: Sequence[Hashable]) -> frozenset[Hashable]:
        """Those of the classes that it gives to few clients, as `by_class` names them; `classes` has one a row."""
        del classes
        return frozenset()

    @abstractmethod
    def split(self, rows: Sequence[Row], labels: Sequence[Hashable], seed: int) -> dict[str, list[int]]:
        """Client id -> its positions in `rows`, ascending; `labels` has one entry a row."""


class Iid(Partition):
    """Shuffled rows, dealt out evenly."""

    kind: ClassVar[str] = "iid"

    clients: Clients

    def split(self, rows: Sequence[Row], labels: Sequence[Hashable], seed: int) -> dict[str, list[int]]:
        """Client id -> positions; sizes differ by one at most."""
        del labels
        return numbered(iid(len(rows), self.clients, seed))


class Sizes(Partition):
    """Shuffled rows, in proportion to given sizes."""

    kind: ClassVar[str] = "sizes"

    sizes: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)]

    def split(self, rows: Sequence[Row], labels: Sequence[Hashable], seed: int) -> dict[str, list[int]]:
        """Client id -> positions; nobody is left without a row."""
        del labels
        return numbered(sizes(len(rows), self.sizes, seed))


class Dirichlet(Partition):
    """Each class in its own proportions, drawn from a symmetric Dirichlet distribution.

    Attributes:
        clients: how many.
        alpha: near 0 a class goes to one client, far above 1 every client gets the same share of it.
        by: the column that holds the classes; None for the label.
        minimum: rows that every client has at least.
    """

    kind: ClassVar[str] = "dirichlet"

    clients: Clients
    alpha: Annotated[float, Field(gt=0)]
    by: str | None = None
    minimum: Annotated[int, Field(ge=0)] = 1

    @property
    def column(self) -> str | None:
        """`by`."""
        return self.by

    @property
    def labelled(self) -> bool:
        """Where nothing else is named."""
        return self.by is None

    def split(self, rows: Sequence[Row], labels: Sequence[Hashable], seed: int) -> dict[str, list[int]]:
        """Client id -> positions."""
        return numbered(dirichlet(classed(rows, labels, self.by), self.clients, self.alpha, seed, self.minimum))


class Natural(Partition):
    """Rows that share a value of a column stay together.

    Attributes:
        key: the column.
        clients: None for one client a value, named after it; else values are grouped whole into that many clients of
            about equal size.
    """

    kind: ClassVar[str] = "natural"

    key: str
    clients: Clients | None = None

    @property
    def column(self) -> str | None:
        """`key`."""
        return self.key

    def split(self, rows: Sequence[Row], labels: Sequence[Hashable], seed: int) -> dict[str, list[int]]:
        """Client id -> positions."""
        del labels
        keys = [row.get(self.key) for row in rows]
        if self.clients is None:
            groups = by_value(keys)
            return dict(zip(client_names(groups), groups.values(), strict=True))
        return numbered(natural(keys, self.clients, seed))


def classed(rows: Sequence[Row], labels: Sequence[Hashable], by: str | None) -> Sequence[Hashable]:
    """One class a row: its label, or what stands in the column `by`."""
    return labels if by is None else [row.get(by) for row in rows]


def iid(count: int, clients: int, seed: int) -> list[list[int]]:
    """The positions 0..count-1, shuffled and dealt to `clients` in turn."""
    enough(count, clients, 1, "iid")
    order = numpy_generator(derive(int(seed), "iid")).permutation(count)
    return [sorted(order[client::clients].tolist()) for client in range(clients)]


def sizes(count: int, sizes: Sequence[float], seed: int) -> list[list[int]]:
    """The positions 0..count-1, shuffled and cut in proportion to `sizes`, at least one each."""
    enough(count, len(sizes), 1, "sizes")
    shares = np.asarray(sizes, dtype=np.float64) / math.fsum(sizes)
    order = numpy_generator(derive(int(seed), "sizes")).permutation(count)
    ends = np.cumsum(counts(shares, count))
    return repaired([part.tolist() for part in np.split(order, ends[:-1])], 1)


def dirichlet(labels: Sequence[Hashable], clients: int, alpha: float, seed: int, minimum: int = 1) -> list[list[int]]:
    """Positions of `labels` by client: each class is divided by its own draw from Dirichlet(alpha).

    Args:
        labels: one a row; None is a class of its own, and so is NaN.
        clients: how many lists come back.
        alpha: concentration; any positive number.
        seed: decides everything that is drawn.
        minimum: rows that each client has at least; made up from the largest clients.

    Raises:
        CotuneError: E_DATA when there are fewer rows than clients × minimum; E_CONFIG for arguments out of range.
    """
    if not 0 < alpha < math.inf:
        raise CotuneError(Code.CONFIG, "alpha out of range", where="dirichlet", got=alpha, expected="a positive number")
    enough(len(labels), clients, minimum, f"dirichlet alpha {alpha:g}")
    generator = numpy_generator(derive(int(seed), "dirichlet"))
    owner = np.zeros(len(labels), dtype=np.int64)
    for rows in sorted(by_class(labels).values(), key=len, reverse=True):
        owned = counts(proportions(generator, alpha, clients), len(rows))
        owner[generator.permutation(np.asarray(rows))] = np.repeat(np.arange(clients), owned)
    parts: list[list[int]] = [[] for _ in range(clients)]
    for row in generator.permutation(len(labels)).tolist():  # a repaired client gets a fair sample of its donor
        parts[owner[row]].append(row)
    return repaired(parts, minimum)


def natural(keys: Sequence[object], clients: int, seed: int) -> list[list[int]]:
    """Positions of `keys` by client: whole groups, the largest first, each to the client with the fewest rows yet."""
    groups = list(by_value(keys).values())
    if clients < 1 or len(groups) < clients:
        raise CotuneError(
            Code.DATA,
            "too few groups for this partition",
            where="natural",
            got=f"{len(groups)} values of the key",
            expected=f"at least {max(clients, 1)} for {clients} clients",
            fix="ask for fewer clients",
        )
    order = numpy_generator(derive(int(seed), "natural")).permutation(len(groups)).tolist()
    heap = [(0, client) for client in range(clients)]
    parts: list[list[int]] = [[] for _ in range(clients)]
    for group in sorted((groups[i] for i in order), key=len, reverse=True):
        _, client = heapq.heappop(heap)
        parts[client] += group
        heapq.heappush(heap, (len(parts[client]), client))
    return [sorted(part) for part in parts]
