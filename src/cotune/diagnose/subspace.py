"""Where the low-rank pairs of a round lie to each other: bases, products and increments, over all layers and by layer.

With B_k, A_k as client k sent them, or as the round started where a factor did not go up; s_k the scale, p_k the share
in the mean, Δ_k = s_k B_k A_k and D_k = Δ_k − s B_0 A_0, the change since the theta that the round started from:

| name | value |
|---|---|
| basis_overlap | mean over layers and clients of ‖Q_gᵀ Q_k‖ / √r, Q from QR of the new global B and of B_k |
| basis_overlap_squared | the same of ‖U_gᵀ Q_k‖² / r, U_g the leading r left singular vectors of Σ p Δ |
| client_global_cosine | mean over clients of cos(Δ_k, Σ p Δ) |
| pairwise_cosine | mean over pairs of clients of cos(Δ_i, Δ_j) |
| cancellation | ‖Σ p Δ‖ / Σ p ‖Δ‖ |
| cancellation_increments | the same of D |
| aggregation_gap | ‖B̄ Ā − Σ p Δ‖ / ‖Σ p Δ‖, B̄ and Ā the means of factors: what averaging them gets wrong |
| truncation_tail | share of Σ_layers ‖Σ p Δ‖² beyond rank r: what truncation loses, or would where there is none |
| norm_a, norm_b | ‖A‖ and ‖B‖ of the committed theta |
| norm_products | Σ p ‖Δ‖, the clients' mean length |
| norm_effective | ‖s B A + increment of the backbone − s B_0 A_0‖: how far the round moved the weights themselves |
| clients_subspace | K |

All norms are over all layers together. Five have a floor, `NAME_floor`: for the overlaps that of spaces drawn at
random, √(r/d_out) and r/d_out; for the others that of Δ at right angles to each other, p_k ‖Δ_k‖ / √Σ p² ‖Δ‖² and
√Σ p² ‖Δ‖² / Σ p ‖Δ‖, both 1/√K where p ‖Δ‖ is the same for all. The floor of pairwise_cosine is 0.

The overlap is in the released code's form and, squared, in the paper's (Subspace-Reg, arXiv 2606.22724). High overlap
follows from orthonormal B and small steps alone: read it beside norm_b. Overlap leaves out a layer whose new B is 0, as
where factors start anew, and so is anything that is 0 / 0.

Kept are the factors of at most 64 clients and at most 256 MiB of them, of two clients at least: those of the smallest
hash of their names, whatever the order of replies; for rows that keep pairs these are the same tensors. What is told is
then about these clients alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cotune.core.change import Base
from cotune.core.record import LayerSubspace, SubspaceRecord
from cotune.core.seeds import derive
from cotune.core.spec import Entry, Spec
from cotune.core.state import Theta
from cotune.diagnose.cancellation import cancellation
from cotune.diagnose.cosine import between, mean_length, to_mean, to_mean_floor
from cotune.diagnose.overlap import basis, overlap_squared
from cotune.diagnose.products import Inner, inner_products
from cotune.linalg import Factors, leading, norm

MOST = 64  # clients whose factors are kept
ROOM = 2**28  # bytes of their factors, by the server's table


@dataclass(frozen=True)
class Found:
    """The table of this module, and what there is by layer."""

    numbers: dict[str, float] = field(default_factory=dict)
    record: SubspaceRecord | None = None


NOTHING = Found()


@dataclass(frozen=True)
class _Reply:
    factors: Mapping[str, Tensor]
    weight: float
    spec: Spec


@dataclass(frozen=True)
class _Layer:
    """Of one layer: both overlaps as (squared value, squared floor) by client, and ‖change of the weight‖ last."""

    overlap: tuple[Tensor, Tensor]
    squared: tuple[Tensor, Tensor]
    inner: Inner
    spectrum: Tensor
    moved: float


class Subspace:
    """The fold over one round's replies; the order in which they are added changes nothing, bit for bit."""

    def __init__(self, theta: Theta, spec: Spec, up: Sequence[str]) -> None:
        """The empty fold of the pairs of which a factor goes up and the server holds both."""
        self._start, self._spec = theta, spec
        self._pairs = {
            module: pair
            for module, pair in spec.pairs.items()
            if any(entry.name in up for entry in pair) and all(entry.name in theta for entry in pair)
        }
        self._up = [entry.name for pair in self._pairs.values() for entry in pair if entry.name in up]
        numbers = sum(spec[name].numel for name in self._up)
        self._most = max(2, min(MOST, ROOM // (4 * numbers))) if numbers else MOST
        self._kept: dict[str, _Reply] = {}

    def add(self, client: str, theta: Theta, weight: float, spec: Spec) -> None:
        """One more client, at θ_k with weight w_k, by its own table."""
        if not self._pairs:
            return
        self._kept[client] = _Reply({name: theta[name] for name in self._up if name in theta}, weight, spec)
        if len(self._kept) > self._most:
            del self._kept[max(self._kept, key=lambda name: derive(0, "subspace", name))]

    @torch.no_grad()
    def finish(self, theta: Theta, base: Base) -> Found:
        """The table of this module, given what was committed and added to the backbone; nothing without a reply."""
        if not self._kept:
            return NOTHING
        clients = sorted(self._kept)
        replies = [self._kept[client] for client in clients]
        weights = torch.tensor([reply.weight for reply in replies], dtype=torch.float64)
        shares = weights / weights.sum()
        layers = {m: self._layer(m, replies, shares, theta, base) for m in self._pairs}
        told = SubspaceRecord(
            clients=tuple(clients), layers=tuple(_told(m, layer, shares) for m, layer in layers.items())
        )
        numbers = _numbers(list(layers.values()), shares)
        for name, which in (("norm_b", 0), ("norm_a", 1)):
            factors = [theta[pair[which].name].double() for pair in self._pairs.values()]
            numbers[name] = math.sqrt(math.fsum(float(factor.square().sum()) for factor in factors))
        return Found(numbers, told)

    def _layer(self, module: str, replies: Sequence[_Reply], shares: Tensor, theta: Theta, base: Base) -> _Layer:
        b, a = self._pairs[module]
        b_start, a_start = b.scale * self._start[b.name].double(), self._start[a.name].double()
        tall = b_start.new_zeros(len(b_start), len(replies), len(a_start))  # a smaller rank is filled up with zeros
        wide = a_start.new_zeros(len(replies), *a.shape)
        for k, reply in enumerate(replies):
            own_b, own_a = self._pair(reply, b, a)
            tall[:, k, : len(own_a)], wide[k, : len(own_a)] = reply.spec[b.name].scale * own_b.double(), own_a
        # In float64 no finite reply can overflow, however long it is: measuring never ends a round.
        pairs = [(tall[:, k], wide[k]) for k in range(len(replies))]
        u, sigma, _ = leading(pairs, shares.tolist(), len(a_start), start=a_start.mT)
        spaces = basis(tall.transpose(0, 1))
        b_new, a_new = b.scale * theta[b.name].double(), theta[a.name].double()
        left, right = [b_new - b_start, b_start], [a_new, a_new - a_start]
        if module in base.factors:
            added, turned = base.factors[module]
            left.append(added.double())
            right.append(turned.double() if turned.numel() else torch.eye(a.shape[1], dtype=torch.float64))
        return _Layer(
            overlap=overlap_squared(basis(b_new), spaces),
            squared=overlap_squared((u * (sigma > 0), (sigma > 0).sum()), spaces),
            inner=inner_products(tall - b_start[:, None], (b_start, a_start), wide - a_start, shares),
            spectrum=sigma,
            moved=float(norm((torch.cat(left, dim=1), torch.cat(right)))),
        )

    def _pair(self, reply: _Reply, b: Entry, a: Entry) -> Factors:
        """(B_k, A_k) at the client's rank; one that did not go up is where the round started, B with its own scale."""
        rank, sent = reply.spec[a.name].shape[0], reply.factors
        own_b, own_a = sent.get(b.name), sent.get(a.name)
        if own_b is None:
            own_b = self._start[b.name][:, :rank] * (b.scale / reply.spec[b.name].scale)
        return own_b, self._start[a.name][:rank] if own_a is None else own_a


def _numbers(layers: Sequence[_Layer], shares: Tensor) -> dict[str, float]:
    """All but the norms of factors; what is 0 / 0 is left out."""
    inner = sum((layer.inner for layer in layers[1:]), layers[0].inner)
    energy = [float(mean_length(layer.inner.absolute, shares)) ** 2 for layer in layers]
    whole = math.fsum(energy)
    kept = math.fsum(float(layer.spectrum.square().sum()) for layer in layers)
    found: dict[str, float | None] = {}
    overlaps = {
        "basis_overlap": [torch.stack(layer.overlap).sqrt() for layer in layers],
        "basis_overlap_squared": [torch.stack(layer.squared) for layer in layers],
    }
    for name, cells in overlaps.items():
        found[name], found[f"{name}_floor"] = (_mean(part) for part in torch.stack(cells).unbind(1))
    found["client_global_cosine"] = _mean(to_mean(inner.absolute, shares))
    found["client_global_cosine_floor"] = _mean(to_mean_floor(inner.absolute, shares))
    found["pairwise_cosine"] = between(inner.absolute)
    for name, gram in (("cancellation", inner.absolute), ("cancellation_increments", inner.increments)):
        found[name], found[f"{name}_floor"] = cancellation(gram, shares) or (None, None)
    found["aggregation_gap"] = math.sqrt(inner.missed / whole) if whole else None
    found["truncation_tail"] = max(0.0, 1 - kept / whole) if whole else None
    found["norm_products"] = float(shares @ inner.absolute.diagonal().sqrt())
    found["norm_effective"] = math.hypot(*(layer.moved for layer in layers))
    found["clients_subspace"] = float(len(shares))
    return {name: value for name, value in found.items() if value is not None}


def _told(module: str, layer: _Layer, shares: Tensor) -> LayerSubspace:
    whole = float(mean_length(layer.inner.absolute, shares)) ** 2
    left = cancellation(layer.inner.absolute, shares)
    return LayerSubspace(
        layer=module,
        overlap=_digits(layer.overlap[0].sqrt()),
        cosine=_digits(to_mean(layer.inner.absolute, shares)),
        cancellation=_six(left[0]) if left else None,
        gap=_six(math.sqrt(layer.inner.missed / whole)) if whole else None,
        spectrum=tuple(_six(value) for value in layer.spectrum.tolist()),
        tail=_six(max(0.0, 1 - float(layer.spectrum.square().sum()) / whole)) if whole else None,
    )


def _mean(cells: Tensor) -> float | None:
    """The mean of what is not NaN."""
    known = cells[~cells.isnan()]
    return float(known.mean()) if len(known) else None


def _digits(values: Tensor) -> tuple[float | None, ...]:
    return tuple(None if math.isnan(value) else _six(value) for value in values.tolist())


def _six(value: float) -> float:
    """Six digits: by layer and client, more would be most of a record's bytes."""
    return float(f"{value:.6g}")
