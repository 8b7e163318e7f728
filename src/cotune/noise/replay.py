"""Steps along directions as numbers: where each tensor lies in the streams, and how a step is made and made again.

A block of a spec is one stream of numbers: its tensors one after another, in the spec's order, whatever trains. The
client moves theta by `Streams.add_`, and so does whoever replays it: in the order (step, block, direction), element by
element.

| what | of what |
|---|---|
| seed of a step | derived from (the seed that the server issued for a client and a round, step) |
| stream | block · 2³² + direction |
| key of coefficients | the block they belong to; `all` where each moves every block |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from cotune.core.seeds import derive
from cotune.core.spec import Spec
from cotune.noise.directions import Direction, Draw, add_many_
from cotune.noise.lattice import snapped
from cotune.noise.philox import WORD

ALL = "all"
CANDIDATES = derive(0, "candidates")  # the seed of every pool: a model that is numbers along them needs no run's seed
Coefficients = Mapping[str, Tensor]  # key -> (directions,) float32


@dataclass(frozen=True)
class Place:
    """Where a tensor lies.

    Attributes:
        block: which stream.
        start: index of its first element in it.
    """

    block: int
    start: int


@dataclass(frozen=True)
class Trace:
    """One step as it is sent.

    Attributes:
        kind: of its directions.
        coefficients: final ones, learning rate and 1 / P in.
    """

    kind: Direction
    coefficients: Coefficients


@dataclass(frozen=True)
class Streams:
    """The directions of one client in one round.

    Attributes:
        spec: the client's table.
        kind: of the directions.
        seed: the one that the server issued.
        tick: theta starts from multiples of it; 0 for theta as it is.
        pool: how many candidates directions are picked from; 0 where every step has its own.
    """

    spec: Spec
    kind: Direction
    seed: int
    tick: float = 0.0
    pool: int = 0

    @cached_property
    def places(self) -> dict[str, Place]:
        """Where every tensor of the spec lies."""
        found, filled = {}, dict[int, int]()
        for entry in self.spec:
            start = filled.get(entry.block, 0)
            found[entry.name] = Place(entry.block, start)
            filled[entry.block] = start + entry.numel
        return found

    @cached_property
    def totals(self) -> dict[int, int]:
        """Block -> how many numbers it has."""
        found = dict[int, int]()
        for entry in self.spec:
            found[entry.block] = found.get(entry.block, 0) + entry.numel
        return found

    def draws(self, step: int, block: int, numbers: Sequence[int]) -> list[Draw]:
        """The directions of these numbers in one block at one step, which counts from 0."""
        key, total = derive(self.seed, step), self.totals[block]
        if self.pool:
            key, numbers = CANDIDATES, [self.candidate(step, number) for number in numbers]
        return [Draw.of(self.kind, key, block * WORD + number, total) for number in numbers]

    def candidate(self, step: int, number: int) -> int:
        """Which of a pool's candidates a direction is, the same in every block."""
        return derive(self.seed, step, number) % self.pool

    def lines(self, steps: Sequence[Coefficients], first: int = 0) -> dict[int, tuple[list[float], list[Draw]]]:
        """Block -> coefficients and directions of some steps in their order; the first of them has number `first`."""
        found = {}
        for block in self.totals:
            values, drawn = list[float](), list[Draw]()
            for step, coefficients in enumerate(steps, start=first):
                mine = coefficients.get(ALL, coefficients.get(str(block)))
                if mine is not None:
                    values += mine.tolist()
                    drawn += self.draws(step, block, range(len(mine)))
            found[block] = values, drawn
        return found

    def start(self, tensor: Tensor, out: Tensor | None = None) -> Tensor:
        """A tensor as steps are added to it: a copy, on the lattice where there is one; in `out` if that is given."""
        copy = torch.empty_like(tensor) if out is None else out
        return snapped(tensor, self.tick, copy) if self.tick else copy.copy_(tensor)

    def add_(self, tensors: Mapping[str, Tensor], steps: Sequence[Coefficients], first: int = 0) -> None:
        """Move tensors of the spec along some steps, in place, by name; the first step has number `first`."""
        lines = self.lines(steps, first)
        for name, tensor in tensors.items():
            place = self.places[name]
            add_many_(tensor, *lines[place.block], place.start)
