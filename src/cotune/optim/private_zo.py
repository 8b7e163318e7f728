"""Zeroth-order descent with noise: what a row changes in a step is bounded, and drowned (DPZero, 2023; DP-ZO, 2024).

| symbol | field | what |
|---|---|---|
| μ | mu | how far theta is moved to look |
| P | directions | how many ways it looks in a step |
| C | limit | what the slope of one row may be |
| σ | sigma | noise, in units of C over the rows of a step |

Along direction z_i, of the b rows of a step:

    s_r = (L_r(θ + μ z_i) − L_r(θ − μ z_i)) / 2μ;  g_i = 1 / b · Σ_r clip(s_r, ±C) + N(0, (σ C / b)²)

**Sensitivity.** Two clients are neighbours when one row of one is replaced by another: the number of rows is sent, and
orders the batches, so it is no secret. A row that is m times in a step (once, but where `budget.accumulate` makes a
step of more than a pass) moves the mean of the clipped slopes by at most

    Δ = 2 m C / b,  so that the noise is σ / 2m of what it hides

in each of P directions. The factor is 2, not 1, since a slope may go from −C to C; who counts a row that only falls
silent has Δ = m C / b, and claims half of what is claimed here. Everything after g_i (rates, rounding, theta, replays)
is a function of g_i. `cotune.privacy` adds up the steps.

**What is not hidden.** A row whose loss is not finite has slope 0, and a step of nothing but such rows is noise: to
refuse it would tell of them. The mean loss is withheld, NaN. Noise is float64's, not a discrete sampler's: attacks on
its last bits are not covered, nor is the rounding of a loss by the padding of its batch.
"""

from __future__ import annotations

import math
import random
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from cotune.core.contracts import Layout, Optimizer
from cotune.core.errors import Code, CotuneError
from cotune.core.part import Capability
from cotune.core.seeds import Purpose
from cotune.core.view import NamedTensors, Objective, Step, View
from cotune.noise import ALL, Direction
from cotune.optim.probe import Probe


class PrivateZO(Optimizer):
    """θ ← θ − lr / P · Σ g z, where g is the mean slope of rows, each cut to ± limit, plus noise of σ · limit / rows.

    Attributes:
        lr: about lr of SGD over the number of trained numbers.
        limit: C, what the slope of one row may be.
        sigma: σ; 0 for no noise, and no claim.
        directions: P; each is one more look at the rows.
        mu: a power of two, so that μ z is exact.
        direction: sign, or what a paper used.
        noise: secure is the operating system's, which no seed repeats, so that no two runs have the same bits;
            reproducible follows from the experiment's seed, and hides nothing from whoever knows it.
    """

    kind: ClassVar[str] = "private-zo"
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.REPLAY})
    lr: Annotated[float, Field(ge=0)]
    limit: Annotated[float, Field(gt=0)]
    sigma: Annotated[float, Field(ge=0)]
    directions: Annotated[int, Field(ge=1, le=10**5)] = 1
    mu: Annotated[float, Field(gt=0)] = 2.0**-10
    direction: Direction = Direction.SIGN
    noise: Literal["secure", "reproducible"] = "secure"

    @property
    def hides(self) -> bool:
        """Whether there is noise that nobody can draw again."""
        return self.sigma > 0 and self.noise == "secure"

    def init(self, view: View) -> None:
        """No state."""

    @torch.no_grad()
    def step(self, view: View, state: None, objective: Objective) -> Step:
        """One step; 2 P passes.

        Raises:
            CotuneError: E_COUNT for a step without rows.
        """
        if not objective.rows:
            raise CotuneError(Code.COUNT, "a step without rows has no mean slope", where=f"client {view.client}")
        probe, source, slopes = Probe(view, self.direction), self._source(view), list[float]()
        for number in range(self.directions):
            ahead, behind = (_losses(objective, probe.at(number, sign * self.mu)) for sign in (1.0, -1.0))
            noise = source.gauss(0.0, 1.0) * (self.sigma * self.limit / objective.rows) if self.sigma else 0.0
            slopes.append(self.mean_slope(ahead, behind) + noise)
        return probe.step({ALL: slopes}, {ALL: self.lr}, [math.nan])

    def mean_slope(self, ahead: Tensor, behind: Tensor) -> float:
        """`1 / b · Σ_r clip((L₊ − L₋) / 2μ, ±C)` of losses (b,) float64, added up exactly: no row drowns another."""
        slopes = ((ahead - behind) / (2 * self.mu)).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        return math.fsum(slopes.clamp(-self.limit, self.limit).tolist()) / len(slopes)

    def traced(self, steps: int) -> Layout:
        """P coefficients a step."""
        return {f"{self.direction}/{ALL}": ("float32", (steps, self.directions))}

    def _source(self, view: View) -> random.Random:
        """Where the noise of a step comes from; nothing that another step, or one thrown away, could disturb."""
        if self.noise == "secure":
            return random.SystemRandom()
        return random.Random(view.seed(Purpose.DIRECTIONS, "noise", view.step))


def _losses(objective: Objective, tensors: NamedTensors) -> Tensor:
    """Losses (rows,) float64 of all rows of a step at `tensors`."""
    return torch.cat([portion(tensors).double().cpu() for portion in objective.microbatches()])
