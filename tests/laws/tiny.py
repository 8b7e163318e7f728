"""Runs of a second: a random two-block encoder on synthetic sentiment, for tests that need the real thing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

import cotune as ct
from cotune import forecast, wire
from cotune.core.contracts import ClientInfo, OnReply, Outcome
from cotune.core.errors import Code, CotuneError
from cotune.core.message import NEVER, Kind, Limits
from cotune.engine import InlineEngine
from cotune.experiment import run
from cotune.resolve import load
from cotune.setup import Plan, Setup
from cotune.store import Run

BACKBONE = "random:bert?layers=1&hidden=16&heads=2"


def experiment(recipe: str = "lora-fedavg", **sets: Any) -> ct.Experiment:
    """A recipe on four clients of synthetic sentiment, three rounds of two steps; `a__b=c` sets `a.b`."""
    defaults: dict[str, Any] = {
        "backbone.ref": BACKBONE,
        "task.kind": "classify",
        "task.data": "synth:sentiment?clients=4&rows=96",
        "task.max_tokens": 24,
        "method.budget": {"steps": 2, "batch": 4},
        "federation": {"rounds": 3, "cohort": 2},
        "evaluation.rows": 8,
    }
    tree = {**defaults, **{key.replace("__", "."): value for key, value in sets.items()}}
    return build(load_tree(recipe, tree))


def load_tree(recipe: str, flat: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's resolved tables with dotted keys on top."""
    base = load(recipe, backbone=BACKBONE, task="synth:sentiment?clients=4&rows=96").model_dump(mode="json")
    for key, value in flat.items():
        *path, last = key.split(".")
        place: Any = base
        for step in path:
            place = place[int(step)] if isinstance(place, list) else place.setdefault(step, {})
        place[last] = value
    return base


def build(tree: Mapping[str, Any]) -> ct.Experiment:
    """The experiment behind plain tables."""
    return ct.Experiment.model_validate(tree)


def play(experiment_: ct.Experiment, out: Path, **options: Any) -> Run:
    """The finished run."""
    return run(experiment_, out, **options)


def theta(experiment_: ct.Experiment, out: Path, **options: Any) -> str:
    """The digest of the last theta."""
    return play(experiment_, out, **options).theta_sha256


class Wrapped:
    """An inline engine, for tests that override what they change."""

    def __init__(self, setup: Setup, folder: Path) -> None:
        self.inner = InlineEngine(setup, folder)
        self.setup = setup
        self.folder = folder

    def clients(self) -> list[ClientInfo]:
        """As the inner engine."""
        return list(self.inner.clients())

    def exchange(self, downs: Mapping[str, bytes], deadline: float | None, min_ok: int, on_reply: OnReply) -> Outcome:
        """As the inner engine."""
        return self.inner.exchange(downs, deadline, min_ok, on_reply)

    def close(self) -> None:
        """As the inner engine."""
        self.inner.close()


class Recorded(Wrapped):
    """Keeps what clients sent, and delivers it in the opposite order."""

    sent: dict[str, Mapping[str, Tensor]]

    def exchange(self, downs: Mapping[str, bytes], deadline: float | None, min_ok: int, on_reply: OnReply) -> Outcome:
        """As the inner engine, the other way round."""
        kept: list[tuple[str, bytes | CotuneError]] = []
        outcome = self.inner.exchange(downs, deadline, min_ok, lambda client, reply: kept.append((client, reply)))
        for client, reply in reversed(kept):
            assert isinstance(reply, bytes)
            envelope = wire.decode(reply, Limits(bytes=10**9))
            if envelope.header.kind is Kind.UPDATE:
                self.sent[client] = envelope.part("theta")
            on_reply(client, reply)
        return outcome


class Lossy(Wrapped):
    """In the first exchange the first client's reply is lost."""

    rounds = 0

    def exchange(self, downs: Mapping[str, bytes], deadline: float | None, min_ok: int, on_reply: OnReply) -> Outcome:
        """As the inner engine, but for that reply."""
        self.rounds += 1
        gone, lost = CotuneError(Code.CLIENT, "gone"), min(downs) if self.rounds == 1 else None
        return self.inner.exchange(
            downs, deadline, min_ok, lambda client, reply: on_reply(client, gone if client == lost else reply)
        )


def assert_predicted(run_: Run, plan: Plan) -> None:
    """Every message of a run cost what its shapes alone predict, payload and framing."""
    accepted: dict[str, int] = {}
    assert run_.ledger
    for line in run_.ledger:
        kind = Kind.TRAIN if line.purpose == "train" else Kind.EVALUATE
        if line.direction == "down":
            last = accepted.get(line.client, NEVER)
            predicted = wire.size(forecast.request(plan, line.client, line.round, kind, last), 0)
        else:
            limits = forecast.reply(plan, line.client, line.round, kind)
            assert limits.layout is not None
            assert limits.metrics is not None
            predicted = wire.size(limits.layout, limits.metrics)
            if kind is Kind.TRAIN:
                accepted[line.client] = line.round
        assert (sum(line.payload_bytes.values()), line.framing_bytes) == predicted
