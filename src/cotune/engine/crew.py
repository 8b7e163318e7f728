"""The server's end of its workers: a process each, and a thread that talks to it, so that nobody waits for a pipe."""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from queue import SimpleQueue

from cotune.core.errors import Code, CotuneError
from cotune.engine.worker import serve
from cotune.link import SETUP, Roster, hear, question
from cotune.setup import Blueprint


@dataclass(frozen=True)
class Ready:
    """A setup is loaded; what it came to."""

    facts: Mapping[str, str]


@dataclass(frozen=True)
class Gone:
    """The process has ended, or will not say anything that can be understood."""


Heard = Ready | Gone | CotuneError | bytes
Events = SimpleQueue[tuple["Worker", Heard]]


class Worker:
    """A process that answers one question at a time.

    Attributes:
        events: where answers go.
        busy: whether its answer has not come.
        ready: whether its setup is loaded.
        job: the client that it is asked about; None while it is asked about none.
    """

    def __init__(self, events: Events) -> None:
        self.events = events
        self.busy, self.ready = False, False
        self.job: str | None = None
        self._asked: SimpleQueue[tuple[bytes, ...]] = SimpleQueue()
        self._link, theirs = get_context("spawn").Pipe()
        self._process = get_context("spawn").Process(target=serve, args=(theirs,), name="cotune-worker", daemon=True)
        # A key that interrupts a terminal's processes is the server's to act on: a new process keeps what is blocked.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
        self._thread = threading.Thread(target=self._talk, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the process is there."""
        return self._process.is_alive()

    @property
    def pid(self) -> int | None:
        """The number of the process."""
        return self._process.pid

    def load(self, packed: bytes) -> None:
        """Begin with a setup; Ready will come of it, or an error."""
        self.busy, self.ready = True, False
        self._asked.put((SETUP, packed))

    def ask(self, client: str, message: bytes) -> None:
        """Begin with a client's step; its reply will come, or an error."""
        self.busy, self.job = True, client
        self._asked.put(question(client, message, Roster()))

    def kill(self) -> None:
        """Begin to end."""
        self._process.kill()

    def end(self) -> str:
        """How the process ended, at the latest now; nothing of it is left."""
        self.kill()
        self._process.join()
        self._asked.put(())
        self._thread.join()
        self._link.close()
        code = self._process.exitcode or 0
        self._process.close()
        return signal.Signals(-code).name if code < 0 else f"exit status {code}"

    def _talk(self) -> None:
        try:
            while frames := self._asked.get():
                for frame in frames:
                    self._link.send_bytes(frame)
                self.events.put((self, _hear(self._link)))
        except (EOFError, OSError, ValueError):
            self.events.put((self, Gone()))


def _hear(link: Connection) -> Heard:
    said = hear(link)
    if isinstance(said, CotuneError):
        return said
    return Ready(said["facts"]) if "facts" in said else link.recv_bytes()


def packed(blueprint: Blueprint, folder: Path) -> bytes:
    """A setup as a worker takes it.

    Raises:
        CotuneError: E_CONFIG when a part of it cannot be taken to another process.
    """
    try:
        return bytes(ForkingPickler.dumps((blueprint, folder)))
    except Exception as error:
        raise CotuneError(
            Code.CONFIG,
            "a part of the experiment cannot go to another process",
            got=type(error).__name__,
            fix="define its class at the top of a module",
        ) from error


class Crew:
    """Workers that outlive a setup: the next one that asks gets a process whose libraries are loaded."""

    def __init__(self) -> None:
        self._idle: list[Worker] = []

    def take(self, events: Events) -> Worker:
        """A worker that nobody else has."""
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                worker.events = events
                return worker
            worker.end()
        return Worker(events)

    def back(self, worker: Worker) -> None:
        """Keep a worker that has nothing to do."""
        self._idle.append(worker)

    def close(self) -> None:
        """End all that are kept."""
        end_all(self._idle)
        self._idle.clear()


def end_all(workers: list[Worker]) -> None:
    """End them at once, not one after another."""
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.end()
