"""How rows are divided among clients: every row goes to exactly one client, and a seed alone decides which.

Classes are met from the most frequent to the rarest, ties in the order of first appearance, so neither the names nor
the types of labels matter; nothing iterates over a set.
"""

from __future__ import annotations

import heapq
import math
from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from cotune.core.contracts import Row
from cotune.core.errors import Code, CotuneError
from cotune.core.part import Part
from cotune.core.seeds import derive, numpy_generator
from cotune.task.column import by_class, by_value, client_names

Clients = Annotated[int, Field(ge=1, le=10**6)]
_EXTREME = 1e12  # beyond it, or below 1 / it, nothing changes any more, and logarithms would overflow


class Partition(Part):
    """How rows are divided among clients."""

    @property
    def column(self) -> str | None:
        """The column that it reads in every row, beside the label."""
        return None

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
        return _numbered(iid(len(rows), self.clients, seed))


class Sizes(Partition):
    """Shuffled rows, in proportion to given sizes."""

    kind: ClassVar[str] = "sizes"

    sizes: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)]

    def split(self, rows: Sequence[Row], labels: Sequence[Hashable], seed: int) -> dict[str, list[int]]:
        """Client id -> positions; nobody is left without a row."""
        del labels
        return _numbered(sizes(len(rows), self.sizes, seed))


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

    def split(self, rows: Sequence[Row], labels: Sequence[Hashable], seed: int) -> dict[str, list[int]]:
        """Client id -> positions."""
        classes = labels if self.by is None else [row.get(self.by) for row in rows]
        return _numbered(dirichlet(classes, self.clients, self.alpha, seed, self.minimum))


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
        return _numbered(natural(keys, self.clients, seed))


PARTITIONS: Mapping[str, type[Partition]] = {
    "dirichlet": Dirichlet,
    "iid": Iid,
    "natural": Natural,
    "sizes": Sizes,
}


def iid(count: int, clients: int, seed: int) -> list[list[int]]:
    """The positions 0..count-1, shuffled and dealt to `clients` in turn."""
    _enough(count, clients, 1, "iid")
    order = numpy_generator(derive(int(seed), "iid")).permutation(count)
    return [sorted(order[client::clients].tolist()) for client in range(clients)]


def sizes(count: int, sizes: Sequence[float], seed: int) -> list[list[int]]:
    """The positions 0..count-1, shuffled and cut in proportion to `sizes`, at least one each."""
    _enough(count, len(sizes), 1, "sizes")
    shares = np.asarray(sizes, dtype=np.float64) / math.fsum(sizes)
    order = numpy_generator(derive(int(seed), "sizes")).permutation(count)
    ends = np.cumsum(_counts(shares, count))
    return _repaired([part.tolist() for part in np.split(order, ends[:-1])], 1)


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
    _enough(len(labels), clients, minimum, f"dirichlet alpha {alpha:g}")
    generator = numpy_generator(derive(int(seed), "dirichlet"))
    owner = np.zeros(len(labels), dtype=np.int64)
    for rows in sorted(by_class(labels).values(), key=len, reverse=True):
        counts = _counts(_proportions(generator, alpha, clients), len(rows))
        owner[generator.permutation(np.asarray(rows))] = np.repeat(np.arange(clients), counts)
    parts: list[list[int]] = [[] for _ in range(clients)]
    for row in generator.permutation(len(labels)).tolist():  # a repaired client gets a fair sample of its donor
        parts[owner[row]].append(row)
    return _repaired(parts, minimum)


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


def _numbered(parts: Sequence[list[int]]) -> dict[str, list[int]]:
    width = max(2, len(str(len(parts) - 1)))
    return {f"client-{client:0{width}d}": rows for client, rows in enumerate(parts)}


def _enough(rows: int, clients: int, minimum: int, where: str) -> None:
    if clients < 1 or minimum < 0:
        got = f"clients {clients}, minimum {minimum}"
        raise CotuneError(Code.CONFIG, "no such partition", where=where, got=got, expected="clients ≥ 1, minimum ≥ 0")
    if rows < clients * minimum:
        raise CotuneError(
            Code.DATA,
            "too few rows for this partition",
            where=where,
            got=f"{rows} rows",
            expected=f"at least {clients * minimum} for {clients} clients with minimum {minimum}",
            fix="ask for fewer clients or a smaller minimum",
        )


def _proportions(generator: np.random.Generator, alpha: float, clients: int) -> npt.NDArray[np.float64]:
    """One draw from Dirichlet(alpha), in logarithms: log Γ(a) = log Γ(a+1) + log(U)/a never underflows to 0/0."""
    alpha = min(max(alpha, 1 / _EXTREME), _EXTREME)
    uniform = 1.0 - generator.random(clients)  # in (0, 1]
    logs = np.log(generator.standard_gamma(alpha + 1.0, clients)) + np.log(uniform) / alpha
    shares: npt.NDArray[np.float64] = np.exp(logs - logs.max())
    shares /= shares.sum()
    return shares


def _counts(shares: npt.NDArray[np.float64], total: int) -> npt.NDArray[np.int64]:
    """`total` in proportion to `shares`, as integers that sum to it: largest remainders first, ties to the left."""
    quotas = shares * total
    counts = np.floor(quotas).astype(np.int64)
    order = np.argsort(counts - quotas, kind="stable")
    counts[order[: total - int(counts.sum())]] += 1
    return counts


def _repaired(parts: list[list[int]], minimum: int) -> list[list[int]]:
    """`parts` sorted, after each client below `minimum` was given rows of whoever has the most."""
    heap = [(-len(rows), client) for client, rows in enumerate(parts)]
    heapq.heapify(heap)
    for rows in parts:
        while len(rows) < minimum:
            size, donor = heapq.heappop(heap)
            if -size == len(parts[donor]):
                rows.append(parts[donor].pop())
            heapq.heappush(heap, (-len(parts[donor]), donor))
    return [sorted(rows) for rows in parts]
