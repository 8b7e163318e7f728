"""The laws of uplinks and downlinks."""

from __future__ import annotations

from dataclasses import replace

import torch

from cotune.core.contracts import Downlink, Layout, Layouts, Uplink
from cotune.core.journal import Increment
from cotune.core.part import Capability
from cotune.core.spec import Scope
from cotune.core.state import Theta
from cotune.core.view import View
from cotune.laws.toy import OBJECTIVE, SPEC, ListJournal, close, layout_of, numbers, origin_of, same, view
from cotune.optim import SplitZO


def uplink_is_exact(part: Uplink) -> None:
    """What is opened is what was packed, bit for bit unless it says that it is lossy, in the layout announced."""
    here, traces, traced = _trained()
    parts = part.pack(here, traces)
    announced = {**part.layout(SPEC, here.scope, len(traces)), **part.carries(traced)}
    same("layout", {name: layout_of(named) for name, named in parts.items()}, _plain(announced))
    if Capability.LOSSY not in part.gives:
        same("theta", part.open(parts, origin_of(here)).dense().sha256(), here.theta.select(here.scope.up).sha256())


def uplink_adds_what_it_opens(part: Uplink) -> None:
    """Adding a change to a sum adds weight times its dense form, in float64."""
    here, traces, _ = _trained()
    change = part.open(part.pack(here, traces), origin_of(here))
    total = {name: torch.zeros(SPEC[name].shape, dtype=torch.float64) for name in here.scope.up}
    change.add_to(total, 3.0)
    for name, tensor in change.dense().items():
        close(name, total[name], 3.0 * tensor.double(), 1e-12)


def _trained() -> tuple[View, list[object], Layout]:
    """A client after three steps that can be replayed, what they left, and the layout of that."""
    here, optimizer, traces = replace(view(), anchor=view().theta, directions=7), SplitZO(lr=1e-3), list[object]()
    for _ in range(3):
        here, _, trace, *_rest = optimizer.step(here, None, OBJECTIVE)
        traces.append(trace)
    return here, traces, optimizer.traced(len(traces))


def downlink_reaches_the_newest(part: Downlink) -> None:
    """From every version that a client may hold, it arrives at the newest theta; its layout is the one announced."""
    scope = Scope(SPEC.names, SPEC.shared, SPEC.shared)
    history, journal = [Theta(numbers(0))], ListJournal()
    changes = (("one.A",), ("one.B", "head"), ("head",))
    for round_, names in enumerate(changes, start=1):
        fresh = numbers(round_)
        history.append(history[-1].replace({name: fresh[name] for name in names}))
        journal.append(Increment(round_, names))
    for held, old in enumerate(history):
        parts = part.pack(history[-1], scope, journal, held)
        same(f"theta from version {held}", part.open(parts, old).sha256(), history[-1].sha256())
        announced = part.layout(SPEC, scope, changes[held:])
        same("layout", {name: layout_of(named) for name, named in parts.items()}, _plain(announced))


def _plain(layouts: Layouts) -> dict[str, Layout]:
    return {part: dict(layout) for part, layout in layouts.items()}


UPLINK_LAWS = (
    uplink_is_exact,
    uplink_adds_what_it_opens,
)
DOWNLINK_LAWS = (downlink_reaches_the_newest,)
