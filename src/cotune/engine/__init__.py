"""Where clients run: engines carry bytes and know nothing of what they mean."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from cotune.core.contracts import Engine
from cotune.core.errors import Code, CotuneError, nearest
from cotune.core.events import Say, silent
from cotune.engine.inline import InlineEngine
from cotune.engine.pool import PoolEngine
from cotune.setup import Setup

__all__ = ["InlineEngine", "PoolEngine", "named"]

ENGINES = ("inline", "pool")


def named(name: str, workers: int | None = None, say: Say = silent) -> Callable[[Setup, Path], Engine]:
    """What makes the engine of this name: called with a setup and the folder of clients' own state.

    Args:
        name: `inline`, in this process; or `pool`, in several of this machine.
        workers: how many processes; None for as many as there is room for.
        say: is told when they are fewer than asked for.

    Raises:
        CotuneError: E_CONFIG for another name, and for workers of an engine that has none.
    """
    if name not in ENGINES:
        raise CotuneError(Code.CONFIG, f"no engine '{name}'", where="engine", fix=nearest(name, ENGINES))
    if name == "pool":
        if workers is not None and workers < 1:
            raise CotuneError(Code.CONFIG, "a pool has at least one worker", where="workers", got=workers)
        return partial(PoolEngine, workers=workers, say=say)
    if workers is not None:
        raise CotuneError(Code.CONFIG, "this engine has no workers", where="engine inline", fix="use engine pool")
    return InlineEngine
