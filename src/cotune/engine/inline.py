"""Clients in this process, one after another, on one backbone; the same bytes as over a network."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from cotune.client import Client
from cotune.core.contracts import ClientInfo, OnReply, Outcome
from cotune.core.errors import Code, CotuneError
from cotune.round import client_step
from cotune.setup import Setup


def failure(client: str, error: Exception) -> CotuneError:
    """An exception as this client's failure: its type and the line that raised it; its text might hold a row."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    got = f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"
    return CotuneError(Code.CLIENT, "client failed", where=f"client {client}", got=got, fix="run with --debug")


class InlineEngine:
    """Every client of a setup, in the order of their ids; an exception costs its client."""

    def __init__(self, setup: Setup, folder: Path) -> None:
        self._setup = setup
        self._clients = {info.id: Client(info.id, setup, folder) for info in setup.clients}

    def clients(self) -> Sequence[ClientInfo]:
        """Every client, empty ones too."""
        return self._setup.clients

    def exchange(self, downs: Mapping[str, bytes], deadline: float | None, min_ok: int, on_reply: OnReply) -> Outcome:
        """Run each client's step; past the deadline the rest are late."""
        del min_ok
        started, ok, failed = time.monotonic(), [], {}
        for client, message in sorted(downs.items()):
            reply: bytes | CotuneError
            if deadline is not None and time.monotonic() - started > deadline:
                reply = CotuneError(Code.LATE, "its turn came after the deadline", where=f"client {client}")
            else:
                reply = self._step(client, message)
            if isinstance(reply, bytes):
                ok.append(client)
            else:
                failed[client] = reply
            on_reply(client, reply)
        return Outcome(tuple(ok), failed)

    def _step(self, client: str, message: bytes) -> bytes | CotuneError:
        try:
            return client_step(self._clients[client], message)
        except CotuneError as error:
            return error
        except Exception as error:  # noqa: BLE001  # whatever a client part raises costs its client, with its first cause
            return failure(client, error)

    def close(self) -> None:
        """Nothing to release."""
