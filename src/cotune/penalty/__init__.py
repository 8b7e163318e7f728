"""Terms of the client's objective. One file a penalty, one line here."""

from collections.abc import Mapping

from cotune.core.contracts import Penalty
from cotune.penalty.proximal import Proximal

KINDS: Mapping[str, type[Penalty]] = {
    "proximal": Proximal,
}

__all__ = ["KINDS", "Penalty", "Proximal"]
