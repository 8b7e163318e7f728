"""Which of several options a model takes: the first of those that are as good as the best."""

from __future__ import annotations

import torch
from torch import Tensor

TIE = 1e-5  # options whose scores are nearer than this are equal, and the first one wins


def first_best(numbers: Tensor) -> Tensor:
    """The number of the first option that is within 1e-5 of the best (rows,), of (rows, options)."""
    places = torch.arange(numbers.shape[1], device=numbers.device)
    return torch.where(numbers >= numbers.amax(1, keepdim=True) - TIE, places, numbers.shape[1]).amin(1)


def right(numbers: Tensor, gold: Tensor) -> Tensor:
    """1 where the first best option is the right one, else 0 (rows,), float32."""
    return (first_best(numbers) == gold).float()


def tied(numbers: Tensor) -> Tensor:
    """1 where a second option is within 1e-5 of the best, else 0 (rows,), float32."""
    best, second = numbers.topk(2, dim=1).values.unbind(1)
    return (second >= best - TIE).float()
