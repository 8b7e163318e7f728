"""Zeroth-order descent on the whole model: MeZO, FedZO, DeComFL, and what lies between them.

| symbol | field | what |
|---|---|---|
| μ | mu | how far theta is moved to look |
| P | directions | how many ways it looks in a step |
| z_i | direction | one of them |

central: g_i = (L(θ + μ z_i) − L(θ − μ z_i)) / 2μ;  forward: g_i = (L(θ + μ z_i) − L(θ)) / μ

θ ← θ − lr / P · Σ g_i z_i
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field

from cotune.core.contracts import Layout, Optimizer
from cotune.core.part import Capability
from cotune.core.view import NamedTensors, Objective, Step, View
from cotune.noise import ALL, Direction
from cotune.optim.limited import cut_slopes
from cotune.optim.probe import Probe, mean_loss


class ZO(Optimizer):
    """θ ← θ − lr / P · Σ g z, where g is the slope of the loss along z, seen by forward passes alone.

    Attributes:
        lr: about lr of SGD over the number of trained numbers.
        directions: P.
        mu: a power of two, so that μ z is exact.
        difference: central looks on both sides of theta, forward ahead and, once a step, at theta itself.
        direction: sign, or what a paper used.
        largest: a slope beyond it is cut to it; None for no limit.
    """

    kind: ClassVar[str] = "zo"
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.REPLAY})
    lr: Annotated[float, Field(ge=0)]
    directions: Annotated[int, Field(ge=1, le=10**5)] = 1
    mu: Annotated[float, Field(gt=0)] = 2.0**-10
    difference: Literal["central", "forward"] = "central"
    direction: Direction = Direction.SIGN
    largest: Annotated[float, Field(gt=0)] | None = None

    def init(self, view: View) -> None:
        """No state."""

    @torch.no_grad()
    def step(self, view: View, state: None, objective: Objective) -> Step:
        """One step; 2 P passes, or P + 1."""
        probe, slopes, losses = Probe(view, self.direction, self.largest), list[float](), list[float]()
        here = mean_loss(objective, probe.here) if self.difference == "forward" else 0.0
        for number in range(self.directions):
            ahead = mean_loss(objective, probe.at(number, self.mu))
            if self.difference == "forward":
                behind, distance = here, self.mu
            else:
                behind, distance = mean_loss(objective, probe.at(number, -self.mu)), 2 * self.mu
            slopes.append(probe.slope(ahead, behind, distance))
            losses += [ahead, behind]
        return probe.step({ALL: slopes}, {ALL: self.lr}, losses)

    def traced(self, steps: int) -> Layout:
        """P coefficients a step."""
        return {f"{self.direction}/{ALL}": ("float32", (steps, self.directions))}

    def describe(self, traces: Sequence[NamedTensors], rate: float = 1.0) -> Mapping[str, float]:
        """How many slopes the limit has cut."""
        unit = rate * self.lr / self.directions
        sent = (tensor for trace in traces for name, tensor in trace.items() if name.startswith(f"{self.direction}/"))
        return cut_slopes(((coefficients, unit) for coefficients in sent), self.largest)
