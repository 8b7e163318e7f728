"""FLoRA's exact sum: all pairs side by side, beside the backbone from then on (Wang et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from cotune.aggregate.mean import Mean
from cotune.aggregate.products import Products, add, begin
from cotune.core.change import Base, Commit, Contribution, Server
from cotune.core.contracts import Aggregator, Layout
from cotune.core.part import Capability
from cotune.core.spec import Spec
from cotune.core.state import Theta
from cotune.linalg import stacked


class Stack(Aggregator):
    """W ← W + s [B_1 … B_K] [p_1 A_1; …; p_K A_K], exact for any ranks; factors start anew in every round.

    The sum stands beside the frozen weight, which is never rounded; Σ r_k (d_out + d_in) numbers a layer come down, and
    no factor, since both sides draw what a round starts from.
    Replies mean the same however each product is split into factors.
    """

    kind: ClassVar[str] = "stack"
    restarts: ClassVar[bool] = True
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.FACTORS, Capability.BASE})
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.FACTORS})

    def init(self, theta: Theta, server: Server) -> Products:
        """No pair yet."""
        return begin(theta, server, both=True)

    def add(self, fold: Products, contribution: Contribution) -> Products:
        """One more pair a module, its scale folded in."""
        return add(fold, contribution)

    def finish(self, fold: Products) -> Commit:
        """The stacked pairs; a pair whose product was not 0 has moved into the backbone, so its B is 0 now."""
        theta, increments, zeros = Mean().finish(fold.rest).theta, {}, {}
        for module, pairs in fold.pairs.items():
            b, a = fold.server.spec.pairs[module]
            tall, wide = stacked(pairs, [b.scale * share for share in fold.shares(module)])
            increments[module] = tall.float(), wide.float()
            if bool(theta[b.name].any()) and bool(theta[a.name].any()):
                zeros[b.name] = torch.zeros(b.shape)
        return Commit(theta.replace(zeros), base=Base(increments))

    def increment(self, specs: Sequence[Spec]) -> Layout:
        """A pair of the ranks' sum for every module."""
        return stacked_layout(specs)

    def moved(self, spec: Spec, names: Sequence[str]) -> tuple[str, ...]:
        """All but factors: both sides draw those."""
        return tuple(name for name in names if spec[name].rank_axis is None)


def stacked_layout(specs: Sequence[Spec]) -> Layout:
    """Module -> a pair of rank Σ r_k, float32."""
    layout: dict[str, tuple[str, tuple[int, ...]]] = {}
    for module, (b, a) in specs[0].pairs.items() if specs else ():
        rank = sum(spec[a.name].shape[0] for spec in specs)
        layout[f"{module}/B"] = ("float32", (b.shape[0], rank))
        layout[f"{module}/A"] = ("float32", (rank, a.shape[1]))
    return layout
