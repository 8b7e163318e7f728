"""A setup and its clients in one process, whoever is at the other end of its link."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from cotune.client import Client
from cotune.core.contracts import ClientInfo
from cotune.core.errors import Code, CotuneError
from cotune.engine.answer import answer
from cotune.link import WHO, Frames, Roster, asked, say
from cotune.setup import Setup


def common(setup: Setup) -> dict[str, str]:
    """What all processes of a run have in common, wherever rows are: digests of weights, table, start, labels."""
    return {
        "backbone": setup.backbone.digest,
        "spec": setup.spec.digest,
        "start": setup.start.sha256(),
        "personal": setup.personal.sha256(),
        "labels": hashlib.sha256(json.dumps(setup.corpus.labels).encode()).hexdigest(),
    }


def facts(setup: Setup) -> dict[str, str]:
    """What two processes with the same data must have in common."""
    return {**common(setup), "data": str(setup.corpus.facts.get("manifest"))}


class Seat:
    """A setup, and each of its clients once it was asked.

    Attributes:
        setup: of which the rows of some clients may be elsewhere.
    """

    def __init__(self, setup: Setup, folder: Path, own: Collection[str] | None = None) -> None:
        """Take a seat for some clients.

        Args:
            setup: loaded.
            folder: of the clients' own state.
            own: the clients that are answered for; None for all.
        """
        self.setup = setup
        self._folder = folder
        self._own = frozenset(setup.corpus.clients if own is None else own)
        self._clients: dict[str, Client] = {}

    def who(self) -> dict[str, Any]:
        """The run, the clients with their counts of rows, and what all processes must have in common."""
        return {
            "run": self.setup.run,
            "clients": {info.id: [info.rows, info.held] for info in map(self.setup.info, sorted(self._own))},
            "facts": common(self.setup),
        }

    def step(self, name: str, message: bytes, roster: Roster | None = None) -> bytes | CotuneError:
        """A client's answer to one message."""
        if name not in self._own:
            return CotuneError(Code.RUN, "no such client here", where=f"client {name}")
        self._among(roster or Roster())
        if name not in self._clients:
            self._clients[name] = Client(name, self.setup, self._folder)
        return answer(self._clients[name], message)

    def _among(self, roster: Roster) -> None:
        """Take the other clients into account, whose rows are elsewhere."""
        missing = roster.clients - len(self.setup.corpus.clients)
        if missing > 0:
            others = [ClientInfo(f"elsewhere-{number:05d}", roster.most) for number in range(missing)]
            self.setup = self.setup.told([*self.setup.clients, *others])
            self._clients.clear()


def attend(link: Frames, kind: bytes, seat: Seat) -> None:
    """Answer a question about clients, after its first frame."""
    if kind == WHO:
        say(link, seat.who())
        return
    reply = seat.step(*asked(link))
    if isinstance(reply, bytes):
        say(link, {}, reply)
    else:
        say(link, reply)


Facts = Mapping[str, str]


def differing(ours: Facts, theirs: Facts, who: str) -> CotuneError | None:
    """What another process has loaded differently, as an error; None where all is the same."""
    names = sorted(name for name, value in ours.items() if theirs.get(name) != value)
    if not names:
        return None
    code = Code.DATA if "data" in names else Code.LABEL if "labels" in names else Code.MODEL
    fixes = {
        Code.DATA: "leave the files as they are",
        Code.LABEL: "name the classes by numbers from 0, and say how many there are in `task.classes`",
        Code.MODEL: "use the same cotune, torch and backbone on both sides",
    }
    return CotuneError(code, f"{who} has loaded something else than the server", got=", ".join(names), fix=fixes[code])
