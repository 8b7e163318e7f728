"""The gradient of a step, computed in one place for every first-order optimizer."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cotune.core.errors import Code, CotuneError
from cotune.core.view import Objective, View


def gradient(view: View, objective: Objective) -> tuple[dict[str, Tensor], Tensor]:
    """`∇ mean(losses)` by name, clipped to the view's norm, and the mean loss (0-dim), over all microbatches.

    Rows weigh the same whatever microbatch they are in, so accumulation changes memory, not the gradient.

    Raises:
        CotuneError: E_CONFLICT for a tensor that the loss does not reach (it would stay untrained without a word);
            E_NONFINITE when the loss or the gradient is not finite, with the step.
    """
    names = view.scope.train
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in view.trained.items()}
    total = {name: torch.zeros_like(tensor) for name, tensor in leaves.items()}
    loss = torch.zeros((), dtype=torch.float64)
    for portion in objective.microbatches():
        losses = portion(leaves)
        part = losses.sum() / objective.rows
        grads = _reached(part, leaves)
        unreached = [name for name in names if name not in grads]
        if unreached:
            raise CotuneError(
                Code.CONFLICT,
                f"{len(unreached)} trained tensors do not reach the loss",
                where=", ".join(unreached[:3]),
                fix="take them out of the trainable, or check what detaches them",
            )
        for name, grad in grads.items():
            total[name] += grad
        loss = loss + part.detach().double()
    norm = torch.stack([grad.double().square().sum() for grad in total.values()]).sum().sqrt()
    where = f"client {view.client}, round {view.round}, step {view.step + 1}"
    if not math.isfinite(float(norm)) or not math.isfinite(float(loss)):
        raise CotuneError(Code.NONFINITE, "loss or gradient is not finite", where=where, fix="lower the learning rate")
    if view.clip is not None and float(norm) > view.clip:
        factor = view.clip / float(norm)
        total = {name: grad * factor for name, grad in total.items()}
    return total, loss


def _reached(loss: Tensor, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    """The gradients of the tensors that the loss depends on."""
    if not loss.requires_grad:
        return {}
    grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return {name: grad for name, grad in zip(leaves, grads, strict=True) if grad is not None}
