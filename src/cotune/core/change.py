"""What a client's reply stands for, what the server makes of a round, and what it adds to the frozen backbone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from cotune.core.spec import Scope, Spec
from cotune.core.state import Theta, digest


class Change(Protocol):
    """A client's theta_k, however it was sent: as tensors, or as scalars that are replayed."""

    def dense(self) -> Theta:
        """theta_k of the names that went up, float32."""
        ...

    def add_to(self, total: dict[str, Tensor], weight: float) -> None:
        """`total += weight · theta_k` in float64, in place, name by name."""
        ...

    def scalars(self) -> Mapping[str, Tensor]:
        """The float32 coefficients behind it, by kind of direction and block; empty when theta itself was sent."""
        ...


@dataclass(frozen=True)
class Origin:
    """Where a client's training started from, as the server knows it.

    Attributes:
        anchor: the theta that came down, at the client's rank.
        seed: the one issued for the client's directions.
        rate: the schedule's factor of the round.
        spec: the client's table.
        scope: of the round.
    """

    anchor: Theta
    seed: int
    rate: float
    spec: Spec
    scope: Scope


@dataclass(frozen=True)
class Tensors:
    """A change that carries theta_k itself: a float32 difference would not reconstruct it."""

    theta: Theta

    def dense(self) -> Theta:
        """theta_k as it was sent."""
        return self.theta

    def add_to(self, total: dict[str, Tensor], weight: float) -> None:
        """`total += weight · theta_k`; exact in float64 while the weight has fewer than 29 bits."""
        for name, tensor in self.theta.items():
            total[name].add_(tensor.double(), alpha=weight)

    def scalars(self) -> Mapping[str, Tensor]:
        """Nothing: theta itself was sent."""
        return {}


@dataclass(frozen=True)
class Contribution:
    """An accepted reply on its way into the fold.

    Attributes:
        client: its id.
        weight: its share before normalisation: rows, or 1 under uniform weighting.
        change: what it stands for.
        spec: the table of this client's tensors; differs from the server's in ranks alone.
        aux: tensors that went up beside theta.
    """

    client: str
    weight: float
    change: Change
    spec: Spec
    aux: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Base:
    """Additive factors beside frozen weights: module -> (B (d_out, r), A (r, d_in)), never merged in place.

    Past half the full rank factors cost more than what they stand for, so they are consolidated to a dense float32
    matrix, kept as (dense, empty A).
    """

    factors: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.factors)

    def plus(self, increment: Base) -> Base:
        """This and a round's increment, module by module, in the order of the rounds."""
        merged = dict(self.factors)
        for module, pair in increment.factors.items():
            merged[module] = _join(merged[module], pair) if module in merged else _compact(*pair)
        return Base(merged)

    def tensors(self) -> dict[str, Tensor]:
        """The factors as named tensors, `module/B` and `module/A`."""
        named = {}
        for module, (b, a) in self.factors.items():
            named[f"{module}/B"], named[f"{module}/A"] = b, a
        return named

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Base:
        """The inverse of `tensors`."""
        modules = sorted({name.rpartition("/")[0] for name in tensors})
        return cls({module: (tensors[f"{module}/B"], tensors[f"{module}/A"]) for module in modules})

    def __iter__(self) -> Iterator[str]:
        return iter(self.factors)

    def delta(self, module: str) -> Tensor:
        """The dense (d_out, d_in) float32 change of one module."""
        b, a = self.factors[module]
        return b @ a if a.numel() else b


def _compact(b: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    rank, full = a.shape[0], min(b.shape[0], a.shape[1])
    return (b @ a, torch.empty(0, a.shape[1])) if rank * 2 > full else (b, a)


def _join(old: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    (b, a), (b_new, a_new) = old, new
    if not a.numel():
        return b + (b_new @ a_new if a_new.numel() else b_new), a
    if not a_new.numel():
        return b @ a + b_new, a_new
    return _compact(torch.cat([b, b_new], dim=1), torch.cat([a, a_new], dim=0))


def origin(theta: Theta, base: Base) -> str:
    """The digest of what training starts from: theta, and what is added to the backbone."""
    named = {f"theta/{name}": tensor for name, tensor in theta.items()}
    return digest(named | {f"base/{name}": tensor for name, tensor in base.tensors().items()})


@dataclass(frozen=True)
class Commit:
    """What an aggregator makes of a round.

    Attributes:
        theta: the next global theta.
        server: the aggregator's own numbers, kept in the checkpoint.
        base: this round's increment to the backbone, usually empty.
        aux: what is broadcast beside theta from now on.
    """

    theta: Theta
    server: Mapping[str, Tensor] = field(default_factory=dict)
    base: Base = field(default_factory=Base)
    aux: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Server:
    """What an aggregator knows besides the replies.

    Attributes:
        round: counts from 1.
        population: how many clients there are, in or out of the cohort.
        spec: the server's table.
        up: the theta names that go up in this round.
        state: what its last commit kept.
        aux: what its last commit broadcast.
    """

    round: int
    population: int
    spec: Spec
    up: tuple[str, ...]
    state: Mapping[str, Tensor] = field(default_factory=dict)
    aux: Mapping[str, Tensor] = field(default_factory=dict)
