"""Terms of the client's objective. One file a penalty, one line here."""

from collections.abc import Mapping

from cotune.core.contracts import Penalty
from cotune.penalty.basis import Basis
from cotune.penalty.proximal import Proximal
from cotune.penalty.ridge import Ridge
from cotune.penalty.subspace import Subspace
from cotune.penalty.synaptic import Synaptic

KINDS: Mapping[str, type[Penalty]] = {
    "basis": Basis,
    "proximal": Proximal,
    "ridge": Ridge,
    "subspace": Subspace,
    "synaptic": Synaptic,
}

__all__ = ["KINDS", "Basis", "Penalty", "Proximal", "Ridge", "Subspace", "Synaptic"]
