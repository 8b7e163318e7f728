"""What the server has: its state between rounds, what it asks clients, and the checks that a reply must pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from cotune import forecast, wire
from cotune.backbone.bind import Bound, bind
from cotune.client import client_digest
from cotune.core.change import Base, origin
from cotune.core.contracts import ClientInfo, Engine, Layouts, Trainable
from cotune.core.errors import Code, CotuneError
from cotune.core.events import Watch
from cotune.core.inbox import Inbox
from cotune.core.journal import Journal
from cotune.core.message import NEVER, Envelope, Header, Kind, Limits, Parts
from cotune.core.record import LedgerLine, RoundRecord
from cotune.core.spec import Scope, Spec
from cotune.core.state import Theta
from cotune.diagnose import ledger_line
from cotune.method import Method
from cotune.objective import score
from cotune.setup import Setup
from cotune.task.general import General


@dataclass(frozen=True)
class State:
    """The server between rounds: all that a checkpoint holds.

    Attributes:
        round: the last one played; 0 before the first.
        theta: what was committed.
        server: the aggregator's own numbers.
        aux: what is broadcast beside theta.
        base: everything added to the backbone so far.
        accepted: client -> the last round in which its reply counted.
        abandoned: how many rounds in a row came to nothing.
    """

    round: int
    theta: Theta
    server: Mapping[str, Tensor] = field(default_factory=dict)
    aux: Mapping[str, Tensor] = field(default_factory=dict)
    base: Base = field(default_factory=Base)
    accepted: Mapping[str, int] = field(default_factory=dict)
    abandoned: int = 0
    _fitted: dict[str, tuple[Theta, str]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _packed: dict[tuple[str, int], Parts] = field(default_factory=dict, init=False, repr=False, compare=False)
    _limits: dict[tuple[int, int, Kind], Limits] = field(default_factory=dict, init=False, repr=False, compare=False)

    def fitted(self, trainable: Trainable, spec: Spec) -> tuple[Theta, str]:
        """Theta as clients of this table hold it, and the digest of what they start from; made once a table."""
        if spec.digest not in self._fitted:
            theta = trainable.fit(self.theta, spec)
            self._fitted[spec.digest] = theta, origin(theta, self.base)
        return self._fitted[spec.digest]

    def packed(self, method: Method, spec: Spec, journal: Journal, held: int) -> Parts:
        """What brings clients of this table from version `held` to this one; one value a table and version."""
        key = spec.digest, held if method.downlink.holds or self.base else 0
        if key not in self._packed:
            theta, _ = self.fitted(method.trainable, spec)
            scope = method.scope(spec, self.round + 1)
            parts: dict[str, Mapping[str, Tensor]] = dict(method.downlink.pack(theta, scope, journal, held))
            if self.aux:
                sized = Theta({name: tensor for name, tensor in self.aux.items() if name in spec})
                parts["aux"] = {**self.aux, **method.trainable.fit(sized, spec)}
            if self.base:
                added = [increment.base for increment in journal.since(held)]
                parts["base"] = {f"{i:05d}/{n}": t for i, base in enumerate(added) for n, t in base.tensors().items()}
            self._packed[key] = parts
        return self._packed[key]

    def limits(self, setup: Setup, client: str, kind: Kind) -> Limits:
        """What a client's reply may claim; made once for clients of one group with as many rows."""
        key = setup.federation.number(client), setup.train_rows(client), kind
        if key not in self._limits:
            self._limits[key] = forecast.reply(setup, client, self.round + (kind is Kind.TRAIN), kind)
        return self._limits[key]


@dataclass(frozen=True)
class Played:
    """What a round leaves: the next state, its record, a line for every message, and the score of every test row."""

    state: State
    record: RoundRecord
    ledger: Sequence[LedgerLine]
    rows: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Desk:
    """What the server works with: the setup, the clients it may ask, its journal, and where waiting replies go."""

    setup: Setup
    clients: Mapping[str, ClientInfo]
    journal: Journal
    spill: Path | None = None

    def opening(self) -> State:
        """The state before the first round."""
        aux = {
            name: torch.zeros(shape)
            for name, (_, shape) in self.setup.method.aggregator.broadcast(self.setup.spec).items()
        }
        return State(0, self.setup.start, aux=aux)

    @cached_property
    def general_before(self) -> float:
        """What the model before training loses on general text; derived anew after a resume."""
        assert self.setup.general is not None
        return general_loss(self.setup, self.setup.general, self.setup.start, Base())

    def general(self, state: State) -> dict[str, float]:
        """What the global model loses on general text per token, and how much more that is than before training."""
        text = self.setup.general
        if text is None or not text.examples:
            return {}
        loss = general_loss(self.setup, text, state.theta, state.base)
        return {"general_loss": loss, "forgetting": loss - self.general_before}

    def scope(self, round_: int) -> Scope:
        """Names that train, go up, come down."""
        return self.setup.method.scope(self.setup.spec, round_)

    def moved(self, round_: int) -> tuple[str, ...]:
        """Names that a commit of the round moves."""
        return self.setup.method.aggregator.moved(self.setup.spec, self.scope(round_).up)

    def brief(self, state: State, client: str, kind: Kind, accepted: int) -> Envelope:
        """The message that brings a client to `state` and asks it to train on, or to score."""
        method, spec = self.setup.method_of(client), self.setup.spec_of(client)
        round_ = state.round + 1
        held = max(accepted - 1, 0)
        _, started = state.fitted(method.trainable, spec)
        federation = self.setup.federation
        header = Header(
            kind=kind,
            run=self.setup.run,
            client=client_digest(client),
            round=round_ if kind is Kind.TRAIN else state.round,
            accepted=accepted,
            spec=spec.digest,
            base=started,
            rows=self.clients[client].rows,
            rate=method.budget.rate(min(round_, federation.rounds), federation.rounds),
            deadline=federation.deadline or 0.0,
            seed=method.uplink.directions(self.setup.seeds, round_, client),
        )
        return Envelope(header, state.packed(method, spec, self.journal, held))


