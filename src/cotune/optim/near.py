"""θ + c z, made where it is used: what looks around theta needs room for one weight, and none for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from cotune.core.unmade import Unmade
from cotune.noise import Draw, add_many_, add_rows_

SMALL = 2**14  # numbers of a tensor that is made at once: it takes no room, and whoever uses it may use it often


@dataclass(frozen=True)
class Near:
    """`θ + distance · z` of one tensor, as a recipe; without draws, θ itself.

    Attributes:
        like: θ, which is not written to.
        distance: c.
        draws: of z; one, or none.
        start: the tensor's first element in the streams.
    """

    like: Tensor
    distance: float
    draws: Sequence[Draw]
    start: int

    def part(self, rows: Tensor | None = None) -> Tensor:
        """All of it, or these rows, ascending, int64: the same bits either way."""
        distances = [self.distance] * len(self.draws)
        if rows is not None:
            return add_rows_(self.like[rows], rows, len(self.like), distances, self.draws, start=self.start)
        return add_many_(self.like.clone(), distances, self.draws, self.start) if self.draws else self.like

    def tensor(self) -> Tensor:
        """The tensor to hand out: made already where it is small."""
        return self.part() if self.like.numel() <= SMALL else Unmade(self)
