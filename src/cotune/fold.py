"""The fold of a round's replies in the order of their clients, and what else they said."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from cotune import wire
from cotune.core.change import Commit, Contribution, Server
from cotune.core.errors import Code, CotuneError
from cotune.core.journal import Reply
from cotune.core.message import Header, Kind
from cotune.diagnose.conflict import Conflict
from cotune.diagnose.metrics import finite
from cotune.diagnose.subspace import Subspace
from cotune.forecast import TRAIN_METRICS
from cotune.refold import Seat
from cotune.server import Desk, State, check


class Fold:
    """The aggregator's fold of a round, client by client, and what else the replies said."""

    def __init__(self, desk: Desk, state: State, sent: Mapping[str, Header]) -> None:
        self.desk, self.state, self.sent = desk, state, sent
        self.aggregator = desk.setup.method.aggregator
        server = Server(
            round=state.round + 1,
            population=len(desk.clients),
            spec=desk.setup.spec,
            up=desk.scope(state.round + 1).up,
            state=state.server,
            aux=state.aux,
        )
        self.fold = self.aggregator.init(state.theta, server)
        self.conflict = Conflict(state.theta, server.spec, server.up)
        self.subspace = Subspace(state.theta, server.spec, server.up)
        self.weights: dict[str, float] = {}
        self.metrics: dict[str, dict[str, float]] = {}
        self._replies: list[Reply] = []
        self.replayed: dict[str, Mapping[str, Tensor]] = {}

    def take(self, client: str, reply: bytes) -> None:
        """Check one reply and add it; a reply that raises leaves the fold as it was."""
        setup, sent = self.desk.setup, self.sent[client]
        envelope = wire.decode(reply, self.state.limits(setup, client, Kind.TRAIN))
        check(envelope, sent, Kind.UPDATE)
        group = setup.federation.number(client)
        seat = Seat.of(setup, group, sent.round)
        anchor, _ = self.state.fitted(seat.method.trainable, seat.spec)
        change = seat.change(envelope.parts, anchor, sent.seed)
        weight = setup.federation.weight(envelope.header.rows)
        contribution = Contribution(client, weight, change, seat.spec, envelope.part("aux"))
        self.fold = self.aggregator.add(self.fold, contribution)
        self.weights[client] = weight
        scalars = change.scalars()
        if scalars:
            self._replies.append(Reply(group, sent.seed, weight, envelope.part("scalars")))
            if seat.method.optimizer == setup.method.optimizer:
                self.replayed[client] = scalars
        else:
            self.conflict.add(arrived := change.dense(), weight)
            self.subspace.add(client, arrived, weight, seat.spec)
        self.metrics[client] = dict(zip((*TRAIN_METRICS, *setup.task.metrics), envelope.metrics, strict=True))

    @property
    def replies(self) -> tuple[Reply, ...]:
        """What the journal keeps of them; nothing where one was not scalars alone."""
        return tuple(self._replies) if len(self._replies) == len(self.weights) else ()

    def finish(self, quorum: int) -> Commit:
        """What the round has come to.

        Raises:
            CotuneError: E_QUORUM for fewer than `quorum` accepted replies; E_NONFINITE when finite ones add up to
                something that is not.
        """
        if len(self.weights) < quorum:
            raise CotuneError(Code.QUORUM, "too few replies", got=len(self.weights), expected=f"at least {quorum}")
        commit = self.aggregator.finish(self.fold)
        for name, tensor in (*commit.theta.items(), *commit.aux.items()):
            if not bool(torch.isfinite(tensor).all()):
                raise CotuneError(Code.NONFINITE, "the aggregate is not finite", where=name, fix="clip the updates")
        return commit

    def normalised(self) -> dict[str, float]:
        """Client -> its share of the mean."""
        total = sum(self.weights.values())
        return {client: weight / total for client, weight in self.weights.items()}

    def flops(self) -> float:
        """What training cost the accepted clients."""
        return math.fsum(finite(metrics["flops"]) or 0.0 for metrics in self.metrics.values())

    def train_loss(self) -> float | None:
        """The mean over clients of the loss of their last step."""
        losses = [metrics["train_loss"] for metrics in self.metrics.values() if math.isfinite(metrics["train_loss"])]
        return sum(losses) / len(losses) if losses else None
