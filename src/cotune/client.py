"""What one client has: its rows, its part of the method, and its state of two generations."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from cotune.backbone.bind import bind
from cotune.core.change import Base
from cotune.core.contracts import Batch, Encoded
from cotune.core.errors import Code, CotuneError
from cotune.core.journal import Increment
from cotune.core.message import NEVER, Envelope, Header, Kind, Limits
from cotune.core.spec import Spec
from cotune.core.state import Personal, Private, Theta, digest, from_bytes, raw, to_bytes
from cotune.core.view import View
from cotune.method import Method
from cotune.objective import mean_scores, score
from cotune.refold import refold
from cotune.setup import Setup
from cotune.store import ClientStore, safe_name


def client_digest(client: str) -> str:
    """How a client is named on the wire: 16 hex digits of its id."""
    return hashlib.blake2b(client.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


SEAL = "sha256"  # the name under which a client's state carries its own digest


class NotHeldError(Exception):
    """The message builds on a round that this client does not hold; `held` is the one it does."""

    def __init__(self, held: int) -> None:
        super().__init__(f"the last round held is {held}")
        self.held = held


@dataclass(frozen=True)
class Kept:
    """A client's state as its last accepted round left it."""

    theta: Theta
    personal: Personal
    private: Mapping[str, Private] = field(default_factory=dict)
    base: Base = field(default_factory=Base)


class Client:
    """One client of a run; `round.client_step` is what it does."""

    def __init__(self, name: str, setup: Setup, folder: Path) -> None:
        self.name = name
        self.setup = setup
        self.method: Method = setup.method_of(name)
        self.spec: Spec = setup.spec_of(name)
        self.store = ClientStore(folder / safe_name(name))

    @property
    def train(self) -> Encoded:
        """The rows that it trains on."""
        return self.setup.encoded(self.name)[0]

    @property
    def held(self) -> Encoded:
        """The rows that it holds back to score on."""
        return self.setup.encoded(self.name)[1]

    @cached_property
    def fresh(self) -> Kept:
        """The state of a client that was never accepted."""
        trainable = self.method.trainable
        start = trainable.fit(self.setup.start, self.spec)
        return Kept(start, Personal(trainable.fit(Theta(self.setup.personal), self.spec)))

    @property
    def limits(self) -> Limits:
        """What a message to this client may claim: theta, several times that in aux, and what every round adds."""
        setup, numbers = self.setup, self.fresh.theta.numel
        return Limits(bytes=16 * numbers + setup.federation.rounds * (setup.logged_bytes + setup.added_bytes) + 2**24)

    def refold(self, theta: Theta, increment: Increment) -> Theta:
        """The theta that a round's replies make of the one before it, as this client holds it."""
        return refold(self.setup, theta, increment)

    def opening(self, theta: Theta, round_: int) -> Theta:
        """`theta` with the factors of a round, where both sides draw them anew."""
        fresh = self.setup.opening(self.setup.start, round_)
        if fresh is self.setup.start:
            return theta
        fitted = self.method.trainable.fit(fresh, self.spec)
        factors = [entry.name for pair in self.spec.pairs.values() for entry in pair]
        return theta.replace({name: fitted[name] for name in factors if name in fitted})

    def batch(self, numbers: tuple[int, ...]) -> Batch:
        """The training rows of these numbers as one padded batch."""
        return self.setup.task.collate([self.train.examples[i] for i in numbers], self.setup.backbone.tokenizer)

    def check(self, header: Header) -> None:
        """Raise E_RUN or E_KEYS for a message that is not for this client as it is set up."""
        rows = (
            (Code.RUN, "message of another run", header.run, self.setup.run),
            (Code.RUN, "message for another client", header.client, client_digest(self.name)),
            (Code.KEYS, "message for another spec", header.spec, self.spec.digest),
        )
        for code, what, got, expected in rows:
            if got != expected:
                raise CotuneError(code, what, got=got, expected=expected)

    def report(self, header: Header, theta: Theta, kept: Kept, base: Base) -> Envelope:
        """How the model that this client would use scores on its held-back rows; on test rows too if it is personal."""
        personalize = self.method.personalize
        if personalize is not None:
            theta = personalize.view(theta, kept.private.get(personalize.kind, Private()))
        device = self.setup.backbone.device
        tensors = {name: tensor.to(device) for name, tensor in {**theta, **kept.personal}.items()}
        with bind(self.setup.backbone.model, tensors, self.spec, base) as bound:
            held = score(bound, tensors, self.setup, self.held.examples)
            test = {} if self.setup.one_model else score(bound, tensors, self.setup, self.setup.test.examples)
        metrics = (float(len(self.held.examples)), *mean_scores(held))
        return Envelope(replace(header, kind=Kind.REPORT), {"scores": test} if test else {}, metrics)

    def added(self, base: Base, down: Envelope) -> Base:
        """What is added to the backbone: what the client holds and the rounds that came down, in their order."""
        rounds: dict[str, dict[str, Tensor]] = {}
        for name, tensor in down.part("base").items():
            number, _, inner = name.partition("/")
            rounds.setdefault(number, {})[inner] = tensor
        for number in sorted(rounds, key=int):
            base = base.plus(Base.from_tensors(rounds[number]))
        return base

    def recall(self, header: Header) -> Kept:
        """The state that the message builds on; before training, what came of no round is thrown away.

        Raises:
            NotHeldError: when the server believes that this client holds a round that it does not.
        """
        training = header.kind is Kind.TRAIN
        if not self.setup.keeps or header.accepted == NEVER:
            if training:
                self.store.forget()
            return self.fresh
        held = self.store.settle(header.accepted) if training else self.store.newest()
        data = self.store.read(header.accepted)
        if data is None:
            raise NotHeldError(NEVER if held is None else held)
        return self._unpack(from_bytes(data))

    def remember(self, view: View, base: Base) -> None:
        """Keep what this round made until its fate is known; theta only where the next message builds on it."""
        if not self.setup.keeps:
            return
        named: dict[str, Tensor] = {f"personal/{n}": t for n, t in view.personal.items()}
        for kind, private in view.private.items():
            named |= {f"private/{kind}/{n}": t for n, t in private.items()}
        if self.method.downlink.holds:
            named |= {f"theta/{n}": t for n, t in view.anchor.items()}
        named |= {f"base/{n}": t for n, t in base.tensors().items()}
        seal = torch.frombuffer(bytearray.fromhex(digest(named)), dtype=torch.uint8)
        self.store.put(view.round, to_bytes({**named, SEAL: seal}))

    def _unpack(self, named: Mapping[str, Tensor]) -> Kept:
        parts: dict[str, dict[str, Tensor]] = {"theta": {}, "personal": {}, "base": {}, "private": {}}
        state = {name: tensor for name, tensor in named.items() if name != SEAL}
        if SEAL not in named or raw(named[SEAL]).hex() != digest(state):
            raise CotuneError(
                Code.HASH,
                "a client's own state is damaged",
                where=f"client {self.name}",
                fix="remove its folder: it then starts afresh",
            )
        for name, tensor in state.items():
            part, _, inner = name.partition("/")
            parts[part][inner] = tensor
        private: dict[str, dict[str, Tensor]] = {}
        for name, tensor in parts["private"].items():
            kind, _, inner = name.partition("/")
            private.setdefault(kind, {})[inner] = tensor
        return Kept(
            theta=self.fresh.theta.replace(parts["theta"]),
            personal=self.fresh.personal.replace(parts["personal"]),
            private={kind: Private(tensors) for kind, tensors in private.items()},
            base=Base.from_tensors(parts["base"]),
        )
