"""The uplink of zeroth-order methods: the coefficient of every direction, from which the server makes theta_k again.

Directions follow from a seed that the server issues once the cohort is fixed, so nobody chooses them, and they need not
travel. Coefficients are final: learning rate, 1 / P and limits are in; the weight is not, since only the server knows
who was accepted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from cotune.core.change import Origin
from cotune.core.contracts import Layout, Layouts, Uplink
from cotune.core.errors import Code, CotuneError
from cotune.core.message import Parts
from cotune.core.part import Capability
from cotune.core.seeds import Purpose, Seeds
from cotune.core.spec import Scope, Spec
from cotune.core.state import Theta
from cotune.core.view import View
from cotune.noise import Direction, Path, Streams, Trace, add_many_

CHUNK = 2**19  # elements of theta_k that are there at once while it is added to a sum


@dataclass(frozen=True)
class Scalars:
    """A change that is replayed: theta as it went down, and along the steps of the client from there.

    Attributes:
        origin: theta, the seed, the client's table, and what trained.
        kind: of the directions.
        coefficients: key of a block -> (steps, directions) float32.
        path: how signs are computed; None takes the fastest.
    """

    origin: Origin
    kind: Direction
    coefficients: Mapping[str, Tensor]
    path: Path | None = None

    def dense(self) -> Theta:
        """theta_k of the names that went up, bit for bit the client's."""
        found = {name: self.origin.anchor[name].clone() for name in self.origin.scope.up}
        self._streams.add_({name: found[name] for name in self._moved}, self._steps)
        return Theta(found)

    def add_to(self, total: dict[str, Tensor], weight: float) -> None:
        """`total += weight · theta_k` in float64, a chunk of theta_k at a time."""
        lines, places, moved = self._streams.lines(self._steps), self._streams.places, set(self._moved)
        for name in self.origin.scope.up:
            anchor, sums = self.origin.anchor[name], total[name]
            whole = self.kind is not Direction.SIGN  # other directions are made a tensor at a time
            parts = [slice(None)] if whole else [slice(i, i + CHUNK) for i in range(0, anchor.numel(), CHUNK)]
            source, sums = (anchor, sums) if whole else (anchor.reshape(-1), sums.view(-1))
            for part in parts:
                piece = source[part].clone()
                if name in moved:
                    add_many_(piece, *lines[places[name].block], places[name].start + (part.start or 0), path=self.path)
                sums[part].add_(piece.double(), alpha=weight)

    def scalars(self) -> Mapping[str, Tensor]:
        """The coefficients as they came, by kind and block."""
        return {f"{self.kind}/{key}": tensor for key, tensor in self.coefficients.items()}

    @property
    def _moved(self) -> list[str]:
        """Names that trained and went up; what trained and stays is the client's own."""
        trained = set(self.origin.scope.train)
        return [name for name in self.origin.scope.up if name in trained]

    @property
    def _streams(self) -> Streams:
        return Streams(self.origin.spec, self.kind, self.origin.seed)

    @property
    def _steps(self) -> list[dict[str, Tensor]]:
        count = max((len(tensor) for tensor in self.coefficients.values()), default=0)
        return [{key: tensor[i] for key, tensor in self.coefficients.items()} for i in range(count)]


class ScalarsUplink(Uplink):
    """The coefficients of a client's directions, 4 bytes each: theta_k is replayed from them, bit for bit.

    Attributes:
        seeds: each client looks along directions of its own, or all clients of a round along the same.
        exact: refuse directions that another kind of machine would not replay to the same bits.
        largest: a coefficient beyond it is refused: a client moves no number of theta by more than this a direction.
    """

    kind: ClassVar[str] = "scalars"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.REPLAY})
    seeds: Literal["each", "shared"] = "each"
    exact: bool = True
    largest: Annotated[float, Field(gt=0)] = 1.0

    def pack(self, view: View, traces: Sequence[object]) -> Parts:
        """`{scalars: coefficients of all steps}`."""
        del view
        rows: dict[str, list[Tensor]] = {}
        for trace in traces:
            assert isinstance(trace, Trace)
            for key, tensor in trace.coefficients.items():
                rows.setdefault(f"{trace.kind}/{key}", []).append(tensor)
        parts = {name: torch.stack(tensors) for name, tensors in rows.items()}
        self._check(parts)
        return {"scalars": parts} if parts else {}

    def open(self, parts: Parts, origin: Origin) -> Scalars:
        """The change that is replayed.

        Raises:
            CotuneError: E_SCALAR for a coefficient that is not finite or too large.
        """
        named = parts.get("scalars", {})
        self._check(named)
        kinds = {name.partition("/")[0] for name in named} or {Direction.SIGN.value}
        if len(kinds) > 1:
            raise CotuneError(Code.KEYS, "scalars of several kinds of directions", got=", ".join(sorted(kinds)))
        return Scalars(origin, Direction(kinds.pop()), {name.partition("/")[2]: t for name, t in named.items()})

    def layout(self, spec: Spec, scope: Scope, steps: int) -> Layouts:
        """Nothing of theta."""
        del spec, scope, steps
        return {}

    def carries(self, traced: Layout) -> Layouts:
        """As many numbers as the optimizer has directions.

        Raises:
            CotuneError: E_CONFLICT for directions that cannot be replayed exactly, where that is asked for.
        """
        for name in traced if self.exact else ():
            Direction(name.partition("/")[0]).check_exact("uplink 'scalars'")
        return {"scalars": traced}

    def directions(self, seeds: Seeds, round_: int, client: str) -> int:
        """Of the purpose `directions`, of a round, and of a client unless all share it; never 0, which means none."""
        whose = (client,) if self.seeds == "each" else ()
        return seeds.of(Purpose.DIRECTIONS, round_, *whose) or 1

    def _check(self, named: Mapping[str, Tensor]) -> None:
        for name, tensor in named.items():
            wrong = tensor[~(tensor.abs() <= self.largest)]
            if len(wrong):
                raise CotuneError(
                    Code.SCALAR,
                    f"{len(wrong)} coefficients are not finite or too large",
                    where=f"scalars/{name}",
                    got=float(wrong[0]),
                    expected=f"at most {self.largest:g}",
                )
