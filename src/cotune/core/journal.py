"""The server's journal: one increment a committed round, from which any held version is brought up to date."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from cotune.core.change import Base


@dataclass(frozen=True)
class Increment:
    """What one committed round changed.

    Attributes:
        round: the version that it leads to; version 0 is the start.
        names: the theta names that changed.
        base: what was added to the backbone.
        scalars: `client/name` -> what replays the change of a client that sent scalars, with its `seed` and `weight`.
    """

    round: int
    names: tuple[str, ...]
    base: Base = field(default_factory=Base)
    scalars: Mapping[str, Tensor] = field(default_factory=dict)


class Journal(Protocol):
    """Increments in the order of their rounds; an abandoned round has none."""

    def append(self, increment: Increment) -> None:
        """Add a round's increment."""
        ...

    def since(self, held: int) -> Sequence[Increment]:
        """The increments that lead from version `held` to the newest."""
        ...
