"""What a cut of the model is worth to zeroth-order descent, from the gradient's energies and the halves' costs.

| symbol | field | what |
|---|---|---|
| d₁, d₂ | front_numbers, back_numbers | how many numbers train in each half |
| F₁, F₂ | front_flops, back_flops | the cost of a pass through each half; F = F₁ + F₂ |
| n₁, n₂ | front_energy, back_energy | ‖∇₁‖², ‖∇₂‖², mean over batches |

Along signs, an estimate of ∇ from one slope of the whole model has the variance (d − 1) ‖∇‖², so that P of them have
d (n₁ + n₂) / P, at the cost of 2 P F where differences are central and (P + 1) F where they are forward. In halves,
what the one half's direction does to the other's slope is gone: the variance is d₁ n₁ / P₁ + d₂ n₂ / P₂ with
P₂ = 2 P₁ P_s, at the cost of P₁ (2 F₁ + 4 P_s F₂). Variance times cost is the price of a precision; P₁ drops out. With
R = n₂ / n₁, φ = F₂ / F and δ = d₂ / d,

    saving(P_s) = (1 + R) / ((1 − δ + δ R / 2 P_s) (1 − φ + 2 P_s φ))

over central differences, and (P + 1) / 2P times that over forward ones; it is largest at
P_s² = δ R (1 − φ) / (4 φ (1 − δ)). Where numbers cost alike in both halves, δ = φ, and P_s = 1, that is
2 (1 + R) / ((1 − φ + φ R / 2) (2 + 2 φ)).

Variance is not progress: the formula takes each half's error for as harmful as the other's, and knows no learning
rates. Where R is large, most of what it calls a saving is the front half's noise, which one shared rate pays for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Cut:
    """A model cut before a layer, and what it costs to look at each half; see the module for the symbols."""

    layer: int
    front_numbers: int
    back_numbers: int
    front_flops: float
    back_flops: float
    front_energy: float
    back_energy: float

    @property
    def energy_ratio(self) -> float:
        """R = n₂ / n₁; infinite where nothing in front has a gradient."""
        return self.back_energy / self.front_energy if self.front_energy else math.inf

    @property
    def cost_share(self) -> float:
        """φ = F₂ / F."""
        return self.back_flops / (self.front_flops + self.back_flops)

    @property
    def number_share(self) -> float:
        """δ = d₂ / d."""
        return self.back_numbers / (self.front_numbers + self.back_numbers)

    @property
    def again(self) -> int:
        """The whole P_s, 1 or more, at which the saving is largest."""
        front = self.front_numbers * self.front_energy * self.back_flops
        back = self.back_numbers * self.back_energy * self.front_flops
        if not front:
            return 1
        low = max(1, math.floor(math.sqrt(back / front) / 2))
        return max((low, low + 1), key=self.saving)

    def saving(self, again: int = 1, forward: int | None = None) -> float:
        """The cost of a precision by slopes of the whole model over that in halves; above 1, halves are cheaper.

        Args:
            again: P_s.
            forward: the peer's P of forward differences; None for central ones, whose P drops out.
        """
        numbers, flops = self.front_numbers + self.back_numbers, self.front_flops + self.back_flops
        whole = numbers * (self.front_energy + self.back_energy) * 2 * flops
        front, back = self.front_numbers * self.front_energy, self.back_numbers * self.back_energy / (2 * again)
        halves = (front + back) * (2 * self.front_flops + 4 * again * self.back_flops)
        peer = 1.0 if forward is None else (forward + 1) / (2 * forward)
        return peer * whole / halves if halves else math.nan


def best(cuts: list[Cut]) -> Cut:
    """The cut that saves most at its own P_s; the first of equal ones."""
    return max(cuts, key=lambda cut: cut.saving(cut.again))
