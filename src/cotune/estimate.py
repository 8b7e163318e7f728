"""What a method will cost on a backbone, before anything is loaded: from a model without numbers.

The step runs on the `meta` device, where tensors have shapes and no memory: its matrix products are counted, and the
tensors that its backward pass would keep are added up.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from cotune.backbone import Backbone
from cotune.backbone.bind import bind
from cotune.backbone.head import one_option
from cotune.diagnose.flops import counting
from cotune.method import Method

MOMENTS = 4  # float32 copies of what trains while it trains: itself, its gradient, and AdamW's two moments


@dataclass(frozen=True)
class Estimate:
    """The cost of one batch.

    Attributes:
        parameters: of the backbone, with its head.
        weight_bytes: in its dtype.
        trained: how many numbers train.
        forward_flops: of one pass.
        step_flops: of a training step, forward and backward.
        kept_bytes: what a forward pass keeps for the backward one.
        training_bytes: weights, what trains four times over, and what is kept.
    """

    parameters: int
    weight_bytes: int
    trained: int
    forward_flops: int
    step_flops: int
    kept_bytes: int

    @property
    def training_bytes(self) -> int:
        """Weights, what trains with its gradient and moments, and what is kept for the backward pass."""
        return self.weight_bytes + 4 * MOMENTS * self.trained + self.kept_bytes


def estimate(method: Method, backbone: Backbone, head: str, labels: int, shape: tuple[int, int]) -> Estimate:
    """What a step on a batch of `shape` (rows, tokens) costs.

    Raises:
        CotuneError: what building the backbone's shapes, or attaching to them, raises.
    """
    skeleton = backbone.skeleton(head, labels)
    weights = list(skeleton.model.parameters())
    theta, personal, spec = method.trainable.attach(skeleton, 0, method.share)
    leaves = {n: torch.empty(t.shape, device="meta", requires_grad=True) for n, t in {**theta, **personal}.items()}
    rows, tokens = shape
    # One row, no mask, no padding token: models look at the values of those, and rows do not mix.
    ids = one_option(torch.zeros(1, tokens, dtype=torch.long, device="meta"), head)
    vars(skeleton.model)["config"].pad_token_id = None
    held = {id(tensor) for tensor in (*weights, *leaves.values())}
    kept: dict[int, int] = {}
    alive: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        base = tensor if tensor._base is None else tensor._base
        if id(base) not in held and id(base) not in kept:
            kept[id(base)] = base.numel() * base.element_size()
            alive.append(base)
        return tensor

    with bind(skeleton.model, leaves, spec) as bound, counting() as whole:
        with counting() as forward, saved_tensors_hooks(keep, lambda tensor: tensor):
            logits: Tensor = bound(leaves, input_ids=ids).logits
        torch.autograd.grad(logits.float().sum(), list(leaves.values()), allow_unused=True)
    return Estimate(
        parameters=sum(parameter.numel() for parameter in weights),
        weight_bytes=sum(parameter.numel() * parameter.element_size() for parameter in weights),
        trained=sum(entry.numel for entry in spec),
        forward_flops=rows * int(forward.get_total_flops()),
        step_flops=rows * int(whole.get_total_flops()),
        kept_bytes=rows * sum(kept.values()),
    )


def measured_flops(threads: int = 1, device: str = "cpu", seconds: float = 0.3) -> float:
    """FLOPs a second of a 768 × 768 float32 matrix product here and now: what a step can hope for."""
    torch.set_num_threads(threads)
    side = 768
    left, right = torch.ones(side, side, device=device), torch.ones(side, side, device=device)
    left @ right
    done, started = 0, time.monotonic()
    while time.monotonic() - started < seconds:
        float((left @ right)[0, 0])
        done += 1
    return done * 2 * side**3 / (time.monotonic() - started)
