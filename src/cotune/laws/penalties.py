"""The laws of penalties."""

from __future__ import annotations

import torch
from torch import Tensor

from cotune.core.contracts import Penalty
from cotune.core.part import Capability
from cotune.core.state import digest
from cotune.core.view import View
from cotune.laws.toy import OBJECTIVE, SPEC, close, numbers, same, view


def _later(part: Penalty, dtype: torch.dtype = torch.float32) -> View:
    """A client after a round with the part, at the start of the next: with whatever the part keeps of its own."""
    return part.end(part.begin(view(dtype=dtype), OBJECTIVE))


def _digests(here: View) -> tuple[str, str, dict[str, str]]:
    own = {kind: private.sha256() for kind, private in here.private.items()}
    return here.theta.sha256(), here.anchor.sha256(), own


def is_differentiable(part: Penalty) -> None:
    """It is a finite 0-dim number whose gradient is that of finite differences, in float64."""
    at, here = numbers(3, dtype=torch.float64), _later(part, torch.float64)
    names, leaves = list(at), [tensor.requires_grad_() for tensor in at.values()]

    def value(*inputs: Tensor) -> Tensor:
        return part(dict(zip(names, inputs, strict=True)), here)

    result = value(*leaves)
    same("its shape", tuple(result.shape), ())
    assert bool(torch.isfinite(result)), "not finite"
    assert torch.autograd.gradcheck(value, leaves), "gradient differs from finite differences"


def leaves_inputs(part: Penalty) -> None:
    """It leaves its inputs as they are."""
    at, here = numbers(3), _later(part)
    before = digest(at), _digests(here)
    part(at, here)
    part.end(part.begin(here, OBJECTIVE))
    same("inputs", (digest(at), _digests(here)), before)


def repeats_itself(part: Penalty) -> None:
    """What it keeps of its own after a round is a function of the view and the objective, to the bit."""
    same("its own numbers", *(_digests(_later(part))[2] for _ in range(2)))


def vanishes_at_the_anchor(part: Penalty) -> None:
    """If it needs an anchor, it is zero there, and its gradient too."""
    if Capability.ANCHOR not in part.needs:
        return
    here = _later(part)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in here.anchor.items()}
    value = part(leaves, here)
    same("at the anchor", float(value.detach()), 0.0)
    for name, grad in zip(leaves, torch.autograd.grad(value, list(leaves.values()), allow_unused=True), strict=True):
        assert grad is None or not bool(grad.any()), f"gradient of {name} is not zero at the anchor"


def vectorizes(part: Penalty) -> None:
    """If it says so, clients as a leading axis give what one after another give."""
    if Capability.VECTORIZABLE not in part.gives:
        return
    here, clients = _later(part), [numbers(seed) for seed in range(3)]
    stacked = {name: torch.stack([client[name] for client in clients]) for name in SPEC.names}
    together = torch.func.vmap(lambda at: part(at, here))(stacked)
    close("vmap", together, torch.stack([part(client, here) for client in clients]), 1e-5)


LAWS = (
    is_differentiable,
    leaves_inputs,
    repeats_itself,
    vanishes_at_the_anchor,
    vectorizes,
)
