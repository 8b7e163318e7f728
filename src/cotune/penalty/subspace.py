"""Subspace-Reg's pull towards the server's product (arXiv 2606.22724, the second term of its objective)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from cotune.core.contracts import Penalty
from cotune.core.part import Capability
from cotune.core.view import NamedTensors, View
from cotune.linalg import squared_distance
from cotune.penalty.pairs import Reduction, anchored, reduced


class Subspace(Penalty):
    """(mu / 2) · mean ‖s B A − s B_g A_g‖² over the pairs: keeps each product near the server's, however it is split.

    s is alpha / r, so that the strength means the same for every rank; `reduction = "sum"` adds the pairs instead.
    """

    kind: ClassVar[str] = "subspace"
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.VECTORIZABLE})
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.ANCHOR, Capability.FACTORS})
    mu: Annotated[float, Field(ge=0)]
    reduction: Reduction = "mean-pairs"

    def __call__(self, tensors: NamedTensors, view: View) -> Tensor:
        """0-dim; zero at the anchor, and for every other split of the anchor's product but for rounding."""
        terms = [p.scale**2 * squared_distance(p.here, p.anchor) for p in anchored(tensors, view)]
        return self.mu / 2 * reduced(terms, self.reduction)
