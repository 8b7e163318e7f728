"""The server's journal: one increment a committed round, from which any held version is brought up to date."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from cotune.core.change import Base
from cotune.core.state import Theta


@dataclass(frozen=True)
class Reply:
    """A reply of scalars that counted, as whoever folds it again must know it; whose it was, nobody needs.

    Attributes:
        group: its client's group in the federation, counted from 1; 0 for none.
        seed: the one that the server issued for its directions.
        weight: its share before normalisation.
        scalars: by name, as they went up.
    """

    group: int
    seed: int
    weight: float
    scalars: Mapping[str, Tensor]


@dataclass(frozen=True)
class Increment:
    """What one committed round changed.

    Attributes:
        round: the version that it leads to; version 0 is the start.
        names: the theta names that changed.
        base: what was added to the backbone.
        replies: all that counted, in the order of the fold; none where one of them was not scalars alone.
    """

    round: int
    names: tuple[str, ...]
    base: Base = field(default_factory=Base)
    replies: tuple[Reply, ...] = ()


Refold = Callable[[Theta, Increment], Theta]  # the theta that a round's replies make of the one before it


class Journal(Protocol):
    """Increments in the order of their rounds; an abandoned round has none."""

    def append(self, increment: Increment) -> None:
        """Add a round's increment."""
        ...

    def since(self, held: int) -> Sequence[Increment]:
        """The increments that lead from version `held` to the newest; the oldest of too many may be gone."""
        ...
