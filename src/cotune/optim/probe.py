"""What zeroth-order optimizers share: theta at a distance along directions, losses there, and the step that follows.

Theta is not written to look around it: a probe is a new tensor θ + c z, so nothing has to be restored, in any dtype. A
large one is made where the model uses it and dropped after: one is there at a time, and of an embedding the rows that
are looked up. The step is a new theta, or is written over one that the view alone holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from cotune.core.errors import Code, CotuneError
from cotune.core.seeds import Purpose
from cotune.core.view import Objective, Step, View
from cotune.noise import Direction, Streams, Trace, rounded_to
from cotune.optim.near import Near


@dataclass(frozen=True)
class Probe:
    """A client's view of one step, and its directions.

    Attributes:
        view: before the step.
        kind: of the directions.
        largest: the most that an estimate of a derivative may be; None for no limit.
    """

    view: View
    kind: Direction
    largest: float | None = None

    @cached_property
    def streams(self) -> Streams:
        """Of the seed that the server issued, or, where nothing is to be replayed, of the client's own."""
        view = self.view
        seed = view.directions or view.seed(Purpose.DIRECTIONS)
        return Streams(view.spec, self.kind, seed, view.tick, view.pool)

    @property
    def here(self) -> dict[str, Tensor]:
        """θ itself, to be looked at as `at` looks: cast to the dtype that a model computes in one tensor at a time."""
        return {name: Near(tensor, 0.0, (), 0).tensor() for name, tensor in self.view.trained.items()}

    def at(self, number: int, distance: float, blocks: Iterable[int] | None = None) -> dict[str, Tensor]:
        """`θ + distance · z`, the tensors that direction `number` moves in these blocks, all by default; by name."""
        view, moved, found = self.view, {}, {}
        wanted = None if blocks is None else set(blocks)
        for name, tensor in view.trained.items():
            place = self.streams.places[name]
            if wanted is not None and place.block not in wanted:
                continue
            if place.block not in found:
                found[place.block] = self.streams.draws(view.step, place.block, [number])
            moved[name] = Near(tensor, distance, found[place.block], place.start).tensor()
        return moved

    def slope(self, ahead: float, behind: float, distance: float) -> float:
        """`(L₊ − L₋) / distance` within the limit; NaN where a loss is not finite."""
        slope = (ahead - behind) / distance
        if not math.isfinite(slope):
            return math.nan
        return slope if self.largest is None else max(-self.largest, min(slope, self.largest))

    def step(self, slopes: Mapping[str, Sequence[float]], rates: Mapping[str, float], losses: Sequence[float]) -> Step:
        """The step with coefficients `− rate / P · slope`, rounded as they are sent before theta moves by them.

        A direction whose slope is not finite moves nothing.

        Args:
            slopes: key of a block, or `all` -> slope along each of its P directions.
            rates: learning rates by the same keys; the schedule's factor comes on top.
            losses: all that were measured; their mean stands for the loss before the step.

        Raises:
            CotuneError: E_NONFINITE when no slope is finite.
        """
        view = self.view
        if not any(math.isfinite(slope) for known in slopes.values() for slope in known):
            where = f"client {view.client}, round {view.round}, step {view.step + 1}"
            fix = "lower the learning rate or mu"
            raise CotuneError(Code.NONFINITE, "no loss near theta is finite", where=where, fix=fix)
        coefficients = {}
        for key, known in slopes.items():
            rate = rates[key] * view.rate / len(known)
            finite = [-rate * slope if math.isfinite(slope) else 0.0 for slope in known]
            coefficients[key] = rounded_to(view.tick, torch.tensor(finite, dtype=torch.float64))
        moved = {n: self.streams.start(tensor, tensor if view.own else None) for n, tensor in view.trained.items()}
        self.streams.add_(moved, [coefficients], first=view.step)
        loss = torch.tensor(sum(losses) / len(losses), dtype=torch.float64)
        return Step(view.moved(moved), None, Trace(self.kind, coefficients), None, loss)


def mean_loss(objective: Objective, tensors: Mapping[str, Tensor]) -> float:
    """The mean loss over all rows of a step at `tensors`, added up in float64."""
    return sum(float(portion(tensors).double().sum()) for portion in objective.microbatches()) / objective.rows
