"""FedEx-LoRA: the mean of factors, and what it misses of the mean product beside the backbone (Singhal et al. 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from cotune.aggregate.mean import Mean
from cotune.aggregate.products import Products, add, begin
from cotune.aggregate.stack import stacked_layout
from cotune.core.change import Base, Commit, Contribution, Server
from cotune.core.contracts import Aggregator, Layout
from cotune.core.part import Capability
from cotune.core.spec import Spec
from cotune.core.state import Theta


class Residual(Aggregator):
    """W ← W + s Σ p_k (B_k − B̄) (A_k − Ā) beside the mean of factors: together exactly s Σ p_k B_k A_k.

    The residual is written in deviations, which is the same sum as Σ p_k B_k A_k − B̄ Ā without its cancellation, and
    K r in rank. Clients of one rank. What is theta and what is residual depends on how a product is split into factors;
    their sum does not.
    """

    kind: ClassVar[str] = "residual"
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.BASE})
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.FACTORS})

    def init(self, theta: Theta, server: Server) -> tuple[Products, Products]:
        """The fold of all names as a mean, and of the pairs."""
        pairs = begin(theta, server, both=True)
        whole = Products(Mean().init(theta, server), server, {}, {})
        return whole, pairs

    def add(self, fold: tuple[Products, Products], contribution: Contribution) -> tuple[Products, Products]:
        """Both folds with one more client."""
        return add(fold[0], contribution), add(fold[1], contribution)

    def finish(self, fold: tuple[Products, Products]) -> Commit:
        """The mean, bit for bit `mean`'s, and the residual in float32."""
        whole, kept = fold
        theta, increments = Mean().finish(whole.rest).theta, {}
        for module, pairs in kept.pairs.items():
            b, a = kept.server.spec.pairs[module]
            centre_b, centre_a = theta[b.name].double(), theta[a.name].double()
            shares = kept.shares(module)
            tall = [b.scale * p * (own.double() - centre_b) for p, (own, _) in zip(shares, pairs, strict=True)]
            wide = [own.double() - centre_a for _, own in pairs]
            increments[module] = torch.cat(tall, dim=1).float(), torch.cat(wide, dim=0).float()
        return Commit(theta, base=Base(increments))

    def increment(self, specs: Sequence[Spec]) -> Layout:
        """A pair of the ranks' sum for every module."""
        return stacked_layout(specs)
