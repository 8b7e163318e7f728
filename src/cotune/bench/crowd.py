"""Rounds of a crowd: clients that have trained already, so that what is left of a round is the server's work."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field

from cotune import resolve, wire
from cotune.backbone import Backbone
from cotune.bench.measure import Rise
from cotune.client import Client
from cotune.core.contracts import ClientInfo, OnReply, Outcome
from cotune.core.message import Envelope, Limits
from cotune.core.seeds import derive, torch_generator
from cotune.core.view import Budget
from cotune.experiment import Experiment, run
from cotune.federation import Evaluation, Federation
from cotune.round import client_step
from cotune.setup import Setup
from cotune.task import Classify
from cotune.task.partition import Iid

ROWS, TOKENS = 2, 16  # of a client's round of one step
APART = 1e-3  # how far the numbers of one client's reply are from those of another's
ANY = Limits(2**40)
PAGE = 2**12  # bytes: what rounds add is this at least
LINES, FOLDERS = ("rounds.jsonl", "ledger.jsonl"), ("journal", "checkpoints")  # of a run; one more a round in each
Trained = dict[tuple[str, int], Envelope]  # table, rows -> a reply


class Prepared:
    """Clients of an engine that answer at once: with a reply that one of their like has trained for, in their own name.

    The first client of a table and a number of rows takes its step. The reply of every other is that one's, with
    numbers a little apart, under the header that its own message asks for, and written as any message is.

    Attributes:
        seconds: of process time that went into replies, which is no work of the server's.
    """

    def __init__(self, setup: Setup, folder: Path, trained: Trained) -> None:
        self._setup, self._folder, self._trained = setup, folder, trained
        self.seconds = 0.0

    def clients(self) -> Sequence[ClientInfo]:
        """Every client."""
        return self._setup.clients

    def exchange(self, downs: Mapping[str, bytes], deadline: float | None, min_ok: int, on_reply: OnReply) -> Outcome:
        """Answer for each client in turn."""
        del deadline, min_ok
        for client in sorted(downs):
            message, start = downs[client], time.process_time()
            reply = self._reply(client, message)
            self.seconds += time.process_time() - start
            on_reply(client, reply)
        return Outcome(tuple(downs))

    def close(self) -> None:
        """Nothing to release."""

    def _reply(self, client: str, message: bytes) -> bytes:
        asked, _ = wire.peek(message, ANY)
        like = asked.spec, asked.rows
        if like not in self._trained:
            self._trained[like] = wire.decode(client_step(Client(client, self._setup, self._folder), message), ANY)
        done, generator = self._trained[like], torch_generator(derive(0, "reply", client))
        parts = {
            part: {name: t + APART * torch.randn(t.shape, generator=generator) for name, t in tensors.items()}
            for part, tensors in done.parts.items()
        }
        header = replace(asked, kind=done.header.kind, rows=done.header.rows)
        return wire.encode(Envelope(header, parts, done.metrics))


@dataclass(frozen=True)
class Cost:
    """What the rounds of some clients cost the server.

    Attributes:
        setup: seconds of process time until model and rows are there.
        seconds: of process time, of every round after the first: all but replies.
        lifted: bytes by which rounds lift the resident memory, at their highest.
        resident: bytes that were resident before them.
        wire: bytes of a round's messages, both ways, by round after the first.
        disk: file or folder -> bytes that a round leaves in it.
    """

    setup: float
    seconds: tuple[float, ...]
    lifted: int
    resident: int
    wire: tuple[int, ...]
    disk: Mapping[str, float]


class Shape(BaseModel):
    """What travels: LoRA factors of a backbone.

    Attributes:
        backbone: a reference.
        rank: of the factors.
        targets: layers that have some; None for those that are usual.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    backbone: str
    rank: int = Field(default=8, ge=1)
    targets: str | None = None


def crowd(row: str, shape: Shape, clients: int, rounds: int) -> Experiment:
    """Rounds of a recipe on LoRA factors, in which every client has as many rows of synthetic text, and none scores."""
    trainable = {"kind": "lora", "rank": shape.rank, "alpha": 2 * shape.rank, "targets": shape.targets}
    return Experiment(
        method=resolve.recipe(row, trainable=trainable, budget=Budget(steps=1, batch=ROWS)),
        task=Classify(
            data=f"synth:sentiment?rows={ROWS * (clients + 1)}",
            partition=Iid(clients=clients),
            test=ROWS,
            held=0.0,
            max_tokens=TOKENS,
        ),
        backbone=Backbone(ref=shape.backbone),
        federation=Federation(rounds=rounds),
        evaluation=Evaluation(which="none"),
    )


def cost(row: str, shape: Shape, clients: int, rounds: int) -> Cost:
    """The cost of rounds of so many clients."""
    return _played(crowd(row, shape, clients, rounds), {})


def cost_apart(row: str, shape: Shape, clients: int, rounds: int) -> Cost:
    """The same in a fresh process of one thread, whose memory is theirs alone."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_warmed, row, shape, clients, rounds).result()


def _warmed(row: str, shape: Shape, clients: int, rounds: int) -> Cost:
    """The cost after a run of two clients: what a process needs once is there, and so is a reply."""
    torch.set_num_threads(1)
    trained: Trained = {}
    _played(crowd(row, shape, 2, 2), trained)
    return _played(crowd(row, shape, clients, rounds), trained)


def _played(experiment: Experiment, trained: Trained) -> Cost:
    engines, began, marks = list[Prepared](), time.process_time(), dict[str, float]()
    rises, seconds, sent = list[Rise](), list[float](), list[int]()

    def engine(setup: Setup, folder: Path) -> Prepared:
        engines.append(Prepared(setup, folder, trained))
        return engines[0]

    def spent() -> float:
        return time.process_time() - engines[0].seconds

    def watch(what: str, about: Mapping[str, Any]) -> None:
        if what == "loaded":
            marks["setup"] = time.process_time() - began
        elif what == "round":
            if not rises:
                rises.append(Rise())
            marks["round"] = spent()
        elif what == "recorded":
            record = about["record"]
            marks["lifted"] = max(rises[0].bytes, PAGE)
            seconds.append(spent() - marks["round"])
            sent.append(record.uplink_bytes + record.downlink_bytes)

    with tempfile.TemporaryDirectory() as out:
        left = run(experiment, out, watch=watch, make_engine=engine).folder
        rounds = experiment.federation.rounds
        disk = {name: (left / name).stat().st_size / rounds for name in LINES}
        disk |= {name: _bytes(left / name) / len([*(left / name).iterdir()]) for name in FOLDERS}
    resident = rises[0].resident
    return Cost(marks["setup"], tuple(seconds[1:]), int(marks["lifted"]), resident, tuple(sent[1:]), disk)


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
