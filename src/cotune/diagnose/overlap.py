"""Overlap of the spaces that two matrices' columns span."""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDING = torch.finfo(torch.float32).eps  # factors are float32: what is shorter than this share is none


def basis(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Q (…, d, min(d, r)) and its rank (…,): orthonormal columns that span those of (…, d, r), then zeros.

    From QR in float64. Its own Q would have r columns whatever the rank is, those beyond it arbitrary: for B = 0 all.
    """
    q, triangle = torch.linalg.qr(columns)
    left, sigma, _ = torch.linalg.svd(triangle)
    there = (sigma > ROUNDING * sigma[..., :1]) & (sigma > 0)
    return (q @ left) * there[..., None, :], there.sum(-1)


def overlap_squared(ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """‖Qᵀ Q_k‖² / r and its mean for spaces drawn at random, r_max / d, of one basis and each of K: (K,) twice.

    r is the smaller of the two ranks and r_max the larger one, both the rank of the factors in all but degenerate
    cases. 1 when one space holds the other; NaN where one of the two is {0}.
    """
    (q, rank), (others, ranks) = ours, theirs
    least = torch.minimum(rank, ranks).double()
    square = (q.mT @ others).square().sum((-2, -1))
    known = least > 0
    floor = torch.maximum(rank, ranks).double() / q.shape[-2]
    return torch.where(known, square / least, torch.nan), torch.where(known, floor, torch.nan)
