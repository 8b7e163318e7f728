"""Clients that differ in how much they have, and in nothing else."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from cotune.core.contracts import Row
from cotune.core.seeds import derive, numpy_generator
from cotune.task.dealing import counts, enough, numbered, proportions, repaired
from cotune.task.partition import Clients, Partition


class Quantity(Partition):
    """Shuffled rows, in sizes drawn from a symmetric Dirichlet distribution over the clients.

    Attributes:
        clients: how many.
        alpha: near 0 one client has nearly all rows, far above 1 all have the same number.
        minimum: rows that every client has at least, made up from the largest clients.
    """

    kind: ClassVar[str] = "quantity"

    clients: Clients
    alpha: Annotated[float, Field(gt=0)]
    minimum: Annotated[int, Field(ge=0)] = 1

    def split(self, rows: Sequence[Row], labels: Sequence[Hashable], seed: int) -> dict[str, list[int]]:
        """Client id -> positions."""
        del labels
        enough(len(rows), self.clients, self.minimum, f"quantity alpha {self.alpha:g}")
        generator = numpy_generator(derive(int(seed), "quantity"))
        ends = np.cumsum(counts(proportions(generator, self.alpha, self.clients), len(rows)))
        parts = [part.tolist() for part in np.split(generator.permutation(len(rows)), ends[:-1])]
        return numbered(repaired(parts, self.minimum))
