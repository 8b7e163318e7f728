"""Gradient descent."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from cotune.core.contracts import Optimizer
from cotune.core.part import Capability
from cotune.core.view import Objective, Step, View
from cotune.optim.gradient import gradient


class SGD(Optimizer):
    """θ ← θ − lr · g, where the gradient g includes weight decay · θ."""

    kind: ClassVar[str] = "sgd"
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.GRADIENT})
    lr: Annotated[float, Field(ge=0)]
    weight_decay: Annotated[float, Field(ge=0)] = 0.0

    def init(self, view: View) -> None:
        """No state."""

    def step(self, view: View, state: None, objective: Objective) -> Step:
        """One step along the gradient."""
        grads, loss = gradient(view, objective)
        lr = self.lr * view.rate
        moved = {n: t - lr * (grads[n] + self.weight_decay * t) for n, t in view.trained.items()}
        return Step(view.moved(moved), None, None, grads, loss)
