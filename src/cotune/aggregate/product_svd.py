"""The sum of products, split anew: Subspace-Reg, FedSVD, FlexLoRA and SVD redistribution differ in the split alone.

Nothing is merged into the backbone and nothing is added to the reference, which therefore counts once: theta is the
pair (B_g, A_g), clients start from it and send theirs, and the next pair stands for Σ p_k B_k A_k, p over the cohort.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from cotune.aggregate.mean import Mean
from cotune.aggregate.products import Products, add, begin
from cotune.core.change import Commit, Contribution, Server
from cotune.core.contracts import Aggregator
from cotune.core.part import Capability
from cotune.core.spec import Spec
from cotune.core.state import Theta
from cotune.linalg import Split, truncate


class ProductSVD(Aggregator):
    """B A = the best rank-r form of Σ w_k B_k A_k / Σ w_k, whatever the clients' ranks; other tensors are averaged.

    Replies mean the same however each product is split into factors.

    Attributes:
        split: where the singular values go: both factors, B beside orthonormal rows of A, or A beside orthonormal
            columns of B.
        cap: the largest length ‖s Σ p_k B_k A_k‖ of a layer's change; a longer one is shortened.
        restore: lengthen both factors alike to make up for what truncation cut off, as the released runs of
            Subspace-Reg do; the split then holds up to a factor.
    """

    kind: ClassVar[str] = "product-svd"
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.FACTORS})
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.FACTORS})
    split: Split = "balanced"
    cap: Annotated[float, Field(gt=0)] | None = None
    restore: bool = False

    def init(self, theta: Theta, server: Server) -> Products:
        """No pair yet."""
        return begin(theta, server)

    def add(self, fold: Products, contribution: Contribution) -> Products:
        """One more pair a module, its scale folded in."""
        return add(fold, contribution)

    def finish(self, fold: Products) -> Commit:
        """Every pair of the round split anew; where one factor went up alone, its mean times the other is exact."""
        theta = Mean().finish(fold.rest).theta
        fresh = {}
        for module, (b, a) in fold.server.spec.pairs.items():
            if module in fold.pairs:
                pairs, shares = fold.pairs[module], fold.shares(module)
            elif b.name in fold.rest.total or a.name in fold.rest.total:
                pairs, shares = [(theta[b.name], theta[a.name])], [1.0]
            else:
                continue
            cap = None if self.cap is None else self.cap / b.scale
            fresh[b.name], fresh[a.name] = truncate(
                pairs, shares, a.shape[0], self.split, cap=cap, restore=self.restore, start=fold.rest.theta[a.name].mT
            )
        return Commit(theta.replace({name: tensor.contiguous() for name, tensor in fresh.items()}))

    def moved(self, spec: Spec, names: Sequence[str]) -> tuple[str, ...]:
        """The names, and the partner of every factor among them."""
        of = {entry.name: pair for pair in spec.pairs.values() for entry in pair}
        wanted = {*names, *(entry.name for name in names if name in of for entry in of[name])}
        return tuple(name for name in spec.names if name in wanted)
