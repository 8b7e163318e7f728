"""AdamW (Loshchilov and Hutter, 2019), with state that is fresh in every round.

m ← β₁ m + (1 − β₁) g;  v ← β₂ v + (1 − β₂) g²;  θ ← θ − lr · (m̂ / (√v̂ + ε) + weight_decay · θ)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from cotune.core.contracts import Optimizer
from cotune.core.part import Capability
from cotune.core.spec import Role
from cotune.core.view import Objective, Step, View
from cotune.optim.gradient import gradient


@dataclass(frozen=True)
class Moments:
    """The running means m and v by name, and how many steps they have seen."""

    m: dict[str, Tensor]
    v: dict[str, Tensor]
    count: int


class AdamW(Optimizer):
    """θ ← θ − lr · (m̂ / (√v̂ + ε) + weight decay · θ), moments fresh in every round."""

    kind: ClassVar[str] = "adamw"
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.GRADIENT})
    lr: Annotated[float, Field(ge=0)]
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    rule_rate: Annotated[float, Field(gt=0)] = 1.0  # lr of a memory's rules over lr: they are few, and far from done

    def init(self, view: View) -> Moments:
        """Zero moments."""
        zeros = {name: torch.zeros_like(tensor) for name, tensor in view.trained.items()}
        return Moments(m=zeros, v=zeros, count=0)

    def step(self, view: View, state: Moments, objective: Objective) -> Step:
        """One step; the moments are new tensors, the old ones stay."""
        grads, loss = gradient(view, objective)
        (first, second), count = self.betas, state.count + 1
        m = {name: first * state.m[name] + (1 - first) * grad for name, grad in grads.items()}
        v = {name: second * state.v[name] + (1 - second) * grad.square() for name, grad in grads.items()}
        moved = {}
        for name, tensor in view.trained.items():
            direction = (m[name] / (1 - first**count)) / ((v[name] / (1 - second**count)).sqrt() + self.epsilon)
            lr = self.lr * (self.rule_rate if view.spec[name].role is Role.RULE else 1.0) * view.rate
            moved[name] = tensor - lr * (direction + self.weight_decay * tensor)
        return Step(view.moved(moved), Moments(m, v, count), None, grads, loss)
