"""Inner products of one layer's K products, of their increments, and of what a mean of factors misses; never d × d.

With x_k = B_k − B_0 and y_k = A_k − A_0 for the pair (B_0, A_0) that the round started from, all of it follows from the
Gram matrices of [x_1 … x_K, B_0] and [y_1; …; y_K; A_0] in O((d_out + d_in) ((K + 1) r)²), float64, and an increment or
a gap of 0 is exactly 0: nothing is the difference of two large numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Inner:
    """Of one layer, or summed over layers.

    Attributes:
        absolute: ⟨B_i A_i, B_j A_j⟩, (K, K).
        increments: ⟨B_i A_i − B_0 A_0, B_j A_j − B_0 A_0⟩, (K, K).
        missed: ‖Σ p_k B_k A_k − B̄ Ā‖² with B̄ = Σ p_k B_k and Ā = Σ p_k A_k.
    """

    absolute: Tensor
    increments: Tensor
    missed: float

    def __add__(self, other: Inner) -> Inner:
        return Inner(self.absolute + other.absolute, self.increments + other.increments, self.missed + other.missed)


def inner_products(moved: Tensor, start: tuple[Tensor, Tensor], turned: Tensor, shares: Tensor) -> Inner:
    """All of them.

    Args:
        moved: x_k, (d_out, K, r) float64, scale folded in.
        start: B_0 (d_out, r), scale folded in, and A_0 (r, d_in), float64.
        turned: y_k, (K, r, d_in) float64.
        shares: p_k, (K,) float64, of sum 1.
    """
    b, a = start
    count, rank = turned.shape[:2]
    tall = torch.cat([moved, b[:, None]], dim=1).reshape(len(b), -1)
    wide = torch.cat([turned, a[None]]).reshape(-1, a.shape[1])
    p, q = (_square(part).reshape(count + 1, rank, count + 1, rank) for part in (tall.mT, wide))
    x, x_start, y = p[:count, :, :count], p[:count, :, count:], q[:count, :, :count]
    whole_a = _whole(q)
    crossed = (x_start * (q[count:, :, :count] + y)).sum((1, 3))  # ⟨x_i A_i, B_0 y_j⟩
    increments = (x * whole_a).sum((1, 3)) + crossed + crossed.mT + (p[count:, :, count:] * y).sum((1, 3))
    apart = (_centred(x, shares) * _centred(y, shares)).sum((1, 3))
    missed = float((shares @ apart @ shares).clamp_min(0))
    return Inner(_positive((_whole(p) * whole_a).sum((1, 3))), _positive(increments), missed)


def _square(rows: Tensor) -> Tensor:
    return rows @ rows.mT


def _whole(gram: Tensor) -> Tensor:
    """The Gram matrix of start + deviation, from that of deviations and, last, the start."""
    last = len(gram) - 1
    return gram[:last, :, :last] + gram[:last, :, last:] + gram[last:, :, :last] + gram[last:, :, last:]


def _centred(gram: Tensor, shares: Tensor) -> Tensor:
    """The Gram matrix of deviations from their weighted mean."""
    mean = torch.einsum("i,iajb->ajb", shares, gram)[None]
    once = gram - mean
    return once - torch.einsum("j,iajb->iab", shares, once)[:, :, None]


def _positive(gram: Tensor) -> Tensor:
    """The same with a diagonal that rounding cannot have turned negative."""
    gram.diagonal().clamp_min_(0)
    return gram
