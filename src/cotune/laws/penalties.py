"""The laws of penalties."""

from __future__ import annotations

import torch
from torch import Tensor

from cotune.core.contracts import Penalty
from cotune.core.part import Capability
from cotune.core.state import digest
from cotune.laws.toy import SPEC, close, numbers, same, view


def is_differentiable(part: Penalty) -> None:
    """It is a finite 0-dim number whose gradient is that of finite differences, in float64."""
    at, here = numbers(3, dtype=torch.float64), view(dtype=torch.float64)
    names, leaves = list(at), [tensor.requires_grad_() for tensor in at.values()]

    def value(*inputs: Tensor) -> Tensor:
        return part(dict(zip(names, inputs, strict=True)), here)

    result = value(*leaves)
    same("its shape", tuple(result.shape), ())
    assert bool(torch.isfinite(result)), "not finite"
    assert torch.autograd.gradcheck(value, leaves), "gradient differs from finite differences"


def leaves_inputs(part: Penalty) -> None:
    """It leaves its inputs as they are."""
    at, here = numbers(3), view()
    before = digest(at), here.theta.sha256(), here.anchor.sha256()
    part(at, here)
    same("inputs", (digest(at), here.theta.sha256(), here.anchor.sha256()), before)


def vanishes_at_the_anchor(part: Penalty) -> None:
    """If it needs an anchor, it is zero there, and its gradient too."""
    if Capability.ANCHOR not in part.needs:
        return
    here = view()
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in here.anchor.items()}
    value = part(leaves, here)
    same("at the anchor", float(value.detach()), 0.0)
    for name, grad in zip(leaves, torch.autograd.grad(value, list(leaves.values()), allow_unused=True), strict=True):
        assert grad is None or not bool(grad.any()), f"gradient of {name} is not zero at the anchor"


def vectorizes(part: Penalty) -> None:
    """If it says so, clients as a leading axis give what one after another give."""
    if Capability.VECTORIZABLE not in part.gives:
        return
    here, clients = view(), [numbers(seed) for seed in range(3)]
    stacked = {name: torch.stack([client[name] for client in clients]) for name in SPEC.names}
    together = torch.func.vmap(lambda at: part(at, here))(stacked)
    close("vmap", together, torch.stack([part(client, here) for client in clients]), 1e-5)


LAWS = (
    is_differentiable,
    leaves_inputs,
    vanishes_at_the_anchor,
    vectorizes,
)
