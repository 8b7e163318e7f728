"""The uplink of first-order methods: theta_k itself, float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from cotune.core.change import Origin, Tensors
from cotune.core.contracts import Layouts, Uplink
from cotune.core.message import Parts
from cotune.core.part import Capability
from cotune.core.spec import Scope, Spec
from cotune.core.state import Theta
from cotune.core.view import View


class TensorsUplink(Uplink):
    """theta_k of the names that go up, in float32: exact, and 4 bytes a number."""

    kind: ClassVar[str] = "tensors"
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.SUMMABLE})

    def pack(self, view: View, traces: Sequence[object]) -> Parts:
        """`{theta: theta_k}` in the spec's order."""
        del traces
        return {"theta": view.theta.select(view.scope.up)}

    def open(self, parts: Parts, origin: Origin) -> Tensors:
        """The theta that was packed, wherever it started from."""
        del origin
        return Tensors(Theta(parts.get("theta", {})))

    def layout(self, spec: Spec, scope: Scope, steps: int) -> Layouts:
        """Names and shapes of the spec, float32."""
        del steps
        return {"theta": {name: ("float32", spec[name].shape) for name in scope.up}}
