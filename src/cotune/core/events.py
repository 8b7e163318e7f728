"""What a run tells whoever watches it: the name of a moment, and plain values about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Say = Callable[[str], None]  # is told one line before something slow, a download say
Watch = Callable[[str, Mapping[str, Any]], None]


def silent(line: str) -> None:
    """Say nothing."""
    del line


def quiet(name: str, about: Mapping[str, Any]) -> None:
    """Watch nothing."""
    del name, about
