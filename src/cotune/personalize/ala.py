"""FedALA's adaptive local aggregation (Zhang et al., 2023, arXiv 2212.01197), of the highest layers.

| symbol | what |
|---|---|
| θ | theta as it came down |
| θ_k | what this client arrived at when it was last accepted; stays, as Private |
| W | a weight in [0, 1] for each number, 1 at first; stays, as Private |

θ̂ = θ_k + W ⊙ (θ − θ_k) in the highest layers, θ in all others. Before training
W ← clip(W − η · ∂L/∂θ̂ ⊙ (θ − θ_k), 0, 1): until the loss has settled when a client does so for the first time, a step
or a few later on. Training starts from θ̂, and what it arrives at goes up whole, as in FedAvg.

Ours: where the paper counts tensors from the top of a network, we count layers of the model, and take what was trained
of them (both factors of every low-rank pair, a memory's rules) and the head that travels. A part is handed the rows of
the round's first step, so W is learned on those; and a model is scored with the W of the client's last round, since
scoring learns nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from cotune.core.contracts import Personalize
from cotune.core.part import Capability
from cotune.core.slope import slope
from cotune.core.spec import Role, Spec
from cotune.core.state import Private, Theta
from cotune.core.view import Objective, View

OWN, WEIGHT = "own/", "weight/"  # what comes before a name in Private: θ_k, and W
SETTLED, LAST = 0.1, 10  # the paper's: a loss has settled when its last ten values deviate by less than a tenth


class ALA(Personalize):
    """θ̂ = θ_k + W ⊙ (θ − θ_k), W learned on a client's rows: each number of the highest layers is mixed for itself.

    Attributes:
        layers: how many of the model's layers are mixed, from the highest down; the head that travels always is.
        eta: the learning rate of W, as in the paper; where models differ by hundredths, as low-rank factors do after a
            round, it leaves most weights close to 1.
        first: the most steps of W when a client mixes for the first time.
        later: its steps in each later round.
    """

    kind: ClassVar[str] = "ala"
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.PRIVATE})
    # Numbers are mixed one by one, so they must mean the same on both sides; and W follows gradients, which clients of
    # zeroth-order methods do not have: what they send replays from theta as it came down.
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.ANCHOR, Capability.ELEMENTWISE, Capability.GRADIENT})
    layers: Annotated[int, Field(ge=1)] = 1
    eta: Annotated[float, Field(ge=0)] = 1.0
    first: Annotated[int, Field(ge=1, le=10**4)] = 20
    later: Annotated[int, Field(ge=1, le=10**4)] = 1

    def view(self, theta: Theta, private: Private) -> Theta:
        """θ̂; theta itself for a client that has trained in fewer than two rounds."""
        return theta.replace(
            {
                name: _mixed(private[OWN + name], tensor, private[WEIGHT + name])
                for name, tensor in theta.items()
                if WEIGHT + name in private
            }
        )

    def begin(self, view: View, objective: Objective) -> View:
        """Training starts from θ̂, with weights that were learned first; from theta in a client's first round."""
        own = view.private.get(self.kind, Private())
        names = [name for name in self._chosen(view) if OWN + name in own]
        if not names:
            return view
        weights = {name: own.get(WEIGHT + name, torch.ones_like(own[OWN + name])) for name in names}
        known = all(WEIGHT + name in own for name in names)
        where, losses = f"the weights of client {view.client}, round {view.round}", list[float]()
        while len(losses) < (self.later if known else self.first) and (known or not settled(losses)):
            mixed = {name: _mixed(own[OWN + name], view.theta[name], weights[name]) for name in names}
            loss, gradient = slope(mixed, objective, where)
            losses.append(loss)
            for name in names:
                along = gradient[name] * (view.theta[name] - own[OWN + name])
                weights[name] = (weights[name] - self.eta * view.rate * along).clamp(0, 1)
        kept = Private({**own, **{WEIGHT + name: weight for name, weight in weights.items()}})
        mixed = {name: _mixed(own[OWN + name], view.theta[name], weights[name]) for name in names}
        return replace(view, theta=view.theta.replace(mixed)).keep(self.kind, kept)

    def end(self, view: View) -> View:
        """What the client arrived at, for its next round to mix."""
        arrived = {OWN + name: view.theta[name] for name in self._chosen(view)}
        return view.keep(self.kind, Private({**view.private.get(self.kind, Private()), **arrived}))

    def _chosen(self, view: View) -> list[str]:
        """What is mixed in a round: of the highest layers, what trains and travels."""
        top = highest(view.spec, self.layers)
        return [name for name in view.scope.up if name in top]


def highest(spec: Spec, layers: int) -> frozenset[str]:
    """Names in the last `layers` layers of a model, and of the head.

    A layer is what has the same number in its name, `model.layers.3` say; where nothing is numbered, it is a module.
    What stands outside numbered layers, embeddings say, belongs to none.
    """
    body = [entry for entry in spec if entry.role is not Role.HEAD]
    of = {entry.name: _numbered(entry.name) for entry in body}
    if not any(of.values()):
        of = {entry.name: entry.module for entry in body}
    top = list(dict.fromkeys(layer for layer in of.values() if layer))[-layers:]
    return frozenset(entry.name for entry in spec if entry.role is Role.HEAD or of[entry.name] in top)


def settled(losses: Sequence[float]) -> bool:
    """Whether there are more than ten losses, and the last ten deviate by less than a tenth."""
    return len(losses) > LAST and float(torch.tensor(losses[-LAST:], dtype=torch.float64).std(correction=0)) < SETTLED


def _numbered(name: str) -> str:
    """`a.3` of `a.3.b.weight`; empty where nothing is numbered."""
    parts = name.split(".")
    at = next((place for place, part in enumerate(parts) if part.isdecimal()), None)
    return "" if at is None else ".".join(parts[: at + 1])


def _mixed(own: Tensor, theta: Tensor, weight: Tensor) -> Tensor:
    """θ_k + W ⊙ (θ − θ_k); where W is 1 it is θ to the bit."""
    return torch.where(weight < 1, own + weight * (theta - own), theta)
