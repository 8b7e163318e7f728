"""SCAFFOLD's client half (Karimireddy et al., 2020, Algorithm 1, option II).

| symbol | what |
|---|---|
| c | the server's control variate; comes down as aux |
| c_k | this client's; stays, as Private |
| τ | steps of the round |

y ← y − lr · (g − c_k + c);  after τ steps c_k⁺ = c_k − c + (θ − y) / (τ · lr);  c_k⁺ − c_k goes up beside theta.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field

from cotune.core.contracts import Layout, Optimizer
from cotune.core.part import Capability
from cotune.core.spec import Scope, Spec
from cotune.core.state import Private
from cotune.core.view import NamedTensors, Objective, Step, View
from cotune.optim.gradient import gradient


class Scaffold(Optimizer):
    """θ ← θ − lr · (g − c_k + c): gradient descent with control variates against client drift."""

    kind: ClassVar[str] = "scaffold"
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.GRADIENT, Capability.PRIVATE})
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.AUX, Capability.ANCHOR})
    lr: Annotated[float, Field(gt=0)]  # the control variate divides by it

    def begin(self, view: View, objective: Objective) -> View:
        """A tensor without a control variate starts at zero."""
        del objective
        own = view.private.get(self.kind, Private())
        fresh = {name: torch.zeros_like(view.theta[name]) for name in view.scope.up if name not in own}
        return view.keep(self.kind, Private({**own, **fresh}))

    def init(self, view: View) -> None:
        """No state beside the control variates."""

    def step(self, view: View, state: None, objective: Objective) -> Step:
        """One corrected step; personal tensors, which have no control variate, take a plain one."""
        grads, loss = gradient(view, objective)
        own, lr = view.private[self.kind], self.lr * view.rate
        moved = {}
        for name, tensor in view.trained.items():
            corrected = grads[name] - own[name] + view.aux[name] if name in own else grads[name]
            moved[name] = tensor - lr * corrected
        return Step(view.moved(moved), None, None, grads, loss)

    def end(self, view: View) -> View:
        """The new control variate stays; its difference goes up."""
        own, lr = view.private[self.kind], self.lr * view.rate
        fresh, difference = dict(own), {}
        for name in view.scope.up:
            slope = (view.anchor[name] - view.theta[name]) / (max(view.step, 1) * lr)
            fresh[name] = own[name] - view.aux[name] + slope
            difference[name] = fresh[name] - own[name]
        outbox: NamedTensors = {**view.outbox, **difference}
        return replace(view.keep(self.kind, Private(fresh)), outbox=outbox)

    def outbox(self, spec: Spec, scope: Scope) -> Layout:
        """c_k⁺ − c_k has the shape of what goes up."""
        return {name: ("float32", spec[name].shape) for name in scope.up}
