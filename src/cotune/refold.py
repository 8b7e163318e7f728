"""A committed round made again from its replies: the server's own fold, by whoever holds the theta before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from cotune.core.change import Change, Contribution, Origin, Server
from cotune.core.journal import Increment
from cotune.core.message import Parts
from cotune.core.spec import Scope, Spec
from cotune.core.state import Theta
from cotune.method import Method
from cotune.setup import Plan

PORTION = 2**22  # numbers of theta that are summed at once: 32 MiB in float64


@dataclass(frozen=True)
class Seat:
    """What a reply of a round is opened with.

    Attributes:
        method: as its client's group carries it out.
        spec: the table of its tensors.
        scope: of the round.
        rate: the schedule's factor of the round.
    """

    method: Method
    spec: Spec
    scope: Scope
    rate: float

    @classmethod
    def of(cls, plan: Plan, group: int, round_: int) -> Seat:
        """That of a client of some group; raises E_CONFIG for a group that there is not."""
        federation = plan.federation
        method, spec = federation.method_in(group, plan.method), federation.spec_in(group, plan.spec)
        rate = method.budget.rate(min(round_, federation.rounds), federation.rounds)
        return cls(method, spec, method.scope(spec, round_), rate)

    def change(self, parts: Parts, anchor: Theta, seed: int) -> Change:
        """What a reply stands for whose client started from `anchor` and was issued `seed`."""
        return self.method.uplink.open(parts, Origin(anchor, seed, self.rate, self.spec, self.scope))


def refold(plan: Plan, theta: Theta, increment: Increment) -> Theta:
    """The theta that a round's replies make of the one before it, bit for bit what was committed.

    Of an aggregator that is elementwise, so names are folded a few at a time: one pass over each tensor, in which every
    client of the round is added in turn, and float64 sums of no more than `PORTION` numbers or one tensor.

    Raises:
        CotuneError: E_CONFIG for a group that there is not; what opening a reply raises.
    """
    aggregator, round_ = plan.method.aggregator, increment.round
    seats = {group: Seat.of(plan, group, round_) for group in {reply.group for reply in increment.replies}}
    moved = dict[str, Tensor]()
    for names in _portions(theta, plan.method.scope(plan.spec, round_).up):
        anchor = theta.select(names)
        fold = aggregator.init(anchor, Server(round_, len(plan.corpus.clients), plan.spec, names))
        for reply in increment.replies:
            seat = seats[reply.group]
            seat = replace(seat, scope=replace(seat.scope, up=names))
            change = seat.change({"scalars": reply.scalars}, anchor, reply.seed)
            fold = aggregator.add(fold, Contribution("", reply.weight, change, seat.spec))
        moved |= aggregator.finish(fold).theta
    return theta.replace(moved)


def _portions(theta: Theta, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Names in their order, so many at a time that they have at most `PORTION` numbers together; at least one."""
    portion, count = list[str](), 0
    for name in names:
        if portion and count + theta[name].numel() > PORTION:
            yield tuple(portion)
            portion, count = [], 0
        portion.append(name)
        count += theta[name].numel()
    if portion:
        yield tuple(portion)
