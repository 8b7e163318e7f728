"""The uplink of zeroth-order methods: the coefficient of every direction, from which the server makes theta_k again.

Directions follow from a seed that the server issues once the cohort is fixed, so nobody chooses them, and they need not
travel. Coefficients are final: learning rate, 1 / P and limits are in; the weight is not, since only the server knows
who was accepted.

| seeds | whose directions | what travels beside the coefficients |
|---|---|---|
| each | a client's own in every round | nothing |
| shared | all clients' of a round: the server needs no more than the sum of their coefficients | nothing |
| client | a client's own: it makes its seed of the number that the server issued, and sends it | 8 bytes |

`client` is FedSPZO's upload. The server verifies, by recomputation, that the seed follows from the number it issued, as
that one does from (seed of the run, round, client): so no client can search for directions that suit it. It does not
verify, here as with any other kind, that coefficients are slopes of a loss along them.

With `tick_bits` = s, coefficients are whole numbers of ticks of 2⁻ˢ, and theta starts from multiples of a tick: see
`cotune.noise.lattice`. A number of theta moves by half a tick at most for that; a coefficient below half a tick is 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from cotune.core.change import Origin
from cotune.core.contracts import Layout, Layouts, Uplink
from cotune.core.errors import Code, CotuneError
from cotune.core.message import Parts
from cotune.core.part import Capability
from cotune.core.seeds import Purpose, Seeds, derive
from cotune.core.spec import Scope, Spec
from cotune.core.state import Theta
from cotune.core.view import View
from cotune.noise import EXACT, Direction, Path, Streams, Trace, add_many_, check_room, from_ticks, to_ticks

SEED = "seed"  # beside the coefficients, what a client made its directions of
CHUNK = 2**20  # elements of theta_k that are there at once while it is added to a sum


@dataclass(frozen=True)
class Scalars:
    """A change that is replayed: theta as it went down, and along the steps of the client from there.

    Attributes:
        origin: theta, the seed, the client's table, and what trained.
        kind: of the directions.
        coefficients: key of a block -> (steps, directions) float32.
        path: how signs are computed; None takes the fastest.
        tick: coefficients came as whole numbers of it; 0 where they came as they are.
    """

    origin: Origin
    kind: Direction
    coefficients: Mapping[str, Tensor]
    path: Path | None = None
    tick: float = 0.0

    def dense(self) -> Theta:
        """theta_k of the names that went up, bit for bit the client's."""
        moved = {name: self._streams.start(self.origin.anchor[name]) for name in self._moved}
        self._streams.add_(moved, self._steps)
        return Theta({name: moved.get(name, self.origin.anchor[name]) for name in self.origin.scope.up})

    def add_to(self, total: dict[str, Tensor], weight: float) -> None:
        """`total += weight · theta_k` in float64, a chunk of theta_k at a time."""
        lines, places, moved = self._streams.lines(self._steps), self._streams.places, set(self._moved)
        for name in self.origin.scope.up:
            anchor, sums = self.origin.anchor[name], total[name]
            whole = self.kind is not Direction.SIGN  # other directions are made a tensor at a time
            parts = [slice(None)] if whole else [slice(i, i + CHUNK) for i in range(0, anchor.numel(), CHUNK)]
            source, sums = (anchor, sums) if whole else (anchor.reshape(-1), sums.view(-1))
            copy, wide = torch.empty_like(source[parts[0]]), torch.empty_like(sums[parts[0]])
            for part in parts:
                piece = source[part]
                if name in moved:
                    piece = self._streams.start(piece, copy[: len(piece)])
                    add_many_(piece, *lines[places[name].block], places[name].start + (part.start or 0), path=self.path)
                sums[part].add_(wide[: len(piece)].copy_(piece), alpha=weight)

    def scalars(self) -> Mapping[str, Tensor]:
        """The coefficients, by kind and block."""
        return {f"{self.kind}/{key}": tensor for key, tensor in self.coefficients.items()}

    @property
    def _moved(self) -> list[str]:
        """Names that trained and went up, if there was a step; what trained and stays is the client's own."""
        return moving(self.origin.scope) if self._steps else []

    @property
    def _streams(self) -> Streams:
        return Streams(self.origin.spec, self.kind, self.origin.seed, self.tick)

    @property
    def _steps(self) -> list[dict[str, Tensor]]:
        count = max((len(tensor) for tensor in self.coefficients.values()), default=0)
        return [{key: tensor[i] for key, tensor in self.coefficients.items()} for i in range(count)]


def moving(scope: Scope) -> list[str]:
    """Names that train and go up."""
    trained = set(scope.train)
    return [name for name in scope.up if name in trained]


