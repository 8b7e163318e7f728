"""Steps along a pool of candidate directions (FedKSeed: Qin et al., arXiv 2312.06353), up and down.

| way | what travels | bytes |
|---|---|---|
| up | of every direction of a step, which candidate it was, and how many ticks the client moved along it | 8 each |
| down | of every candidate, how many ticks all rounds have moved along it, and in how many rounds | 4 each |

Down comes the same whatever the history and whatever the client missed: theta is made of its start again, on the
lattice of `cotune.noise.lattice`, where sums are exact in any order. The server adds only what a round moved; a client
pays in every round for all candidates that ever moved, one addition a number of theta each.

Which candidates a client takes follows from the seed that the server issued; the server does not recompute it. A client
that lies finds no better direction than the best of the pool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from cotune.core.change import Origin
from cotune.core.contracts import Downlink, Layout, Layouts, Uplink
from cotune.core.errors import Code, CotuneError
from cotune.core.journal import Increment, Journal, Refold, Reply
from cotune.core.message import Parts
from cotune.core.part import Capability
from cotune.core.seeds import Purpose, Seeds
from cotune.core.spec import Scope, Spec
from cotune.core.state import Theta
from cotune.core.view import View
from cotune.noise import COMMITS, Direction, Pooled, Streams, Trace, counts, sent, to_ticks
from cotune.wire.scalars import check_scalars


class PoolUplink(Uplink):
    """Candidates and ticks, 8 bytes a direction: theta_k is replayed from them, bit for bit and in any order.

    Attributes:
        largest: a coefficient beyond it is refused.
        tick_bits: a tick is 2^−tick_bits; theta may have no number of 2^(24 − tick_bits) or more in size.
    """

    kind: ClassVar[str] = "pool"
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.POOL})
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.REPLAY, Capability.CANDIDATES})
    largest: Annotated[float, Field(gt=0)] = 1.0
    tick_bits: Annotated[int, Field(ge=0, le=100)] = 20

    @property
    def tick(self) -> float:
        """What coefficients are whole numbers of."""
        return 2.0**-self.tick_bits

    def begin(self, view: View) -> View:
        """The view with steps of whole ticks, along candidates of as many as the server has numbers for."""
        return replace(view, tick=self.tick, pool=view.aux[counts(view.spec.entries[0].block)].numel())

    def pack(self, view: View, traces: Sequence[object]) -> Parts:
        """`{scalars: ticks and candidates of all steps}`.

        Raises:
            CotuneError: E_SCALAR for a coefficient that the server would refuse.
        """
        streams = Streams(view.spec, Direction.SIGN, view.directions, view.tick, view.pool)
        rows, which = dict[str, list[Tensor]](), dict[str, list[list[int]]]()
        for step, trace in enumerate(traces):
            assert isinstance(trace, Trace)
            for key, tensor in trace.coefficients.items():
                rows.setdefault(key, []).append(tensor)
                which.setdefault(key, []).append([streams.candidate(step, i) for i in range(len(tensor))])
        found = {key: torch.stack(tensors) for key, tensors in rows.items()}
        check_scalars(found, self.largest, self.tick, (view.anchor, view.scope))
        ticks = {key: to_ticks(tensor, self.tick) for key, tensor in found.items()}
        candidates = {key: torch.tensor(numbers, dtype=torch.int32) for key, numbers in which.items()}
        return {"scalars": sent(candidates, ticks)} if rows else {}

    def open(self, parts: Parts, origin: Origin) -> Pooled:
        """The change along candidates.

        Raises:
            CotuneError: E_SCALAR for too many ticks, or where theta could leave the range in which they are exact.
        """
        named: dict[str, dict[str, Tensor]] = {"sign": {}, "candidate": {}}
        for name, tensor in parts.get("scalars", {}).items():
            what, _, key = name.partition("/")
            named[what][key] = tensor
        moves = {key: ticks.double() * self.tick for key, ticks in named["sign"].items()}
        check_scalars(moves, self.largest, self.tick, (origin.anchor, origin.scope))
        return Pooled(origin, self.tick, named["candidate"], named["sign"])

    def layout(self, spec: Spec, scope: Scope, steps: int) -> Layouts:
        """Nothing of theta.

        Raises:
            CotuneError: E_CONFLICT where something that travels does not train in every round: numbers along candidates
                could not say which rounds moved it.
        """
        del steps
        if (still := set(spec.shared) - set(scope.train)) or set(scope.up) != set(spec.shared):
            what, got = "a pool moves all that travels in every round", f"{len(still)} tensors that do not train"
            fix = "train all that travels, or choose uplink 'scalars'"
            raise CotuneError(Code.CONFLICT, what, where="uplink 'pool'", got=got, fix=fix)
        return {}

    def carries(self, traced: Layout) -> Layouts:
        """Two numbers for every direction.

        Raises:
            CotuneError: E_CONFLICT for directions that are not signs: candidates are.
        """
        numbers: dict[str, tuple[str, tuple[int, ...]]] = {}
        for name, (_, shape) in traced.items():
            kind, _, key = name.partition("/")
            if kind != Direction.SIGN:
                raise CotuneError(Code.CONFLICT, "candidates are signs", where="uplink 'pool'", got=f"'{kind}'")
            numbers |= {name: ("int32", shape), f"candidate/{key}": ("int32", shape)}
        return {"scalars": numbers}

    def directions(self, seeds: Seeds, round_: int, client: str) -> int:
        """Of the purpose `directions`, a round and a client: what candidates are picked by."""
        return seeds.of(Purpose.DIRECTIONS, round_, client) or 1


class PoolDownlink(Downlink):
    """No tensor: theta is made of its start and the numbers along candidates, which the aggregator broadcasts."""

    kind: ClassVar[str] = "pool"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.CANDIDATES})

    def pack(self, theta: Theta, scope: Scope, journal: Journal, held: int) -> Parts:
        """Nothing."""
        del theta, scope, journal, held
        return {}

    def open(self, parts: Parts, held: Theta, refold: Refold) -> Theta:
        """The start, moved as by one client that took every candidate once: by the fold of the server itself."""
        aux = parts.get("aux", {})
        if COMMITS not in aux or not bool(aux[COMMITS]):
            return held
        return refold(held, Increment(1, (), replies=(Reply(0, 1, 1.0, every(aux)),)))

    def layout(self, spec: Spec, scope: Scope, past: Sequence[Increment]) -> Layouts:
        """Nothing."""
        del spec, scope, past
        return {}


def every(aux: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The numbers along all candidates as a client would send them."""
    ticks = {
        name.partition("/")[2]: tensor.int()[None]
        for name, tensor in aux.items()
        if name.startswith("pool/") and name != COMMITS
    }
    return sent({key: torch.arange(t.numel(), dtype=torch.int32)[None] for key, t in ticks.items()}, ticks)
