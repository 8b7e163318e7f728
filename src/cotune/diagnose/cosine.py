"""Cosines of K changes from their Gram matrix G, (K, K) float64: ⟨Δ_i, Δ_j⟩, summed over whatever they consist of.

A change of length 0 has no direction: it counts in no cosine, though its weight counts in the mean of changes.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDING = 1e-14  # of a sum of float64 products, relative to their size


def to_mean(gram: Tensor, shares: Tensor) -> Tensor:
    """cos(Δ_k, Σ p_j Δ_j) of each change, (K,); NaN where one of the two is 0."""
    lengths, total = gram.diagonal().sqrt(), mean_length(gram, shares)
    cosines: Tensor = (gram @ shares) / (lengths * total)
    return torch.where((lengths > 0) & (total > 0), cosines, torch.nan)


def to_mean_floor(gram: Tensor, shares: Tensor) -> Tensor:
    """p_k ‖Δ_k‖ / √Σ p_j² ‖Δ_j‖², (K,): what `to_mean` were at right angles; 1/√K for equal p ‖Δ‖."""
    lengths = shares * gram.diagonal().sqrt()
    return torch.where(lengths > 0, lengths / lengths.norm(), torch.nan)


def between(gram: Tensor) -> float | None:
    """The mean of cos(Δ_i, Δ_j) over pairs i < j; None for fewer than two changes. At right angles it is 0."""
    lengths = gram.diagonal().sqrt()
    there = lengths > 0
    count = int(there.sum())
    if count < 2:
        return None
    cosines = gram[there][:, there] / torch.outer(lengths[there], lengths[there])
    return float(cosines.triu(1).sum()) / (count * (count - 1) / 2)


def mean_length(gram: Tensor, shares: Tensor) -> Tensor:
    """‖Σ p_k Δ_k‖, 0-dim; 0 where it is no more than the rounding of changes that cancel."""
    square: Tensor = shares @ gram @ shares
    longest = shares @ gram.diagonal().sqrt()
    return torch.where(square > ROUNDING * longest**2, square, 0.0).sqrt()
