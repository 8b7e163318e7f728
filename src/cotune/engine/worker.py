"""A worker: a process that holds one setup and answers for its clients, whoever is at the other end of its link.

Frames are bytes. A question is its kind, then what belongs to it: `setup` and the pickled setup, which comes from the
process that started this one and from nowhere else; or `step`, a client's id and its message. An answer is a JSON
object: `{"facts": ...}` to a setup, `{}` and a frame with the reply to a step, `{"code": ..., "text": ...}` to either.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from cotune.client import Client
from cotune.core.errors import Code, CotuneError
from cotune.engine.answer import answer, cause
from cotune.setup import Blueprint, Setup

SETUP, STEP = b"setup", b"step"


def facts(setup: Setup) -> dict[str, str]:
    """What two processes of one run must have in common: digests of weights, data, table and start."""
    return {
        "backbone": setup.backbone.digest,
        "data": str(setup.corpus.facts.get("manifest")),
        "spec": setup.spec.digest,
        "start": setup.start.sha256(),
        "personal": setup.personal.sha256(),
    }


class Seat:
    """A setup, and each of its clients once it was asked."""

    def __init__(self, setup: Setup, folder: Path) -> None:
        self.setup = setup
        self._folder = folder
        self._clients: dict[str, Client] = {}

    def step(self, name: str, message: bytes) -> bytes | CotuneError:
        """A client's answer to one message."""
        if name not in self._clients:
            self._clients[name] = Client(name, self.setup, self._folder)
        return answer(self._clients[name], message)


def serve(link: Connection) -> None:
    """Answer until the other end closes; where the process that started this one dies, end at once."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    seat: Seat | None = None
    try:
        while True:
            if link.recv_bytes() == SETUP:
                seat = None
                gc.collect()  # the last backbone goes before the next one comes
                seat, said = _seated(link.recv)
                _send(link, said)
            else:
                name, message = str(link.recv_bytes(), "utf-8", "surrogatepass"), link.recv_bytes()
                assert seat is not None
                reply = seat.step(name, message)
                _send(link, {} if isinstance(reply, bytes) else _as_words(reply))
                if isinstance(reply, bytes):
                    link.send_bytes(reply)
    except (EOFError, OSError):
        return


def _seated(receive: Callable[[], tuple[Blueprint, Path]]) -> tuple[Seat | None, Mapping[str, Any]]:
    """The setup that comes next, and what is said about it."""
    try:
        blueprint, folder = receive()
        seat = Seat(blueprint.build(), folder)
        return seat, {"facts": facts(seat.setup)}
    except CotuneError as error:
        return None, _as_words(error)
    except EOFError:
        raise
    except Exception as error:  # noqa: BLE001  # said at the other end, where somebody reads it
        what = "a worker cannot load the setup"
        return None, _as_words(CotuneError(Code.ENGINE, what, got=cause(error), fix="try --engine inline"))


def _as_words(error: CotuneError) -> dict[str, str]:
    return {"code": error.code.value, "text": error.text}


def _send(link: Connection, said: Mapping[str, Any]) -> None:
    link.send_bytes(json.dumps(said).encode())


def _end_with_parent() -> None:
    """Nobody waits for an answer any more: not even for the step that is being made."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
