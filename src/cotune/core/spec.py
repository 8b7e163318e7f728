"""What a trainable is made of: the one table from which limits, manifests, hashes and predicted bytes derive."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

from torch import Tensor

from cotune.core.state import Personal, Theta


class Role(StrEnum):
    """What a tensor is to the algebra: the low-rank factors of `B @ A`, a memory rule, a head, or a whole weight."""

    FACTOR_A = "factor_a"
    FACTOR_B = "factor_b"
    RULE = "rule"
    HEAD = "head"
    FULL = "full"


@dataclass(frozen=True)
class Entry:
    """One trained tensor.

    Attributes:
        name: the parameter's name in the attached model; what theta is keyed by.
        shape: of the server's tensor; a client of another rank differs along the rank axis alone.
        role: see `Role`.
        module: the module the tensor belongs to; both factors of a pair name the same one.
        block: which half of a split model owns it (0 in front).
        scale: the factor in front of the product, alpha / r; 1 elsewhere.
        shared: whether it travels.
        falls: the power of r by which the scale falls: 1 for alpha / r, ½ for alpha / √r.
    """

    name: str
    shape: tuple[int, ...]
    role: Role
    module: str
    block: int = 0
    scale: float = 1.0
    shared: bool = True
    falls: float = 1.0

    @property
    def numel(self) -> int:
        """How many numbers."""
        count = 1
        for side in self.shape:
            count *= side
        return count

    @property
    def rank_axis(self) -> int | None:
        """The axis along which ranks may differ: 0 of A (r, d_in), 1 of B (d_out, r), None elsewhere."""
        return {Role.FACTOR_A: 0, Role.FACTOR_B: 1}.get(self.role)


# `share` says which trained tensors travel: all of them, none, or those of some roles. Heads follow their own
# declaration under `all`, and stay personal when roles are named without them.
Share = str | tuple[Role, ...]


@dataclass(frozen=True)
class Spec:
    """The entries in their canonical order, which is the order of every fold and of every replay."""

    entries: tuple[Entry, ...]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __getitem__(self, name: str) -> Entry:
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    @cached_property
    def _by_name(self) -> dict[str, Entry]:
        return {entry.name: entry for entry in self.entries}

    @property
    def names(self) -> tuple[str, ...]:
        """Every trained name."""
        return tuple(entry.name for entry in self.entries)

    @property
    def shared(self) -> tuple[str, ...]:
        """The names that travel."""
        return tuple(entry.name for entry in self.entries if entry.shared)

    @property
    def personal(self) -> tuple[str, ...]:
        """The names that stay."""
        return tuple(entry.name for entry in self.entries if not entry.shared)

    @cached_property
    def digest(self) -> str:
        """16 hex digits that name this table on the wire."""
        rows = [[e.name, list(e.shape), e.role, e.module, e.block, e.scale, e.shared, e.falls] for e in self.entries]
        return hashlib.blake2b(json.dumps(rows).encode(), digest_size=8).hexdigest()

    @cached_property
    def pairs(self) -> dict[str, tuple[Entry, Entry]]:
        """Module -> the entries (B, A) of its low-rank pair."""
        of = {(entry.module, entry.role): entry for entry in self.entries}
        return {e.module: (e, of[e.module, Role.FACTOR_A]) for e in self.entries if e.role is Role.FACTOR_B}

    def sharing(self, share: Share) -> Spec:
        """The same table with `shared` set: 'all' keeps each entry's own declaration, 'none' shares nothing."""
        if share == "all":
            return self
        roles = () if share == "none" else share
        return Spec(tuple(replace(entry, shared=entry.shared and entry.role in roles) for entry in self.entries))

    def halved(self, blocks: Mapping[str, int]) -> Spec:
        """The same table with the block of every entry set."""
        return Spec(tuple(replace(entry, block=blocks[entry.name]) for entry in self.entries))

    def divide(self, tensors: Mapping[str, Tensor]) -> tuple[Theta, Personal]:
        """`tensors` as what travels and what stays."""
        return (
            Theta({name: tensors[name] for name in self.shared}),
            Personal({name: tensors[name] for name in self.personal}),
        )

    def ranked(self, rank: int) -> Spec:
        """The table of a client that holds factors of `rank`; alpha stays, so the scale is alpha / rank, or / √rank."""
        rows = []
        for entry in self.entries:
            axis = entry.rank_axis
            if axis is None:
                rows.append(entry)
                continue
            shape = tuple(rank if i == axis else side for i, side in enumerate(entry.shape))
            rows.append(replace(entry, shape=shape, scale=entry.scale * (entry.shape[axis] / rank) ** entry.falls))
        return Spec(tuple(rows))


@dataclass(frozen=True)
class Scope:
    """Names of one round: those that train, go up, and come down."""

    train: tuple[str, ...]
    up: tuple[str, ...]
    down: tuple[str, ...]
