"""FedRot-LoRA: rotate each client's factors to the reference, then average them (arXiv 2602.23638)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from cotune.aggregate.mean import Mean, WeightedSum
from cotune.aggregate.products import begin
from cotune.core.change import Commit, Contribution, Server
from cotune.core.contracts import Aggregator
from cotune.core.part import Capability
from cotune.core.state import Theta
from cotune.linalg import Factors, procrustes


@dataclass(frozen=True)
class Rotated:
    """The weighted sum of rotated factors and of everything else, what is rotated, and the round's start."""

    sums: WeightedSum
    modules: tuple[str, ...]
    server: Server


class Rotation(Aggregator):
    """B A = mean(B_k R_k) · mean(R_kᵀ A_k), R_k the rotation that brings a client's factors nearest the reference.

    A rotated pair is the same product, so that replies mean the same however they are rotated; not so for any other
    change of basis, and mean(B) mean(A) is not mean(B A), which rotation brings nearer and does not mend.

    Attributes:
        reference: the factor by which R_k is found, or both: A, which starts at random, as in the published runs.
    """

    kind: ClassVar[str] = "rotation"
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.FACTORS})
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.FACTORS})
    reference: Literal["A", "B", "both"] = "A"

    def init(self, theta: Theta, server: Server) -> Rotated:
        """Zeros; a pair of which one factor goes up alone shares the other, and is averaged as it is."""
        return Rotated(Mean().init(theta, server), tuple(begin(theta, server).pairs), server)

    def add(self, fold: Rotated, contribution: Contribution) -> Rotated:
        """One more client, rotated; one of a smaller rank is rotated into the server's, its scale folded into B."""
        sent, own = dict(contribution.change.dense()), contribution.spec
        double = {name: tensor.double() for name, tensor in sent.items()}
        for module in fold.modules:
            b, a = fold.server.spec.pairs[module]
            pair, gain = (double[b.name], double[a.name]), own[b.name].scale / b.scale
            rotation = self._rotation(pair, (fold.sums.theta[b.name], fold.sums.theta[a.name]))
            double[b.name], double[a.name] = gain * pair[0] @ rotation, rotation.mT @ pair[1]
        for name, tensor in double.items():
            fold.sums.total[name].add_(tensor, alpha=contribution.weight)
        return replace(fold, sums=replace(fold.sums, weight=fold.sums.weight + contribution.weight))

    def finish(self, fold: Rotated) -> Commit:
        """The mean, rounded to float32 once."""
        return Mean().finish(fold.sums)

    def _rotation(self, pair: Factors, reference: Factors) -> Tensor:
        sides = [(pair[0], reference[0]), (pair[1].mT, reference[1].mT)]
        chosen = {"B": sides[:1], "A": sides[1:], "both": sides}[self.reference]
        return procrustes(torch.cat([own for own, _ in chosen]), torch.cat([there for _, there in chosen]))