def check(reply: Envelope, sent: Header, kind: Kind) -> None:
    """Raise for the first thing about a reply that its request does not allow; its layout was checked on opening.

    Raises:
        CotuneError: E_RUN, E_ROUND, E_BASE, E_KEYS, E_SEED, E_COUNT, E_SCALAR or E_NONFINITE, with got and expected.
    """
    header = reply.header
    rows = (
        (Code.RUN, "reply of another run", header.run, sent.run),
        (Code.RUN, "reply of another client", header.client, sent.client),
        (Code.ROUND, "reply of another round", header.round, sent.round),
        (Code.ROUND, "reply of another kind", header.kind.value, kind.value),
        (Code.BASE, "reply that started from another theta", header.base, sent.base),
        (Code.KEYS, "reply of another spec", header.spec, sent.spec),
        (Code.SEED, "reply along another seed", header.seed, sent.seed),
    )
    for code, what, got, expected in rows:
        if got != expected:
            raise CotuneError(code, what, got=got, expected=expected)
    if kind is Kind.UPDATE and not 0 < header.rows <= sent.rows:
        raise CotuneError(Code.COUNT, "reply claims impossible rows", got=header.rows, expected=f"1 to {sent.rows}")
    for part, tensors in reply.parts.items():
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                code = Code.SCALAR if part == "scalars" else Code.NONFINITE
                raise CotuneError(code, "reply is not finite", where=f"{part}/{name}")


class Exchange:
    """One question to some clients: their messages, their replies in order, and what both cost.

    A client that does not hold what its message builds on says so, and is asked once more from where it is.
    """

    def __init__(self, desk: Desk, state: State, kind: Kind, clients: Sequence[str], watch: Watch) -> None:
        self.desk, self.state, self.kind, self.watch = desk, state, kind, watch
        self.clients = list(clients)
        self.sent: dict[str, Header] = {}
        self.ledger: list[LedgerLine] = []
        self._behind: dict[str, int] = {}

    def run(self, engine: Engine, take: Callable[[str, bytes], None]) -> Inbox:
        """Send, and hand every reply that can be opened to `take`, in the order of the clients."""
        self._inbox = Inbox(self.clients, take, self.desk.spill)
        self._send(engine, {client: self.state.accepted.get(client, NEVER) for client in self.clients})
        if self._behind:
            self._send(engine, {c: held if held <= self.state.round else NEVER for c, held in self._behind.items()})
        self._inbox.close(CotuneError(Code.LATE, "no reply in time"))
        return self._inbox

    def spent(self, direction: str) -> int:
        """Bytes sent in one direction, framing included."""
        return sum(line.total_bytes for line in self.ledger if line.direction == direction)

    def _send(self, engine: Engine, accepted: Mapping[str, int]) -> None:
        downs = wire.Mail()
        for client, round_ in accepted.items():
            envelope = self.desk.brief(self.state, client, self.kind, round_)
            self.sent[client] = envelope.header
            downs.put(client, envelope)
            self._enter(client, "down", *downs.cost(client))
        self.watch("sent", {"kind": self.kind.value, "clients": list(downs)})
        federation = self.desk.setup.federation
        engine.exchange(downs, federation.deadline, federation.quorum(len(downs)), self._receive)

    def _receive(self, client: str, reply: bytes | CotuneError) -> None:
        if isinstance(reply, bytes) and client in self.sent:
            size = len(reply)
            content: Layouts = {}
            try:
                header, content = wire.peek(reply, self.state.limits(self.desk.setup, client, self.kind))
                if header.kind is Kind.HELD and client not in self._behind:
                    self._behind[client] = header.accepted
                    self._enter(client, "up", wire.payload(content), size)
                    return
            except CotuneError as error:
                reply = error
            self._enter(client, "up", wire.payload(content), size)
        self.watch("reply", {"client": client, "error": str(reply) if isinstance(reply, CotuneError) else None})
        self._inbox.put(client, reply)

    def _enter(
        self, client: str, direction: Literal["up", "down"], payload: Mapping[tuple[str, str], int], size: int
    ) -> None:
        purpose: Literal["train", "evaluate"] = "train" if self.kind is Kind.TRAIN else "evaluate"
        line = ledger_line(
            (self.sent[client].round, client),
            direction=direction,
            purpose=purpose,
            payload=payload,
            total=size,
            spec=self.desk.setup.spec_of(client),
        )
        self.ledger.append(line)


@contextmanager
def model_at(setup: Setup, theta: Theta, base: Base) -> Iterator[tuple[Bound, dict[str, Tensor]]]:
    """The global model at `theta`, and its tensors where the model is."""
    tensors = {name: tensor.to(setup.backbone.device) for name, tensor in theta.items()}
    with bind(setup.backbone.model, tensors, setup.spec, base) as bound:
        yield bound, tensors


def general_loss(setup: Setup, text: General, theta: Theta, base: Base) -> float:
    """−log p per token of general text, in nats, by the global model at `theta`."""
    with model_at(setup, theta, base) as (bound, tensors):
        scored = score(bound, tensors, setup, text.examples, text.task)
    return float(scored["nll"].double().sum() / scored["tokens"].double().sum())
