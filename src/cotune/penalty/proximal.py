"""FedProx's proximal term (Li et al., 2020, equation 2)."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from cotune.core.contracts import Penalty
from cotune.core.part import Capability
from cotune.core.view import NamedTensors, View


class Proximal(Penalty):
    """(mu / 2) · ‖θ − θ_anchor‖², over the tensors that travel: keeps a client near where the round started."""

    kind: ClassVar[str] = "proximal"
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.VECTORIZABLE})
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.ANCHOR})
    mu: Annotated[float, Field(ge=0)]

    def __call__(self, tensors: NamedTensors, view: View) -> Tensor:
        """0-dim; zero at the anchor, in O(numbers)."""
        squares = [(tensors[n] - view.anchor[n]).square().sum() for n in tensors if n in view.anchor]
        return self.mu / 2 * torch.stack(squares).sum()
