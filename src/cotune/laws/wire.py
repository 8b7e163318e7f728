"""The laws of uplinks and downlinks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from cotune.aggregate import Mean, Pool
from cotune.core.change import Commit, Contribution, Origin, Server
from cotune.core.contracts import Downlink, Layout, Layouts, Uplink
from cotune.core.journal import Increment, Reply
from cotune.core.part import Capability
from cotune.core.seeds import derive, torch_generator
from cotune.core.spec import Scope
from cotune.core.state import Theta
from cotune.core.view import View
from cotune.laws.toy import OBJECTIVE, SPEC, ListJournal, close, layout_of, numbers, origin_of, same, view
from cotune.noise import ALL, counts
from cotune.optim import SplitZO
from cotune.wire.pool import PoolUplink, every
from cotune.wire.scalars import ScalarsUplink


def uplink_is_exact(part: Uplink) -> None:
    """What is opened is what was packed, bit for bit unless it says that it is lossy, in the layout announced."""
    here, origin, traces, traced = _trained(part)
    parts = part.pack(here, traces)
    announced = {**part.layout(SPEC, here.scope, len(traces)), **part.carries(traced)}
    same("layout", {name: layout_of(named) for name, named in parts.items()}, _plain(announced))
    if Capability.LOSSY not in part.gives:
        same("theta", part.open(parts, origin).dense().sha256(), here.theta.select(here.scope.up).sha256())


def uplink_adds_what_it_opens(part: Uplink) -> None:
    """Adding a change to a sum adds weight times its dense form, in float64."""
    here, origin, traces, _ = _trained(part)
    change = part.open(part.pack(here, traces), origin)
    total = {name: torch.zeros(SPEC[name].shape, dtype=torch.float64) for name in here.scope.up}
    change.add_to(total, 3.0)
    for name, tensor in change.dense().items():
        close(name, total[name], 3.0 * tensor.double(), 1e-12)


def uplink_is_replayed_from_what_a_journal_keeps(part: Uplink) -> None:
    """If scalars are all that it sends, they are all that a replay takes, of all names or of one, bit for bit."""
    if Capability.SCALARS not in part.gives:
        return
    here, origin, traces, _ = _trained(part)
    parts = part.pack(here, traces)
    change = part.open(parts, origin)
    assert change.scalars(), "the change has no scalars"
    same("other parts", [name for name in parts if name != "scalars"], [])
    for name, tensor in change.dense().items():
        alone = replace(origin, anchor=origin.anchor.select([name]), scope=replace(origin.scope, up=(name,)))
        again = part.open({"scalars": parts["scalars"]}, alone).dense()
        same(f"{name} alone", again.sha256(), Theta({name: tensor}).sha256())


def _trained(part: Uplink) -> tuple[View, Origin, list[object], Layout]:
    """A client after three steps that can be replayed, where it started, what they left, and the layout of that."""
    optimizer, traces = SplitZO(lr=1e-3), list[object]()
    start = replace(view(), anchor=view().theta, aux={**view().aux, **_numbers(0)}, directions=7)
    here = part.begin(start)
    for _ in range(3):
        here, _, trace, *_rest = optimizer.step(here, None, OBJECTIVE)
        traces.append(trace)
    return here, origin_of(start), traces, optimizer.traced(len(traces))


def downlink_reaches_the_newest(part: Downlink) -> None:
    """From every version that a client may hold, it arrives at the newest theta; its layout is the one announced."""
    scope = Scope(SPEC.names, SPEC.shared, SPEC.shared)
    history, journal = _history(scope)
    if Capability.CANDIDATES in part.needs:
        _is_made_of_its_start(part, scope, history[0])
        return
    for held, old in enumerate(history):
        parts = part.pack(history[-1], scope, journal, held)
        same(f"theta from version {held}", part.open(parts, old, _refold).sha256(), history[-1].sha256())
        announced = part.layout(SPEC, scope, journal.since(held))
        same("layout", {name: layout_of(named) for name, named in parts.items()}, _plain(announced))


def _is_made_of_its_start(part: Downlink, scope: Scope, start: Theta) -> None:
    """From the start and the numbers that are broadcast, it arrives at theta after no round, one and two."""
    pool, theta, aux = Pool(size=8), start, dict[str, Tensor]()

    def folded(theta: Theta, aux: Mapping[str, Tensor], scalars: Mapping[str, Tensor]) -> Commit:
        change = PoolUplink().open({"scalars": scalars}, Origin(theta, 1, 1.0, SPEC, scope))
        fold = pool.init(theta, Server(1, 1, SPEC, SPEC.shared, aux=aux))
        return pool.finish(pool.add(fold, Contribution("", 1.0, change, SPEC)))

    for round_ in (0, 1, 2):
        parts = part.pack(theta, scope, ListJournal(), 0)
        same("layout", dict(parts), _plain(part.layout(SPEC, scope, ())))
        arrived = part.open(
            {**parts, "aux": aux}, start, lambda start, made: folded(start, {}, made.replies[0].scalars).theta
        )
        same(f"theta after {round_} rounds", arrived.sha256(), theta.sha256())
        commit = folded(theta, aux, every(_numbers(round_ + 1)))
        theta, aux = commit.theta, dict(commit.aux)


def _numbers(of: int) -> dict[str, Tensor]:
    """Ticks along eight candidates of either block."""
    return {counts(block): torch.arange(8.0) * (of + block) - 3 * of for block in (0, 1)}


def _history(scope: Scope) -> tuple[list[Theta], ListJournal]:
    """Every version of theta and the journal between them: rounds of tensors, of some names, then rounds of scalars."""
    history, journal = [Theta(numbers(0))], ListJournal()
    for round_, names in enumerate((("one.A",), ("one.B", "head"), ("head",)), start=1):
        fresh = numbers(round_)
        history.append(history[-1].replace({name: fresh[name] for name in names}))
        journal.append(Increment(round_, names))
    for round_ in (4, 5):
        replies = tuple(Reply(0, derive(round_, i), 1.0 + i, _coefficients(round_ + i)) for i in range(2))
        journal.append(Increment(round_, scope.up, replies=replies))
        history.append(_refold(history[-1], journal.increments[-1]))
    return history, journal


def _coefficients(seed: int) -> dict[str, Tensor]:
    return {f"sign/{ALL}": torch.randn(3, 2, generator=torch_generator(seed)) / 100}


def _refold(theta: Theta, increment: Increment) -> Theta:
    """The mean of what replies of scalars stand for."""
    fold = Mean().init(theta, Server(increment.round, 2, SPEC, SPEC.shared))
    for reply in increment.replies:
        origin = Origin(theta, reply.seed, 1.0, SPEC, Scope(SPEC.names, SPEC.shared, SPEC.shared))
        change = ScalarsUplink().open({"scalars": reply.scalars}, origin)
        fold = Mean().add(fold, Contribution("", reply.weight, change, SPEC))
    return Mean().finish(fold).theta


def _plain(layouts: Layouts) -> dict[str, Layout]:
    return {part: dict(layout) for part, layout in layouts.items()}


UPLINK_LAWS = (
    uplink_is_exact,
    uplink_adds_what_it_opens,
    uplink_is_replayed_from_what_a_journal_keeps,
)
DOWNLINK_LAWS = (downlink_reaches_the_newest,)
