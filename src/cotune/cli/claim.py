"""What a run claims about differential privacy, and what the claim leaves out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cotune.core.contracts import ClientPart
from cotune.core.errors import CotuneError
from cotune.federation import Sampling
from cotune.method import Method
from cotune.optim import PrivateZO
from cotune.privacy import epsilon, most
from cotune.setup import Plan, Setup

DELTA = 1e-5
LONG = 10_000  # rounds beyond which who is asked is not looked up: everybody is counted as always asked
HOOKS = ("begin", "observe", "end", "outbox")


@dataclass(frozen=True)
class Claim:
    """A run's differential privacy: ε at δ for one row of a client, towards who reads all that clients send.

    Attributes:
        epsilon: of the client that gives most away; None where nothing is claimed.
        delta: δ.
        releases: how many slopes a row of that client is in at most, all planned rounds together.
        multiplier: noise over what a row changes in each of them.
        clients: how many the claim covers, and of how many.
        why: why there is none, or none for some clients, or what it rests on.
    """

    epsilon: float | None
    delta: float
    releases: int
    multiplier: float
    clients: tuple[int, int]
    why: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """Whether every client is covered."""
        return self.epsilon is not None and self.clients[0] == self.clients[1]

    def lines(self, rounds: int) -> Iterator[str]:
        """The claim in words, with its unit, its neighbours and what is outside of it."""
        yield from self.why
        if self.epsilon is None:
            return
        covered, everyone = self.clients
        yield (
            f"epsilon = {self.epsilon:.4g} at delta = {self.delta:g} after {rounds:,} rounds, for one row that a "
            "client trains on (an example as the model reads it), replaced by another one"
        )
        if covered < everyone:
            yield f"for {covered} of {everyone} clients; the others are not covered"
        yield (
            f"such a row is in at most {self.releases:,} slopes, each with noise of {self.multiplier:g} times what the "
            "row changes; batches are passes in an order that the server knows, so no gain from sampling is counted"
        )
        yield (
            "covered: coefficients, and all that follows from them, towards whoever reads every message of this run "
            "alone; a round played again after a crash is a round more, and a search over rates is all of its runs"
        )
        yield (
            "not covered, though it goes up: how many rows a client has, the FLOPs of its training (lengths of rows), "
            "and scores and number of the rows that it holds back"
        )
        yield (
            "not covered: how long a client takes, a failure of it, and what rounding does: the last bits of the noise "
            "and of losses that are padded otherwise"
        )

    def plain(self, rounds: int) -> dict[str, object]:
        """The same as plain values."""
        found = {name: getattr(self, name) for name in ("epsilon", "delta", "releases", "multiplier")}
        return {**found, "unit": "one training row of a client, replaced", "lines": list(self.lines(rounds))}


def claim(plan: Plan, delta: float = DELTA) -> Claim | None:
    """What the planned rounds come to; None where no client has an optimizer with noise for it."""
    everyone = [info.id for info in plan.clients if info.rows]
    methods = {client: plan.method_of(client) for client in everyone}
    if not any(isinstance(method.optimizer, PrivateZO) for method in methods.values()):
        return None
    rounds, worst, why, covered = _asked(plan), (0.0, 0, 1.0), dict[str, None](), 0
    for client, method in methods.items():
        part, found = method.optimizer, list(_gaps(method))
        if not isinstance(part, PrivateZO) or found:
            why |= dict.fromkeys(found)
            continue
        covered += 1
        releases = rounds[client] * most(plan.train_rows(client), method.budget) * part.directions
        multiplier = part.sigma / 2  # a slope may go from −limit to limit
        worst = max(worst, (releases / multiplier**2, releases, multiplier))
    _, releases, multiplier = worst
    spent = None
    if covered:
        try:
            spent = epsilon(multiplier, releases, delta)
        except CotuneError as error:
            why[f"epsilon is not known here: {error.text}"] = None
    if spent == math.inf:
        spent, why["no claim: sigma is next to no noise"] = None, None
    if not plan.task.rowwise and not isinstance(plan, Setup):
        caveat = "every row is counted as one example: where fewer are left of a client's rows, epsilon is larger"
        why[caveat] = None
    return Claim(spent, delta, releases, multiplier, (covered, len(everyone)), tuple(why))


def _gaps(method: Method) -> Iterator[str]:
    """Why the noise of an optimizer is no claim."""
    part = method.optimizer
    if isinstance(part, PrivateZO) and not part.sigma:
        yield "no claim: sigma = 0 is no noise"
    elif isinstance(part, PrivateZO) and not part.hides:
        yield "no claim: reproducible noise is known to whoever knows the seed"
    for where, other in method.parts:
        learns = isinstance(other, ClientPart) and other is not part
        if learns and any(getattr(type(other), hook) is not getattr(ClientPart, hook) for hook in HOOKS):
            yield f"no claim: {where} reads the rows by itself, without noise"


def _asked(plan: Plan) -> Mapping[str, int]:
    """Client -> in how many of the planned rounds it is asked; who is drawn follows from the seed, and is no secret."""
    clients, rounds = plan.clients, plan.federation.rounds
    if plan.federation.sampling is Sampling.ALL or rounds > LONG:
        return {info.id: rounds for info in clients}
    drawn = (plan.federation.sample(clients, plan.seeds, number) for number in range(1, rounds + 1))
    return Counter(client for cohort in drawn for client in cohort)
