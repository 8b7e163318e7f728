"""How much of K changes is left in their mean, from their Gram matrix G, (K, K) float64: ⟨Δ_i, Δ_j⟩."""

from __future__ import annotations

from torch import Tensor

from cotune.diagnose.cosine import mean_length


def cancellation(gram: Tensor, shares: Tensor) -> tuple[float, float] | None:
    """(‖Σ p_k Δ_k‖, √Σ p_k² ‖Δ_k‖²) / Σ p_k ‖Δ_k‖: the ratio, and what it were at right angles; None if all are 0.

    1 when all point one way, 0 when they cancel. The floor is 1/√K for equal p ‖Δ‖, and larger for any others: a few
    long changes cannot cancel.
    """
    lengths = shares * gram.diagonal().sqrt()
    total = float(lengths.sum())
    return (float(mean_length(gram, shares)) / total, float(lengths.norm()) / total) if total > 0 else None
