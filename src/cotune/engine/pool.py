"""Clients in several processes of this machine: new ones, each with a backbone of its own, bytes in and bytes out.

Files of weights are memory-mapped, so that the processes share their pages. Theta is the one that the clients of one
process make: nothing of a step depends on where it is made, and the server folds in the order of the clients.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from queue import Empty

from cotune.backbone.loaded import Loaded
from cotune.core.contracts import ClientInfo, OnReply, Outcome
from cotune.core.errors import Code, CotuneError
from cotune.core.events import Say, silent
from cotune.engine.capacity import Room, capacity, device_of
from cotune.engine.crew import Crew, Events, Gone, Heard, Ready, Worker, end_all, packed
from cotune.engine.seat import differing, facts
from cotune.setup import Blueprint, Setup

Answer = tuple[str, bytes | CotuneError]


class Turns:
    """Clients that wait for a worker: each place takes those that it has had, then new ones, then anybody's.

    What a process has of a client is encoded already. Within each of these, the order is that of the ids.
    """

    def __init__(self, clients: Sequence[str], homes: Mapping[str, int]) -> None:
        self._queues: dict[int | None, deque[str]] = {}
        for client in sorted(clients):
            self._queues.setdefault(homes.get(client), deque()).append(client)

    def take(self, place: int) -> str | None:
        """The next client of a place; None when nobody waits."""
        own = [queue for home in (place, None) if (queue := self._queues.get(home))]
        queues = own or [queue for queue in self._queues.values() if queue]
        return min(queues, key=lambda queue: queue[0]).popleft() if queues else None

    @property
    def waiting(self) -> bool:
        """Whether anybody waits."""
        return any(self._queues.values())

    def rest(self) -> list[str]:
        """Everybody who waits, and nobody afterwards."""
        left = sorted(client for queue in self._queues.values() for client in queue)
        self._queues.clear()
        return left


class PoolEngine:
    """Every client of a setup, in as many processes as asked for or as there is room for.

    A process that ends costs the client that it worked for, and is replaced; one that is late at the deadline is ended,
    and replaced too. Processes are started when they are first needed, and all end with `close`, or with this process.
    """

    def __init__(
        self, setup: Setup, folder: Path, workers: int | None = None, say: Say = silent, crew: Crew | None = None
    ) -> None:
        """Find out how many workers there can be.

        Args:
            setup: of the run, loaded in this process.
            folder: of the clients' own state.
            workers: how many; None for as many as there is room for.
            say: is told when they are fewer than asked for.
            crew: where idle processes come from and go back to; None to end them.
        """
        assert isinstance(setup.backbone, Loaded)  # what a blueprint builds
        self._setup, self._folder, self._say = setup, folder, say
        self._backbone = setup.backbone.config
        self._device = self._backbone.device
        size, fewer = capacity(
            workers, len(setup.corpus.clients), self._backbone.threads, self._device, Room.measured()
        )
        if fewer:
            say(fewer)
        self._crew, self._lent = crew or Crew(), crew is not None
        self._places: dict[int, Worker | None] = dict.fromkeys(range(size))
        self._events: Events = Events()
        self._homes: dict[str, int] = {}
        self._facts = facts(setup)

    def clients(self) -> Sequence[ClientInfo]:
        """Every client, empty ones too."""
        return self._setup.clients

    @property
    def pids(self) -> list[int]:
        """The numbers of the processes that are there."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    def exchange(self, downs: Mapping[str, bytes], deadline: float | None, min_ok: int, on_reply: OnReply) -> Outcome:
        """Have each client's step made by whichever process is free; past the deadline the rest are late.

        The clock of a deadline starts when every process has loaded its setup.

        Raises:
            CotuneError: E_ENGINE when no process can be started, and what loading the setup raises there.
        """
        del min_ok
        self._fill()
        while deadline is not None and not all(worker.ready for worker in self._workers):
            self._heard(*self._events.get())
        ends = math.inf if deadline is None else time.monotonic() + deadline
        turns, ok, failed = Turns([*downs], self._homes), list[str](), dict[str, CotuneError]()

        def deliver(client: str, reply: bytes | CotuneError) -> None:
            if isinstance(reply, bytes):
                ok.append(client)
            else:
                failed[client] = reply
            on_reply(client, reply)

        try:
            while turns.waiting or any(worker.job is not None for worker in self._workers):
                self._hand_out(turns, downs, ends)
                try:
                    event = self._events.get(timeout=None if deadline is None else max(ends - time.monotonic(), 0.0))
                except Empty:
                    break
                heard = self._heard(*event)
                self._hand_out(turns, downs, ends)  # before the reply is looked at: that may take a while
                if heard is not None:
                    deliver(*heard)
        finally:
            late = self._cut_off()
        if late:
            self._fill()
        for client in late:
            deliver(client, CotuneError(Code.LATE, "no reply by the deadline", where=f"client {client}"))
        for client in turns.rest():
            deliver(client, CotuneError(Code.LATE, "its turn came after the deadline", where=f"client {client}"))
        return Outcome(tuple(ok), failed)

    def close(self) -> None:
        """End every process, or give back those that have nothing to do."""
        idle = [worker for worker in self._workers if not worker.busy]
        end_all([worker for worker in self._workers if worker.busy])
        self._places = dict.fromkeys(self._places)
        if self._lent:
            for worker in idle:
                self._crew.back(worker)
        else:
            end_all(idle)

    @property
    def _workers(self) -> list[Worker]:
        return [worker for worker in self._places.values() if worker is not None]

    def _fill(self) -> None:
        """Start a process wherever there is none, or none any more."""
        for place, worker in self._places.items():
            dead = worker is not None and not worker.busy and not worker.alive
            if worker is not None and dead:
                worker.end()
            if worker is None or dead:
                setup = packed(self._blueprint(place), self._folder)
                self._places[place] = started = self._crew.take(self._events)
                started.load(setup)

    def _blueprint(self, place: int) -> Blueprint:
        """What the process at a place builds: the setup on its own device, without what only the server measures."""
        given = {field.name: getattr(self._setup, field.name) for field in fields(Blueprint)}
        backbone = self._backbone.model_copy(update={"device": device_of(self._device, place)})
        whole = Blueprint(**{**given, "backbone": backbone})
        return replace(whole, evaluation=whole.evaluation.model_copy(update={"general": None}))

    def _hand_out(self, turns: Turns, downs: Mapping[str, bytes], ends: float) -> None:
        """Give every process that has nothing to do a client, while there is time."""
        for place, worker in self._places.items():
            if worker is None or not worker.ready or worker.busy or time.monotonic() > ends:
                continue
            client = turns.take(place)
            if client is not None:
                self._homes[client] = place
                worker.ask(client, downs[client])

    def _heard(self, worker: Worker, said: Heard) -> Answer | None:
        """What an event says about a client; what it says about a process is acted upon."""
        place = next((place for place, other in self._places.items() if other is worker), None)
        if place is None:  # it was ended with its answer on the way
            return None
        client, worker.job, worker.busy = worker.job, None, False
        match said:
            case Gone():
                return self._lost(place, worker, client)
            case Ready(found):
                if wrong := differing(self._facts, found, "a worker"):
                    raise wrong
                worker.ready = True
                return None
            case CotuneError() if client is None:
                raise said
        assert client is not None
        return client, said

    def _lost(self, place: int, worker: Worker, client: str | None) -> Answer | None:
        """Replace a process that has ended, unless it could not even start; its client has failed."""
        started, how = worker.ready, worker.end()
        self._places[place] = None
        if started:
            self._fill()
        else:
            del self._places[place]
            if not self._places:
                raise CotuneError(
                    Code.ENGINE,
                    "no worker could be started",
                    got=how,
                    fix="in a script, call it under `if __name__ == '__main__':`; or use --engine inline",
                )
            self._say(f"a worker could not be started and is not replaced · {how} · {len(self._places)} left")
        if client is None:
            return None
        what, where = "the process of its worker ended", f"client {client}"
        return client, CotuneError(Code.ENGINE, what, where=where, got=how, fix="take fewer workers if memory is short")

    def _cut_off(self) -> list[str]:
        """End every process that is at work; the clients that it worked for."""
        busy = {place: worker for place, worker in self._places.items() if worker and worker.job is not None}
        cut = sorted(worker.job for worker in busy.values() if worker.job is not None)
        end_all([*busy.values()])
        self._places |= dict.fromkeys(busy)
        return cut
