"""The chunkwise form in little memory: keeps its inputs and one state a chunk, and computes the rest again."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd.function import once_differentiable

from cotune.trainable.memory import gradient
from cotune.trainable.memory.blocks import fitted
from cotune.trainable.memory.rule import Pair, Rule, checked


def lean(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    decay: Tensor | None = None,
    state: Tensor | None = None,
    chunk: int = 64,
    rule: Rule = "delta",
) -> Pair:
    """`scan(...)` by chunks, in the memory of the inputs and T / chunk states; differentiable once, in reverse.

    Raises:
        CotuneError: E_SHAPE when shapes do not fit each other.
    """
    inputs, size = (q, k, v, beta, decay, checked(q, k, v, beta, decay, state)), fitted(chunk, k)
    out, last, *_ = _Lean.apply(*inputs, size, rule)  # type: ignore[no-untyped-call]
    return out, last


class _Lean(gradient.Kept):
    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, ...]:
        """(o, the last state), and the states before each chunk."""
        *inputs, size, rule = given
        return gradient.forward(inputs, size, rule, keep=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, d_state: Tensor | None, *_: Tensor) -> tuple[Any, ...]:
        """The gradients of q, k, v, beta, decay and state."""
        saved = ctx.saved_tensors  # read once: gradient checkpointing allows no more
        inputs, before = saved[:6], saved[6:]
        return *gradient.backward(inputs, before, d_out, d_state, ctx.size, ctx.rule, in_place=False), None, None
