"""What a run tells whoever watches it: the name of a moment, and plain values about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Watch = Callable[[str, Mapping[str, Any]], None]


def quiet(name: str, about: Mapping[str, Any]) -> None:
    """Watch nothing."""
    del name, about
