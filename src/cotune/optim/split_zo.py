"""FedSPZO's estimator (Ahmed, Pfeiffer, Khalili, Khdr and Henkel, 2025): the model in two halves, f = f₂ ∘ f₁.

| symbol | field | what |
|---|---|---|
| μ | mu | how far theta is moved to look |
| P₁ | directions | directions of θ₁, the front half |
| P_s | again | fresh directions of θ₂ a side of each |
| z₁, z₂ | direction | sign by default |

For each of P₁ directions and each side s = ±: y = f₁(θ₁ + s μ z₁), once; for each of P_s directions z₂, both signs,
L± = f₂(θ₂ ± μ z₂; y), g₂ = (L₊ − L₋) / 2μ, and L̄_s is the mean of all 2 P_s losses, which cancels what z₂ does to first
order. g₁ = (L̄₊ − L̄₋) / 2μ. So P₂ = 2 P₁ P_s, and

    θ₁ ← θ₁ − lr / P₁ · Σ g₁ z₁;  θ₂ ← θ₂ − lr₂ / P₂ · Σ g₂ z₂

in 2 P₁ passes through f₁ and 4 P₁ P_s through f₂. That wins something only if θ₂, whose estimate has so much less
variance, takes longer steps than θ₁: lr₂ is lr unless it is given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from cotune.core.contracts import Layout, Optimizer
from cotune.core.errors import Code, CotuneError
from cotune.core.part import Capability
from cotune.core.view import NamedTensors, Objective, SplitObjective, Step, View
from cotune.noise import Direction
from cotune.optim.limited import cut_slopes
from cotune.optim.probe import Probe

FRONT, BACK = 0, 1
IN_FRONT = 0.75  # of the layers, where nobody says


class SplitZO(Optimizer):
    """θ ← θ − lr / P · Σ g z in each half of the model, the front half's passes used again for the back half.

    Attributes:
        lr: of the front half.
        lr_back: of the back half; None for the same.
        directions: P₁.
        again: P_s.
        cut: the first layer of the back half, counted from 0; or the share of the trained numbers that is to be in
            front, by the nearest layer; None for three quarters of the layers, since passes behind are paid for again.
        mu: a power of two, so that μ z is exact.
        direction: sign, or what a paper used.
        share_z2: both sides of a z₁ look along the same z₂, and P₂ = P₁ P_s.
        independent_blocks: the ablation: each half is looked at with the other in place; P₂ is as without.
        largest: a slope beyond it is cut to it; None for no limit.
    """

    kind: ClassVar[str] = "split-zo"
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.REPLAY})
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.SPLIT})
    lr: Annotated[float, Field(ge=0)]
    lr_back: Annotated[float, Field(ge=0)] | None = None
    directions: Annotated[int, Field(ge=1, le=10**5)] = 1
    again: Annotated[int, Field(ge=1, le=10**5)] = 1
    cut: Annotated[int, Field(ge=1)] | Annotated[float, Field(gt=0, lt=1)] | None = None
    mu: Annotated[float, Field(gt=0)] = 2.0**-10
    direction: Direction = Direction.SIGN
    share_z2: bool = False
    independent_blocks: bool = False
    largest: Annotated[float, Field(gt=0)] | None = None

    @property
    def back_directions(self) -> int:
        """P₂."""
        return self.directions * self.again * (1 if self.share_z2 else 2)

    def layer(self, ahead: Sequence[int]) -> int:
        """The first layer of the back half, given the trained numbers before layer 1, 2, …, and all of them."""
        if isinstance(self.cut, int):
            return self.cut
        *within, total = ahead
        if self.cut is None:
            return min(max(round(IN_FRONT * len(ahead)), 1), len(within))
        share = self.cut
        return min(range(len(within)), key=lambda i: abs(within[i] - share * total)) + 1

    def init(self, view: View) -> None:
        """No state."""

    @torch.no_grad()
    def step(self, view: View, state: None, objective: Objective) -> Step:
        """One step.

        Raises:
            CotuneError: E_CONFLICT for an objective that does not come in halves.
        """
        if not isinstance(objective, SplitObjective):
            raise CotuneError(Code.CONFLICT, "the objective does not run in two halves", where=self.kind)
        probe = Probe(view, self.direction, self.largest)
        halves = _Halves(probe.here, objective)
        front, back, losses = self._apart(probe, halves) if self.independent_blocks else self._nested(probe, halves)
        rates = {str(FRONT): self.lr, str(BACK): self.lr if self.lr_back is None else self.lr_back}
        return probe.step({str(FRONT): front, str(BACK): back}, rates, losses)

    def traced(self, steps: int) -> Layout:
        """P₁ + P₂ coefficients a step."""
        counts = {FRONT: self.directions, BACK: self.back_directions}
        return {f"{self.direction}/{block}": ("float32", (steps, count)) for block, count in counts.items()}

    def describe(self, traces: Sequence[NamedTensors], rate: float = 1.0) -> Mapping[str, float]:
        """R = ‖∇₂‖² / ‖∇₁‖², the energies of the gradient behind and in front, and the P_s at which they cost least.

        Beside them, how many slopes the limit has cut.

        A slope along signs has the expected square ‖∇‖²; without noise and with passes as costly as their half is
        large, variance times cost is least at P_s = √R / 2, and never below 1.
        """
        found = {FRONT: list[Tensor](), BACK: list[Tensor]()}
        for trace in traces:
            for name, tensor in trace.items():
                what, _, block = name.partition("/")
                if what == self.direction:  # and not which candidates of a pool were taken
                    found[int(block)].append(tensor)  # as it is: of many clients, copies would be most of the memory
        back_rate = self.lr if self.lr_back is None else self.lr_back
        units = {FRONT: self.lr / self.directions, BACK: back_rate / self.back_directions}
        sent = ((c.double(), rate * units[block]) for block, every in found.items() for c in every)
        cut = cut_slopes(sent, self.largest)
        if not all(found.values()) or not all(units.values()):
            return cut
        slopes = (torch.cat(found[block]).double() / units[block] for block in (FRONT, BACK))
        front, back = (float(every.square().mean()) for every in slopes)
        if not front:
            return cut
        return {"energy_ratio": back / front, "suggested_again": max(1.0, math.sqrt(back / front) / 2), **cut}

    def _nested(self, probe: Probe, halves: _Halves) -> tuple[list[float], list[float], list[float]]:
        """Slopes of the front, slopes of the back, and all losses, as published."""
        front, every = list[float](), list[float]()
        back = [list[float]() for _ in range(self.back_directions)]
        for i in range(self.directions):
            means = []
            for side, sign in enumerate((1.0, -1.0)):
                ahead = probe.at(i, sign * self.mu, [FRONT])
                halfway, losses = halves.front(ahead), list[float]()
                for j in range(self.again):
                    number = (i if self.share_z2 else 2 * i + side) * self.again + j
                    pair = self._both(probe, halves, number, ahead, halfway)
                    back[number].append(probe.slope(*pair, 2 * self.mu))
                    losses += pair
                means.append(sum(losses) / len(losses))
                every += losses
            front.append(probe.slope(means[0], means[1], 2 * self.mu))
        return front, [sum(slopes) / len(slopes) for slopes in back], every

    def _apart(self, probe: Probe, halves: _Halves) -> tuple[list[float], list[float], list[float]]:
        """The same of each half by itself."""
        front, back, every = list[float](), list[float](), list[float]()
        for i in range(self.directions):
            sides = [probe.at(i, sign * self.mu, [FRONT]) for sign in (1.0, -1.0)]
            losses = [halves.back(moved, halves.front(moved)) for moved in sides]
            front.append(probe.slope(losses[0], losses[1], 2 * self.mu))
            every += losses
        here = halves.front({})
        for number in range(self.back_directions):
            pair = self._both(probe, halves, number, {}, here)
            back.append(probe.slope(*pair, 2 * self.mu))
            every += pair
        return front, back, every

    def _both(
        self, probe: Probe, halves: _Halves, number: int, ahead: NamedTensors, halfway: list[Any]
    ) -> tuple[float, float]:
        """L₊ and L₋ along direction `number` of the back half."""
        plus, minus = (
            halves.back({**ahead, **probe.at(number, sign * self.mu, [BACK])}, halfway) for sign in (1.0, -1.0)
        )
        return plus, minus


class _Halves:
    """The two halves of a step's objective, portion by portion; a tensor that is not given is as it is `here`."""

    def __init__(self, here: NamedTensors, objective: SplitObjective) -> None:
        self.here, self.rows, self.portions = here, objective.rows, list(objective.microbatches())

    def front(self, tensors: NamedTensors) -> list[Any]:
        """What each portion arrives at."""
        return [portion.front({**self.here, **tensors}) for portion in self.portions]

    def back(self, tensors: NamedTensors, halfway: list[Any]) -> float:
        """The mean loss over all rows."""
        everything = {**self.here, **tensors}
        parts = (p.back(everything, y) for p, y in zip(self.portions, halfway, strict=True))
        return sum(float(losses.double().sum()) for losses in parts) / self.rows
