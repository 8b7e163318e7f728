"""Clients in this process, one after another, on one backbone; the same bytes as over a network."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from cotune.client import Client
from cotune.core.contracts import ClientInfo, OnReply, Outcome
from cotune.core.errors import Code, CotuneError
from cotune.engine.answer import answer
from cotune.setup import Setup


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
        for client in sorted(downs):
            reply: bytes | CotuneError
            if deadline is not None and time.monotonic() - started > deadline:
                reply = CotuneError(Code.LATE, "its turn came after the deadline", where=f"client {client}")
            else:
                reply = answer(self._clients[client], downs[client])
            if isinstance(reply, bytes):
                ok.append(client)
            else:
                failed[client] = reply
            on_reply(client, reply)
        return Outcome(tuple(ok), failed)

    def close(self) -> None:
        """Nothing to release."""
