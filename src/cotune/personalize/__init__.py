"""How a client makes the global theta its own. One file a part, one line here."""

from collections.abc import Mapping

from cotune.core.contracts import Personalize

KINDS: Mapping[str, type[Personalize]] = {}

__all__ = ["KINDS", "Personalize"]
