"""cotune on Flower: a federation of SuperNodes, or its simulation; what imports flwr is in this room alone.

`make_server_app` and `make_client_app` are the two apps of a project, `FlowerEngine` carries the bytes between them,
and `strategy` has classes for apps of one's own. Names load on first use: a client's app imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotune.flower.client_app import make_client_app
    from cotune.flower.engine import FlowerEngine
    from cotune.flower.server_app import make_server_app

_NAMES = {
    "FlowerEngine": "cotune.flower.engine",
    "make_client_app": "cotune.flower.client_app",
    "make_server_app": "cotune.flower.server_app",
}

__all__ = ["FlowerEngine", "make_client_app", "make_server_app"]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'cotune.flower' has no attribute '{name}'")
