"""A pool's worker: a process that takes one setup after another and answers for its clients.

A setup comes pickled from the process that started this one, and from nowhere else.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from cotune.core.errors import Code, CotuneError
from cotune.engine.answer import cause
from cotune.engine.seat import Seat, attend, facts
from cotune.link import SETUP, say
from cotune.setup import Blueprint


def serve(link: Connection) -> None:
    """Answer until the other end closes; where the process that started this one dies, end at once."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    seat: Seat | None = None
    try:
        while True:
            kind = link.recv_bytes()
            if kind == SETUP:
                seat = None
                gc.collect()  # the last backbone goes before the next one comes
                seat, said = _seated(link.recv)
                say(link, said)
            else:
                assert seat is not None
                attend(link, kind, seat)
    except (EOFError, OSError):
        return


def _seated(receive: Callable[[], tuple[Blueprint, Path]]) -> tuple[Seat | None, Mapping[str, Any] | CotuneError]:
    """The setup that comes next, and what is said about it."""
    try:
        blueprint, folder = receive()
        seat = Seat(blueprint.build(), folder)
        return seat, {"facts": facts(seat.setup)}
    except CotuneError as error:
        return None, error
    except EOFError:
        raise
    except Exception as error:  # noqa: BLE001  # said at the other end, where somebody reads it
        what = "a worker cannot load the setup"
        return None, CotuneError(Code.ENGINE, what, got=cause(error), fix="try --engine inline")


def _end_with_parent() -> None:
    """Nobody waits for an answer any more: not even for the step that is being made."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
