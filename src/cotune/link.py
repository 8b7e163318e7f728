"""Questions to a process that holds clients, and its answers, as frames of bytes; without torch.

| a question's frames | asks | its answer |
|---|---|---|
| `setup`, a pickled setup | to load it: of a pool's own processes alone, never over a socket | `{"facts": ...}` |
| `who` | which clients are there | `{"run": ..., "clients": {id: [rows, held]}, "facts": ...}` |
| `step`, `{"client": ..., ...}`, a message | for a client's step | `{}`, and a frame with the reply |

Any of them may be answered by `{"code": ..., "text": ...}`, an error. Texts are JSON in ASCII.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any, Protocol

from cotune.core.errors import Code, CotuneError, rebuilt

SETUP, STEP, WHO = b"setup", b"step", b"who"


class Frames(Protocol):
    """One end of a link."""

    def send_bytes(self, frame: bytes, /) -> None:
        """Send a frame."""
        ...

    def recv_bytes(self) -> bytes:
        """The next frame."""
        ...


@dataclass(frozen=True)
class Roster:
    """What a process that holds one client's rows must know of all the others.

    Attributes:
        clients: how many there are in the federation; 0 where all of them are there.
        most: rows that the largest of them trains on.
    """

    clients: int = 0
    most: int = 0


def question(client: str, message: bytes, roster: Roster) -> tuple[bytes, ...]:
    """The frames that ask for a client's step."""
    return STEP, json.dumps({"client": client, **asdict(roster)}).encode(), message


def asked(link: Frames) -> tuple[str, bytes, Roster]:
    """The client, the message and the roster of a step, after its first frame."""
    about = json.loads(link.recv_bytes())
    return about["client"], link.recv_bytes(), Roster(about["clients"], about["most"])


def say(link: Frames, said: Mapping[str, Any] | CotuneError, reply: bytes | None = None) -> None:
    """Answer."""
    words = {"code": said.code.value, "text": said.text} if isinstance(said, CotuneError) else said
    link.send_bytes(json.dumps(words).encode())
    if reply is not None:
        link.send_bytes(reply)


def hear(link: Frames) -> Mapping[str, Any] | CotuneError:
    """What is answered first; the reply to a step is a frame of its own, after it."""
    said: Mapping[str, Any] = json.loads(link.recv_bytes())
    return rebuilt(Code(said["code"]), said["text"]) if "code" in said else said


def ask(socket: Path, *frames: bytes) -> tuple[Mapping[str, Any], bytes | None]:
    """The answer of a worker at a socket of this machine, and the reply to a step.

    Raises:
        CotuneError: E_ENGINE when nobody answers there, or goes before the answer came; what the worker answers.
    """
    try:
        with Client(str(socket), "AF_UNIX") as link:
            for frame in frames:
                link.send_bytes(frame)
            said = hear(link)
            if isinstance(said, CotuneError):
                raise said
            return said, link.recv_bytes() if frames[0] == STEP else None
    except (EOFError, OSError, ValueError) as error:
        fix = "start `cotune worker`, and look at what it prints"
        raise CotuneError(
            Code.ENGINE, "no answer from the worker", where=socket.name, got=type(error).__name__, fix=fix
        ) from error
