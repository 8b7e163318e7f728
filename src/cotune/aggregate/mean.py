"""The weighted mean of theta, name by name, in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from cotune.core.change import Commit, Contribution, Server
from cotune.core.contracts import Aggregator
from cotune.core.part import Capability
from cotune.core.state import Theta


@dataclass(frozen=True)
class WeightedSum:
    """Σ w_k θ_k of the names that went up (float64, grown in place), Σ w_k, and where the round started."""

    theta: Theta
    total: dict[str, Tensor]
    weight: float


class Mean(Aggregator):
    """Σ w_k θ_k / Σ w_k: one client is the identity, bit for bit, and names that did not go up stay.

    Of low-rank factors it is mean(B) mean(A), not the mean of products, unless one of the two is common to all clients;
    how far it is from that depends on how each client splits its product.
    """

    kind: ClassVar[str] = "mean"
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.SUMMABLE, Capability.ELEMENTWISE})

    def init(self, theta: Theta, server: Server) -> WeightedSum:
        """−0, which is what every number adds to without a change, for the names that go up in this round."""
        total = {name: torch.full(theta[name].shape, -0.0, dtype=torch.float64) for name in server.up}
        return WeightedSum(theta, total, 0.0)

    def add(self, fold: WeightedSum, contribution: Contribution) -> WeightedSum:
        """`Σ += w_k θ_k`, exact while a weight has fewer than 29 bits; divided once, at the end."""
        contribution.change.add_to(fold.total, contribution.weight)
        return WeightedSum(fold.theta, fold.total, fold.weight + contribution.weight)

    def finish(self, fold: WeightedSum) -> Commit:
        """The mean, rounded to float32 once."""
        return Commit(theta=fold.theta.replace({n: (t / fold.weight).float() for n, t in fold.total.items()}))
