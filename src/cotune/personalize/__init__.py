"""How a client makes the global theta its own. One file a part, one line here."""

from collections.abc import Mapping

from cotune.core.contracts import Personalize
from cotune.personalize.ala import ALA

KINDS: Mapping[str, type[Personalize]] = {
    "ala": ALA,
}

__all__ = ["ALA", "KINDS", "Personalize"]
