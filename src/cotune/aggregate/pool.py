"""FedKSeed's server (Qin et al., arXiv 2312.06353): one number for each of a pool of candidate directions.

| symbol | what |
|---|---|
| z_j | candidate j of the pool |
| c_kj | ticks that client k moved along it in this round |
| C_j | ticks that all rounds moved along it |

Δ_j = round(Σ_k w_k c_kj / Σ_k w_k);  C_j ← C_j + Δ_j;  θ ← θ + tick · Σ_j Δ_j z_j = θ₀ + tick · Σ_j C_j z_j
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from cotune.core.change import Commit, Contribution, Server
from cotune.core.contracts import Aggregator, Layout
from cotune.core.errors import Code, CotuneError
from cotune.core.part import Capability
from cotune.core.spec import Spec
from cotune.core.state import Theta
from cotune.noise import COMMITS, Pooled, check_room, counts


@dataclass(frozen=True)
class Counted:
    """Σ w_k c_kj by block (float64: whole numbers, exact), Σ w_k, the last change, and where the round started."""

    theta: Theta
    server: Server
    sums: dict[int, Tensor]
    weight: float = 0.0
    change: Pooled | None = None


class Pool(Aggregator):
    """θ = θ₀ + tick · Σ_j C_j z_j: numbers along candidates are averaged, kept, and sent; theta follows from them.

    At most half a tick is lost of every candidate's mean. The order of clients does not matter, to the bit, and a sum
    over clients is all it needs.

    Attributes:
        size: how many candidates there are.
    """

    kind: ClassVar[str] = "pool"
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.SUMMABLE, Capability.AUX, Capability.CANDIDATES})
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.POOL})
    size: Annotated[int, Field(ge=1, le=2**20)] = 4096

    def init(self, theta: Theta, server: Server) -> Counted:
        """Zeros."""
        return Counted(theta, server, {block: torch.zeros(self.size, dtype=torch.float64) for block in _blocks(server)})

    def add(self, fold: Counted, contribution: Contribution) -> Counted:
        """`Σ += w_k c_kj`, exact while a weight has fewer than 29 bits.

        Raises:
            CotuneError: E_SCALAR for a candidate outside the pool; E_CONFLICT for a reply that is no numbers along
                candidates of this theta.
        """
        change = contribution.change
        if not isinstance(change, Pooled) or contribution.spec.digest != fold.server.spec.digest:
            what = "a reply that is not along the pool's candidates"
            raise CotuneError(Code.CONFLICT, what, where="aggregator 'pool'")
        more = change.sums(self.size)
        sums = {block: total + contribution.weight * more[block] for block, total in fold.sums.items()}
        return replace(fold, sums=sums, weight=fold.weight + contribution.weight, change=change)

    def finish(self, fold: Counted) -> Commit:
        """Theta, and what all rounds came to along each candidate.

        Raises:
            CotuneError: E_SCALAR where theta made of its start again could leave the range in which ticks are exact.
        """
        assert fold.change is not None
        moved = {block: (total / fold.weight).round() for block, total in fold.sums.items()}
        theta = fold.change.moved(fold.theta, fold.server.up, moved).dense()
        old, tick = fold.server.aux, fold.change.tick
        both = {block: total + old.get(counts(block), torch.zeros(())) for block, total in moved.items()}
        # |θ₀| ≤ |θ| + tick · Σ |C|, and from there every candidate may add once more.
        check_room(theta.values(), [tick * total for total in (*both.values(), *both.values())], tick)
        commits = old.get(COMMITS, torch.zeros(())) + 1
        return Commit(
            theta=fold.theta.replace(theta),
            aux={**{counts(block): total.float() for block, total in both.items()}, COMMITS: commits},
        )

    def broadcast(self, spec: Spec) -> Layout:
        """A number for each candidate and block, and how many rounds they are of."""
        numbers = {counts(block): ("float32", (self.size,)) for block in sorted({entry.block for entry in spec})}
        return {**numbers, COMMITS: ("float32", ())}


def _blocks(server: Server) -> list[int]:
    return sorted({entry.block for entry in server.spec})
