"""Downlinks that send tensors: every name in scope, or those that changed since the client last held theta."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from cotune.core.contracts import Downlink, Layouts
from cotune.core.journal import Increment, Journal, Refold
from cotune.core.message import Parts
from cotune.core.spec import Scope, Spec
from cotune.core.state import Theta


class FullDownlink(Downlink):
    """theta of the names in scope, every round, whatever the client holds."""

    kind: ClassVar[str] = "full"

    def pack(self, theta: Theta, scope: Scope, journal: Journal, held: int) -> Parts:
        """`{theta: theta[scope.down]}`."""
        del journal, held
        return {"theta": theta.select(scope.down)}

    def open(self, parts: Parts, held: Theta, refold: Refold) -> Theta:
        """What came down, on top of the start for names that never travel."""
        del refold
        return held.replace(parts.get("theta", {}))

    def layout(self, spec: Spec, scope: Scope, past: Sequence[Increment]) -> Layouts:
        """Names and shapes of the spec, float32."""
        del past
        return {"theta": {name: ("float32", spec[name].shape) for name in scope.down}}


class ChangedDownlink(Downlink):
    """theta of the names that changed since the version that the client holds; nothing for one that is current."""

    kind: ClassVar[str] = "changed"
    holds: ClassVar[bool] = True

    def pack(self, theta: Theta, scope: Scope, journal: Journal, held: int) -> Parts:
        """`{theta: theta[names changed since held]}`."""
        changed = {name for increment in journal.since(held) for name in increment.names}
        return {"theta": theta.select(name for name in theta if name in changed)}

    def open(self, parts: Parts, held: Theta, refold: Refold) -> Theta:
        """What came down, on top of what is held."""
        del refold
        return held.replace(parts.get("theta", {}))

    def layout(self, spec: Spec, scope: Scope, past: Sequence[Increment]) -> Layouts:
        """Names and shapes of the spec, float32, for every name that changed."""
        del scope
        names = {name for increment in past for name in increment.names}
        return {"theta": {name: ("float32", spec[name].shape) for name in spec.shared if name in names}}
