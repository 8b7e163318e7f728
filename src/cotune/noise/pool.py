"""A pool of candidate directions, the same in every run: theta is its start, and one whole number for each of them.

θ = θ₀ + tick · Σ_j C_j z_j with θ₀ on the lattice of ticks, so it does not matter in which order, by whom and in how
many rounds the C_j came about: the numbers alone, and not their history, are the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from cotune.core.change import Origin
from cotune.core.errors import Code, CotuneError
from cotune.core.state import Theta
from cotune.noise.directions import Direction, Draw, add_many_
from cotune.noise.lattice import from_ticks
from cotune.noise.philox import WORD
from cotune.noise.replay import ALL, CANDIDATES, Streams

COMMITS = "pool/commits"  # aux: in how many rounds numbers were added to


def counts(block: int) -> str:
    """The name, as aux, of the C_j of a block: float32 (candidates,), whole numbers of ticks."""
    return f"pool/{block}"


@dataclass(frozen=True)
class Pooled:
    """A change along candidates: theta as it went down, and how many ticks it moved along which of them.

    Attributes:
        origin: theta, the client's table, and what trained.
        tick: what coefficients are whole numbers of.
        candidates: key of a block -> (steps, directions) int32.
        ticks: key of a block -> (steps, directions) int32, how far along each.
    """

    origin: Origin
    tick: float
    candidates: Mapping[str, Tensor]
    ticks: Mapping[str, Tensor]

    def dense(self) -> Theta:
        """theta_k of the names that went up, bit for bit the client's."""
        streams = Streams(self.origin.spec, Direction.SIGN, CANDIDATES, self.tick)
        lines, found = {block: self._line(block) for block in streams.totals}, {}
        for name in self.origin.scope.up:
            place = streams.places[name]
            found[name] = add_many_(streams.start(self.origin.anchor[name]), *lines[place.block], place.start)
        return Theta(found)

    def add_to(self, total: dict[str, Tensor], weight: float) -> None:
        """`total += weight · theta_k` in float64."""
        for name, tensor in self.dense().items():
            total[name].add_(tensor.double(), alpha=weight)

    def scalars(self) -> Mapping[str, Tensor]:
        """The coefficients, by kind and block."""
        return {f"{Direction.SIGN}/{key}": from_ticks(ticks, self.tick) for key, ticks in self.ticks.items()}

    def sums(self, size: int) -> dict[int, Tensor]:
        """Block -> ticks along each of `size` candidates, float64 (size,).

        Raises:
            CotuneError: E_SCALAR for a candidate outside the pool.
        """
        found = {}
        for block in {entry.block for entry in self.origin.spec}:
            which, ticks = self._mine(self.candidates, block), self._mine(self.ticks, block)
            wrong = which[(which < 0) | (which >= size)]
            if len(wrong):
                raise CotuneError(
                    Code.SCALAR, "a candidate outside the pool", got=int(wrong[0]), expected=f"0 … {size - 1}"
                )
            found[block] = torch.zeros(size, dtype=torch.float64).index_add_(0, which, ticks.double())
        return found

    def moved(self, anchor: Theta, up: tuple[str, ...], sums: Mapping[int, Tensor]) -> Self:
        """The change from `anchor` by whole numbers of ticks along all candidates, by block."""
        origin = replace(self.origin, anchor=anchor, scope=replace(self.origin.scope, up=up))
        ticks = {str(block): each.int()[None] for block, each in sums.items()}
        every = {key: torch.arange(each.numel(), dtype=torch.int32)[None] for key, each in ticks.items()}
        return replace(self, origin=origin, candidates=every, ticks=ticks)

    def _line(self, block: int) -> tuple[list[float], list[Draw]]:
        which, ticks = self._mine(self.candidates, block), self._mine(self.ticks, block)
        draws = [Draw(Direction.SIGN, CANDIDATES, block * WORD + number) for number in which.tolist()]
        return from_ticks(ticks, self.tick).tolist(), draws

    @staticmethod
    def _mine(named: Mapping[str, Tensor], block: int) -> Tensor:
        """The numbers of one block, flat."""
        mine = named.get(ALL, named.get(str(block)))
        return torch.empty(0, dtype=torch.int32) if mine is None else mine.flatten()


def sent(candidates: Mapping[str, Tensor], ticks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Both as a message names them: `sign/KEY` and `candidate/KEY`."""
    named = {f"{Direction.SIGN}/{key}": tensor for key, tensor in ticks.items()}
    return named | {f"candidate/{key}": tensor for key, tensor in candidates.items()}
