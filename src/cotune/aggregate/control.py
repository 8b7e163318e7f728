"""SCAFFOLD's server half: the mean of theta, and c ← c + (cohort / population) · mean(c_k⁺ − c_k)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from cotune.aggregate.mean import Mean, WeightedSum
from cotune.core.change import Commit, Contribution, Server
from cotune.core.contracts import Aggregator, Layout
from cotune.core.part import Capability
from cotune.core.spec import Spec
from cotune.core.state import Theta


@dataclass(frozen=True)
class Controlled:
    """The fold of theta, Σ (c_k⁺ − c_k) in float64, and what it is added to."""

    theta: WeightedSum
    difference: dict[str, Tensor]
    server: Server


class MeanControl(Aggregator):
    """Mean of theta, and c ← c + Σ (c_k⁺ − c_k) / population: the server's control variate comes down as aux."""

    kind: ClassVar[str] = "mean-control"
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.SUMMABLE, Capability.AUX})
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.PRIVATE})

    def init(self, theta: Theta, server: Server) -> Controlled:
        """Zeros."""
        zeros = {name: torch.zeros(theta[name].shape, dtype=torch.float64) for name in server.up}
        return Controlled(Mean().init(theta, server), zeros, server)

    def add(self, fold: Controlled, contribution: Contribution) -> Controlled:
        """Both sums with one more client; control variates are not weighted by rows (Algorithm 1, line 17)."""
        for name, difference in contribution.aux.items():
            fold.difference[name].add_(difference.double())
        return replace(fold, theta=Mean().add(fold.theta, contribution))

    def finish(self, fold: Controlled) -> Commit:
        """The mean of theta, and the next control variate."""
        old = fold.server.aux
        aux = {n: (old[n].double() + d / fold.server.population).float() for n, d in fold.difference.items()}
        return replace(Mean().finish(fold.theta), aux={**old, **aux})

    def broadcast(self, spec: Spec) -> Layout:
        """The control variate has the shape of theta."""
        return {name: ("float32", spec[name].shape) for name in spec.shared}
