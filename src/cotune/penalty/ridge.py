"""Subspace-Reg's ridge on both factors (arXiv 2606.22724, the third term of its objective)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from cotune.core.contracts import Penalty
from cotune.core.part import Capability
from cotune.core.view import NamedTensors, View
from cotune.penalty.pairs import Reduction, reduced


class Ridge(Penalty):
    """(strength / 2) · mean (‖A‖² + ‖B‖²) over the pairs: keeps factors short, those that stay with the client too.

    `reduction = "sum"` adds the pairs instead. The paper calls the strength λ.
    """

    kind: ClassVar[str] = "ridge"
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.VECTORIZABLE})
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.FACTORS})
    strength: Annotated[float, Field(ge=0)]
    reduction: Reduction = "mean-pairs"

    def __call__(self, tensors: NamedTensors, view: View) -> Tensor:
        """0-dim; a factor that does not train adds nothing, since it adds no gradient."""
        names = [[e.name for e in pair if e.name in tensors] for pair in view.spec.pairs.values()]
        terms = [reduced([tensors[name].square().sum() for name in pair], "sum") for pair in names if pair]
        return self.strength / 2 * reduced(terms, self.reduction)
