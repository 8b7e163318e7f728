"""How far the updates of a round pull apart, by role; a fold whose memory does not grow with the number of clients.

With Δ_k = θ_k − θ in float64, over a role's names one after the other, w_k the client's weight, and u_k = Δ_k / ‖Δ_k‖:

| name | value | says |
|---|---|---|
| agreement_ROLE | ‖Σ w_k Δ_k‖ / Σ w_k ‖Δ_k‖ | 1 when all agree; 1/√K when orthogonal and of equal w_k ‖Δ_k‖ |
| cosine_ROLE | (‖Σ u_k‖² − K) / (K (K − 1)) | the mean cosine over pairs of the K clients that moved |
| update_ROLE | ‖Σ w_k Δ_k‖ / Σ w_k | how long the mean update is |
| clients_ROLE | K | how many clients moved |

ROLE is `lora` (both factors together), `rule`, `head` or `full`. The first two take two clients that moved. The sums of
`full`, which are as long as the model, are float32: half the memory and time, and six digits are enough to read them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cotune.core.spec import Role, Spec
from cotune.core.state import Theta

GROUPS: Mapping[Role, str] = {
    Role.FACTOR_A: "lora",
    Role.FACTOR_B: "lora",
    Role.RULE: "rule",
    Role.HEAD: "head",
    Role.FULL: "full",
}
_SIZE = 2**17  # numbers at once: what is taken in float64 stays in the cache
_DTYPES = {"full": torch.float32}  # float64 elsewhere
_PIECE = 2**15  # numbers of a sum of squares
_KEPT = 2**24  # numbers of a Δ that is kept until it is added; a longer one is taken twice instead


@dataclass
class _Sums:
    """Of one role: Σ w Δ and Σ u (flat, grown in place), Σ w ‖Δ‖, Σ w, and K.

    `batches` are its names, small tensors together, `start` is where each batch was before the round, flat, and in
    `scratch` is the Δ at hand.
    """

    batches: list[list[str]]
    start: list[Tensor]
    update: Tensor
    unit: Tensor
    scratch: Tensor
    length: float = 0.0
    weight: float = 0.0
    moved: int = 0


class Conflict:
    """The fold over one round's replies, in any order up to rounding; the server's order makes it the same bits."""

    def __init__(self, theta: Theta, spec: Spec, up: Sequence[str]) -> None:
        """The empty fold of the names that go up in a round that started from `theta`, by the server's table."""
        self._theta = theta
        names: dict[str, list[str]] = {}
        for name in up:
            names.setdefault(GROUPS[spec[name].role], []).append(name)
        self._roles: dict[str, _Sums] = {}
        for role, group in names.items():
            batches = _batches(theta, group)
            count = sum(theta[name].numel() for name in group)
            zeros = torch.zeros(2, count, dtype=_DTYPES.get(role, torch.float64))
            scratch = zeros.new_empty(count if count <= _KEPT else max(_SIZE, _KEPT))
            start = [_flat(theta, batch) for batch in batches]
            self._roles[role] = _Sums(batches, start, zeros[0], zeros[1], scratch)

    def add(self, theta: Theta, weight: float) -> None:
        """One more client, at θ_k with weight w_k.

        A role in which the client holds other names or shapes than the server, as factors of another rank are, is left
        out for this client: such updates have no common coordinates.
        """
        for sums in self._roles.values():
            names = [name for batch in sums.batches for name in batch]
            if all(name in theta and theta[name].shape == self._theta[name].shape for name in names):
                self._add(sums, [_flat(theta, batch) for batch in sums.batches], weight)

    def finish(self) -> dict[str, float]:
        """The table of this module; a role without any client is left out."""
        found: dict[str, float] = {}
        for role, sums in self._roles.items():
            if not sums.weight:
                continue
            together = math.sqrt(_square(sums.update))
            if sums.moved > 1:
                found[f"agreement_{role}"] = together / sums.length
                square, count = _square(sums.unit), sums.moved
                found[f"cosine_{role}"] = (square - count) / (count * (count - 1))
            found[f"update_{role}"] = together / sums.weight
            found[f"clients_{role}"] = float(sums.moved)
        return found

    def _add(self, sums: _Sums, arrived: Sequence[Tensor], weight: float) -> None:
        sums.weight += weight
        length = math.sqrt(sum(_square(delta) for delta in _deltas(sums, arrived)))
        if not length:
            return
        end, count = 0, len(sums.unit)
        kept = sums.scratch[:count]
        again = (kept[place : place + _SIZE] for place in range(0, count, _SIZE))
        for delta in again if count == len(kept) else _deltas(sums, arrived):
            start, end = end, end + len(delta)
            sums.update[start:end].add_(delta, alpha=weight)
            sums.unit[start:end].add_(delta, alpha=1 / length)
        sums.length += weight * length
        sums.moved += 1


def _deltas(sums: _Sums, arrived: Sequence[Tensor]) -> Iterator[Tensor]:
    """Δ_k, piece by piece: one after the other in the scratch where all of it fits, else each over the last."""
    end, fits = 0, len(sums.unit) <= len(sums.scratch)
    for after, before in zip(arrived, sums.start, strict=True):
        for place in range(0, len(before), _SIZE):
            new, old = after[place : place + _SIZE], before[place : place + _SIZE]
            start, end = (end, end + len(old)) if fits else (0, len(old))
            yield sums.scratch[start:end].copy_(new).sub_(old)


def _square(flat: Tensor) -> float:
    """‖flat‖² from short pieces, so that float32 loses nothing over the length."""
    pieces = (flat[start : start + _PIECE] for start in range(0, len(flat), _PIECE))
    return math.fsum(float(piece @ piece) for piece in pieces)


def _batches(theta: Theta, names: Sequence[str]) -> list[list[str]]:
    """The names in their order, as many together as hold at least `_SIZE` numbers."""
    batches: list[list[str]] = [[]]
    count = 0
    for name in names:
        if count >= _SIZE:
            batches.append([])
            count = 0
        batches[-1].append(name)
        count += theta[name].numel()
    return batches


def _flat(theta: Theta, names: Sequence[str]) -> Tensor:
    """The tensors one after the other; a single one is not copied."""
    flat = [theta[name].reshape(-1) for name in names]
    return flat[0] if len(flat) == 1 else torch.cat(flat)
