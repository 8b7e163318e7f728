"""The task head: shared, personal, or frozen, by declaration."""

from __future__ import annotations

from typing import Literal

from cotune.core.contracts import Attachable
from cotune.core.spec import Entry, Role

# shared: averaged like the rest; personal: each client trains its own; frozen: stays at its seeded start.
Head = Literal["shared", "personal", "frozen"]


def head_entries(backbone: Attachable, head: Head) -> list[Entry]:
    """The head's rows of the spec; none when it is frozen or the backbone has no head of its own."""
    if head == "frozen":
        return []
    shapes = {name: tuple(parameter.shape) for name, parameter in backbone.model.named_parameters()}
    return [
        Entry(name, shapes[name], Role.HEAD, name.rpartition(".")[0], shared=head == "shared") for name in backbone.head
    ]
