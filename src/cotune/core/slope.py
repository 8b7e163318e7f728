"""The gradient of an objective at tensors of a part's own choosing, for parts that are no optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from cotune.core.errors import Code, CotuneError
from cotune.core.view import NamedTensors, Objective


class Slope(NamedTuple):
    """The mean loss over all rows, and its gradient by name; zero for a tensor that the loss does not reach."""

    loss: float
    gradient: dict[str, Tensor]


def slope(
    tensors: NamedTensors, objective: Objective, where: str, less: Callable[[NamedTensors], Tensor] | None = None
) -> Slope:
    """`∇ mean(losses)` at `tensors`, a portion of the rows at a time; the tensors themselves stay as they are.

    Args:
        tensors: what to differentiate by; the rest is as the objective's view has it.
        objective: of the rows at hand.
        where: for the error message.
        less: a term of the objective that is taken out of it again.

    Raises:
        CotuneError: E_NONFINITE when the loss or the gradient is not finite.
    """
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}
    total = {name: torch.zeros_like(tensor) for name, tensor in leaves.items()}
    loss = 0.0
    for portion in objective.microbatches():
        losses = portion(leaves)
        part = (losses if less is None else losses - less(leaves)).sum() / objective.rows
        loss += float(part.detach())
        grads = torch.autograd.grad(part, list(leaves.values()), allow_unused=True) if part.requires_grad else ()
        for name, grad in zip(leaves, grads, strict=False):
            if grad is not None:
                total[name] += grad
    if not (math.isfinite(loss) and all(bool(torch.isfinite(grad).all()) for grad in total.values())):
        raise CotuneError(Code.NONFINITE, "loss or gradient is not finite", where=where, fix="lower its learning rate")
    return Slope(loss, total)
