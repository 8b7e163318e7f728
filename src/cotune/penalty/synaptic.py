"""FedSSI's synaptic importance along a surrogate's path (Li et al., arXiv 2412.13779).

| symbol | what |
|---|---|
| θ | theta as it came down: w of the round before |
| v | the surrogate: a client's own theta, which never goes up; stays, as Private |
| q | (1 − λ) / (2 λ): how hard θ pulls at it; λ near 1 leaves it to the client's rows, near 0 holds it at θ |
| s | Σ −g · Δv: by how much each number of v has lowered the loss |
| Ω | Σ over rounds of max(s, 0) / (Δ² + ζ), where Δ is how far v went in the round; stays, as Private |

v ← v − lr · (∇L(v) + q · (v − θ)), some steps before training;  then train on L + c · Σ Ω (w − θ)².

The paper's tasks come one after another; here each round is one, so the first round of a client has no penalty, and
what a round finds important counts from the next on. A surrogate sees the rows of the round's first step, again for
each of its steps: a part is handed no others. Ω is a sum, as in the paper: it grows with the rounds that a client takes
part in.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from cotune.core.contracts import Penalty
from cotune.core.part import Capability
from cotune.core.slope import slope
from cotune.core.state import Private
from cotune.core.view import NamedTensors, Objective, View

V, OMEGA, FRESH = "v/", "omega/", "fresh/"  # what comes before a name in Private: v, Ω, and what a round adds to Ω


class Synaptic(Penalty):
    """c · Σ Ω (θ − θ_anchor)², Ω from a private surrogate's path: numbers that a client's rows rely on move less.

    Attributes:
        c: of the term.
        locality: λ of the paper.
        surrogate_lr: its learning rate.
        surrogate_steps: in a round; each is a gradient on the rows of the round's first step.
        damping: ζ, which keeps numbers that hardly moved from counting without bound.
    """

    kind: ClassVar[str] = "synaptic"
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.PRIVATE})
    # Ω belongs to numbers one by one: a server that turns or splits factors anew would give it to others.
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.ANCHOR, Capability.ELEMENTWISE})
    c: Annotated[float, Field(ge=0)]
    locality: Annotated[float, Field(gt=0, lt=1)] = 0.5
    surrogate_lr: Annotated[float, Field(ge=0)] = 0.1
    surrogate_steps: Annotated[int, Field(ge=1, le=10**4)] = 5
    damping: Annotated[float, Field(gt=0)] = 1e-3

    def __call__(self, tensors: NamedTensors, view: View) -> Tensor:
        """0-dim; zero at the anchor, and everywhere in a client's first round."""
        own = view.private.get(self.kind, Private())
        known = [name for name in tensors if name in view.anchor and OMEGA + name in own]
        if not known:
            return torch.zeros((), device=next((t.device for t in tensors.values()), None))
        terms = [(own[OMEGA + name] * (tensors[name] - view.anchor[name]).square()).sum() for name in known]
        return self.c * torch.stack(terms).sum()

    def begin(self, view: View, objective: Objective) -> View:
        """The surrogate goes on from where it was, or from theta, and what it relied on is noted."""
        own, lr = view.private.get(self.kind, Private()), self.surrogate_lr * view.rate
        pull = (1 - self.locality) / (2 * self.locality)
        start = {name: own.get(V + name, view.anchor[name]) for name in view.scope.up}
        at, gained = dict(start), {name: torch.zeros_like(tensor) for name, tensor in start.items()}
        where = f"the surrogate of client {view.client}, round {view.round}"
        for _ in range(self.surrogate_steps):
            gradient = slope(at, objective, where, less=lambda tensors: self(tensors, view)).gradient
            for name, tensor in at.items():
                moved = tensor - lr * (gradient[name] + pull * (tensor - view.anchor[name]))
                gained[name] -= gradient[name] * (moved - tensor)
                at[name] = moved
        kept = dict(own)
        for name, tensor in at.items():
            far = (tensor - start[name]).square() + self.damping
            kept |= {V + name: tensor, FRESH + name: gained[name].clamp_min(0) / far}
        return view.keep(self.kind, Private(kept))

    def end(self, view: View) -> View:
        """Ω grows by what the round found."""
        kept = dict(view.private[self.kind])
        for name in [name.removeprefix(FRESH) for name in kept if name.startswith(FRESH)]:
            fresh = kept.pop(FRESH + name)
            kept[OMEGA + name] = kept[OMEGA + name] + fresh if OMEGA + name in kept else fresh
        return view.keep(self.kind, Private(kept))
