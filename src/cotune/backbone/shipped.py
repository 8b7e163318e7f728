"""Backbones that we ship: `builtin:NAME`, a folder beside this file with a card that says how it was trained."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from cotune.backbone.hf import Folder
from cotune.core.errors import Code, CotuneError, nearest
from cotune.core.reference import Reference

_CARD = "card.toml"


def cards() -> Mapping[str, Mapping[str, Any]]:
    """Name -> what the card of a shipped model says, in the order of the names."""
    found = sorted(_root().glob(f"*/{_CARD}"))
    return {card.parent.name: tomllib.loads(card.read_text(encoding="utf-8")) for card in found}


def shipped(ref: Reference) -> Folder:
    """The folder of a shipped model.

    Args:
        ref: of scheme builtin.

    Raises:
        CotuneError: E_CONFIG for a name that we ship no model under.
    """
    known = cards()
    if ref.name not in known:
        raise CotuneError(Code.CONFIG, f"no builtin model '{ref.name}'", where=ref.text, fix=nearest(ref.name, known))
    return Folder(ref.text, lambda _whole: _root() / ref.name)


def _root() -> Path:
    return Path(str(files("cotune.backbone"))) / "models"