class ScalarsUplink(Uplink):
    """The coefficients of a client's directions, 4 bytes each: theta_k is replayed from them, bit for bit.

    Attributes:
        seeds: each client looks along directions of its own, or all clients of a round along the same; or a client
            makes its own seed and sends it.
        exact: refuse directions that another kind of machine would not replay to the same bits.
        largest: a coefficient beyond it is refused: a client moves no number of theta by more than this a direction.
        tick_bits: coefficients travel as int32 numbers of ticks of 2^−tick_bits; None for float32. 22 leaves room for
            numbers of theta below 4 in size, and every bit less for twice as large ones.
    """

    kind: ClassVar[str] = "scalars"
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.SCALARS})
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.REPLAY})
    seeds: Literal["each", "shared", "client"] = "each"
    exact: bool = True
    largest: Annotated[float, Field(gt=0)] = 1.0
    tick_bits: Annotated[int, Field(ge=0, le=100)] | None = None

    @property
    def tick(self) -> float:
        """What coefficients are multiples of; 0 for any float32."""
        return 0.0 if self.tick_bits is None else 2.0**-self.tick_bits

    def begin(self, view: View) -> View:
        """The view with the seed that its directions follow from, and with what its steps are multiples of."""
        return replace(view, directions=self._walked(view.directions), tick=self.tick)

    def pack(self, view: View, traces: Sequence[object]) -> Parts:
        """`{scalars: coefficients of all steps}`, and the seed where the client made it.

        Raises:
            CotuneError: E_SCALAR for a coefficient that the server would refuse.
        """
        rows: dict[str, list[Tensor]] = {}
        for trace in traces:
            assert isinstance(trace, Trace)
            for key, tensor in trace.coefficients.items():
                rows.setdefault(f"{trace.kind}/{key}", []).append(tensor)
        found = {name: torch.stack(tensors) for name, tensors in rows.items()}
        check_scalars(found, self.largest, self.tick, (view.anchor, view.scope))
        parts = {name: to_ticks(c, self.tick) if self.tick else c for name, c in found.items()}
        own = {SEED: torch.tensor([view.directions])} if self.seeds == "client" else {}
        return {"scalars": parts | own} if parts else {}

    def open(self, parts: Parts, origin: Origin) -> Scalars:
        """The change that is replayed.

        Raises:
            CotuneError: E_SCALAR for a coefficient that is not finite or too large, or where ticks could round; E_SEED
                for a seed that does not follow from the one issued.
        """
        named = dict(parts.get("scalars", {}))
        claimed, seed = named.pop(SEED, None), self._walked(origin.seed)
        if claimed is not None and int(claimed) != seed:
            raise CotuneError(Code.SEED, "a client's seed does not follow from the one issued", where=f"scalars/{SEED}")
        if self.tick:
            named = {name: from_ticks(tensor, self.tick) for name, tensor in named.items()}
        check_scalars(named, self.largest, self.tick, (origin.anchor, origin.scope))
        kinds = {name.partition("/")[0] for name in named} or {Direction.SIGN.value}
        if len(kinds) > 1:
            raise CotuneError(Code.KEYS, "scalars of several kinds of directions", got=", ".join(sorted(kinds)))
        coefficients = {name.partition("/")[2]: tensor for name, tensor in named.items()}
        return Scalars(replace(origin, seed=seed), Direction(kinds.pop()), coefficients, tick=self.tick)

    def layout(self, spec: Spec, scope: Scope, steps: int) -> Layouts:
        """Nothing of theta."""
        del spec, scope, steps
        return {}

    def carries(self, traced: Layout) -> Layouts:
        """As many numbers as the optimizer has directions, and the seed where the client makes it.

        Raises:
            CotuneError: E_CONFLICT for directions that cannot be replayed exactly, where that is asked for.
        """
        for name in traced if self.exact or self.tick else ():
            Direction(name.partition("/")[0]).check_exact("uplink 'scalars'")
        numbers = {name: ("int32" if self.tick else dtype, shape) for name, (dtype, shape) in traced.items()}
        own = {SEED: ("int64", (1,))} if self.seeds == "client" else {}
        return {"scalars": numbers | own}

    def directions(self, seeds: Seeds, round_: int, client: str) -> int:
        """Of the purpose `directions`, of a round, and of a client unless all share it; never 0, which means none."""
        whose = () if self.seeds == "shared" else (client,)
        return seeds.of(Purpose.DIRECTIONS, round_, *whose) or 1

    def _walked(self, issued: int) -> int:
        """The seed that directions follow from, given the one that the server issued; 0 where none was."""
        return (derive(issued, "client") or 1) if issued and self.seeds == "client" else issued


def check_scalars(named: Mapping[str, Tensor], largest: float, tick: float, start: tuple[Theta, Scope]) -> None:
    """Raise E_SCALAR for a coefficient that is not finite or too large, or where ticks, if there are any, could round.

    Args:
        named: coefficients.
        largest: what one may be.
        tick: what they are whole numbers of; 0 for any float32.
        start: theta as the round starts from it, and what moves.
    """
    largest = min(largest, EXACT * tick) if tick else largest
    for name, tensor in named.items():
        wrong = tensor[~(tensor.abs() <= largest)]
        if len(wrong):
            raise CotuneError(
                Code.SCALAR,
                f"{len(wrong)} coefficients are not finite or too large",
                where=f"scalars/{name}",
                got=float(wrong[0]),
                expected=f"at most {largest:g}",
            )
    if tick:
        anchor, scope = start
        check_room((anchor[name] for name in moving(scope)), named.values(), tick)
