"""Subspace-Reg's optional pull towards the server's basis (arXiv 2606.22724, Algorithm 1)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from cotune.core.contracts import Penalty
from cotune.core.part import Capability
from cotune.core.view import NamedTensors, View
from cotune.penalty.pairs import Reduction, anchored, reduced


class Basis(Penalty):
    """(alpha / 2) · mean ‖B − B_g‖² over the pairs: keeps each B near the basis that came down.

    Unlike `subspace` it sees how a product is split. `reduction = "sum"` adds the pairs instead.
    """

    kind: ClassVar[str] = "basis"
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.VECTORIZABLE})
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.ANCHOR, Capability.FACTORS})
    alpha: Annotated[float, Field(ge=0)]
    reduction: Reduction = "mean-pairs"

    def __call__(self, tensors: NamedTensors, view: View) -> Tensor:
        """0-dim; zero where B is at the anchor."""
        terms = [(pair.here[0] - pair.anchor[0]).square().sum() for pair in anchored(tensors, view)]
        return self.alpha / 2 * reduced(terms, self.reduction)
