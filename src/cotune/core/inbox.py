"""Replies in the order of their clients, whatever the order in which they arrive."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from cotune.core.errors import Code, CotuneError

HELD_IN_MEMORY = 3
SMALL_BYTES = 2**16  # a reply of this size waits in memory
SMALL_ROOM = 2**26  # bytes of such replies together; those past it wait on disk too
WAITING = ".reply-"  # how the files of waiting replies begin


class Inbox:
    """Replies in the order of their clients: one ahead of its turn waits as bytes, a large one on disk past three.

    Attributes:
        accepted: clients whose reply passed `take`.
        dropped: client -> why not.
        notes: second replies that were refused.
    """

    def __init__(self, clients: Sequence[str], take: Callable[[str, bytes], None], spill: Path | None) -> None:
        self.accepted: list[str] = []
        self.dropped: dict[str, CotuneError] = {}
        self.notes: list[CotuneError] = []
        self._waiting: dict[str, bytes | Path] = {}
        self._large, self._small = 0, 0  # how many large replies wait in memory, and bytes of small ones
        self._open = deque(clients)  # sorted; those whose turn has not come
        self._asked = frozenset(clients)
        self._answered: set[str] = set()
        self._take = take
        self._spill = spill

    def put(self, client: str, reply: bytes | CotuneError) -> None:
        """Take in a reply or a failure; the first answer of a client counts, a second one is noted as E_DUP."""
        if client not in self._asked or client in self._answered:
            self.notes.append(CotuneError(Code.DUPLICATE, "a second reply was refused", where=f"client {client}"))
            return
        self._answered.add(client)
        if isinstance(reply, CotuneError):
            self.dropped[client] = reply
        elif client != self._open[0] and self._full(len(reply)):
            self._waiting[client] = self._to_disk(reply)
        else:
            self._waiting[client] = reply
            self._count(reply, 1)
        self._drain()

    def close(self, reason: CotuneError) -> None:
        """Nobody else will answer; whoever has not is dropped for `reason`."""
        for client in list(self._open):
            if client not in self._answered:
                self.put(client, reason)

    def _drain(self) -> None:
        while self._open and (self._open[0] in self._waiting or self._open[0] in self.dropped):
            client = self._open.popleft()
            if client in self.dropped:
                continue
            reply = self._waiting.pop(client)
            if isinstance(reply, bytes):
                self._count(reply, -1)
            try:
                self._take(client, reply if isinstance(reply, bytes) else self._from_disk(reply))
                self.accepted.append(client)
            except CotuneError as error:
                self.dropped[client] = error

    def _full(self, size: int) -> bool:
        """Whether there is no room in memory for a reply of this size to wait."""
        return self._large >= HELD_IN_MEMORY if size > SMALL_BYTES else self._small + size > SMALL_ROOM

    def _count(self, reply: bytes, sign: int) -> None:
        if len(reply) > SMALL_BYTES:
            self._large += sign
        else:
            self._small += sign * len(reply)

    def _to_disk(self, reply: bytes) -> Path:
        try:
            with tempfile.NamedTemporaryFile(dir=self._spill, prefix=WAITING, delete=False) as file:
                file.write(reply)
        except OSError as error:
            raise CotuneError(
                Code.DISK, "cannot keep a waiting reply", got=error.strerror, fix="free the disk"
            ) from error
        return Path(file.name)

    @staticmethod
    def _from_disk(path: Path) -> bytes:
        try:
            data = path.read_bytes()
            path.unlink()
        except OSError as error:
            raise CotuneError(Code.DISK, "a waiting reply is gone", where=path.name, got=error.strerror) from error
        return data

    def by_code(self) -> dict[str, tuple[str, ...]]:
        """Code -> the clients dropped for it."""
        codes: dict[str, list[str]] = {}
        for client, error in sorted(self.dropped.items()):
            codes.setdefault(error.code.value, []).append(client)
        return {code: tuple(clients) for code, clients in codes.items()}
