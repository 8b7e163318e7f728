"""The memory's rule by chunks: exactly `scan` and `titans`, most of it as batched matrix products; see README.md."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cotune.trainable.memory import gradient
from cotune.trainable.memory.blocks import block, chunks, fitted, joined, masks, products, solved
from cotune.trainable.memory.lean import lean
from cotune.trainable.memory.rule import Pair, Rule, checked, compute_dtype, scan, titans_tokens

LEAN_BYTES = 32 * 2**20  # of what `chunked` would keep for its gradient


def run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    decay: Tensor | None = None,
    state: Tensor | None = None,
    chunk: int = 64,
    rule: Rule = "delta",
) -> Pair:
    """`scan(...)` by the form that shapes, and whether a gradient is wanted, make the best: never by what is in them.

    Raises:
        CotuneError: E_SHAPE when shapes do not fit each other.
    """
    if k.shape[2] == 1:
        return scan(q, k, v, beta, decay, state, rule)
    if _followed(q, k, v, beta, decay, state) and kept_bytes(q, k, v, chunk) > LEAN_BYTES:
        return lean(q, k, v, beta, decay, state, chunk, rule)
    return chunked(q, k, v, beta, decay, state, chunk, rule)


def kept_bytes(q: Tensor, k: Tensor, v: Tensor, chunk: int = 64) -> int:
    """What `chunked` keeps for its gradient beside its inputs, from shapes alone: blocks and states."""
    batch, heads, length, d_k = k.shape
    size, d_v = fitted(chunk, k), v.shape[-1]
    token = (q.shape[1] // heads + 1) * (size + d_k) + d_k + d_v + d_k * d_v // size
    return batch * heads * length * token * compute_dtype(q, k, v).itemsize


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    decay: Tensor | None = None,
    state: Tensor | None = None,
    chunk: int = 64,
    rule: Rule = "delta",
) -> Pair:
    """`scan(...)` by chunks, differentiable any number of times.

    Raises:
        CotuneError: E_SHAPE when shapes do not fit each other.
    """
    inputs, size = (q, k, v, beta, decay, checked(q, k, v, beta, decay, state)), fitted(chunk, k)
    if _followed(*inputs):
        out, last, *_ = _Chunked.apply(*inputs, size, rule)  # type: ignore[no-untyped-call]
    else:
        out, last, *_ = gradient.forward(inputs, size, rule, keep=False)
    return out, last


def _followed(*inputs: Tensor | None) -> bool:
    """Whether a gradient is wanted."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)


class _Chunked(gradient.Kept):
    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, ...]:
        """(o, the last state), and what the gradient needs."""
        *inputs, size, rule = given
        return gradient.forward(inputs, size, rule, keep=True)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor | None, d_state: Tensor | None, *_: Tensor) -> tuple[Any, ...]:
        """The gradients of q, k, v, beta, decay and state."""
        saved = ctx.saved_tensors  # read once: gradient checkpointing allows no more
        inputs, kept = saved[:6], saved[6:]
        again = torch.is_grad_enabled()  # they will be differentiated: what was kept must depend on the inputs
        if again:
            kept = gradient.forward(inputs, ctx.size, ctx.rule, keep=True)[2:]
        return *gradient.backward(inputs, kept, d_out, d_state, ctx.size, ctx.rule, in_place=not again), None, None


def titans_chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    momentum: Tensor,
    decay: Tensor | None = None,
    state: Pair | None = None,
    chunk: int = 64,
    valid: Tensor | None = None,
) -> tuple[Tensor, Pair]:
    """`titans(...)` by chunks, differentiable any number of times.

    With `take` 1 where a token counts and 0 where it does not, S_t = a_t S_{t-1} + take_t Z_t: a token of momentum 1,
    decay 1, rate 0 and take 0 changes nothing, and so an invalid token is read, and the last chunk padded.

    Raises:
        CotuneError: E_SHAPE when shapes do not fit each other.
    """
    given, kept, now, change = titans_tokens(q, k, v, beta, momentum, decay, state, valid)
    batch, heads, length, d_k = k.shape
    size, rate, take = fitted(chunk, k), given.beta, torch.ones_like(kept)
    decays = torch.ones_like(kept) if given.decay is None else given.decay[..., 0]
    if valid is not None:
        real = valid[:, None]
        kept, decays = torch.where(real, kept, 1.0), torch.where(real, decays, 1.0)
        take, rate = torch.where(real, take, 0.0), torch.where(real[..., None], rate, 0.0)

    def of_tokens(x: Tensor, fill: float) -> Tensor:
        return chunks(x[..., None], heads, size, fill)[..., 0]

    # Column 0 is for what the chunk starts from, column j + 1 for what token j adds to Z.
    stays, lasts = products(of_tokens(decays, 1.0)), products(of_tokens(kept, 1.0))
    taken = (stays[..., 1:] * of_tokens(take, 0.0)[:, None]) @ lasts
    # A token's error comes before its decay: its key meets what the token before it left, the first one the start.
    met = torch.cat([torch.ones_like(stays[:, :1, :1]), stays[:, :-1, :1]], 1)
    met_taken = torch.cat([torch.zeros_like(taken[:, :1]), taken[:, :-1]], 1)

    of = block(given._replace(beta=rate, decay=None), size, masks(q.shape[1] // heads, size, given.k))
    reading = (of.reads.reshape(len(of.k), -1, size, size) * taken[:, None, :, 1:]).flatten(1, 2)
    right = torch.cat([of.v, met * of.k, met_taken[..., :1] * of.k], -1)
    free, moves = solved(of.meets * met_taken[..., 1:], right).split_with_sizes([of.v.shape[-1], 2 * d_k], -1)
    ends = torch.cat([of.write * taken[:, -1, 1:, None], of.write * lasts[:, -1, 1:, None]], -1)
    from_state, from_change, over = (of.apart(x[:, -1:, :1]) for x in (stays, taken, lasts))

    both, before, wrote = torch.cat([now, change], -1).flatten(0, 1), [], []
    for i, (target, key, end) in enumerate(zip(of.apart(free), of.apart(moves), of.apart(ends), strict=True)):
        before.append(both)
        wrote.append(torch.baddbmm(target, key, both.mT, alpha=-1))
        s, z = both.split_with_sizes([d_k, d_k], -1)
        carried = torch.cat([from_state[i] * s + from_change[i] * z, over[i] * z], -1)
        both = torch.baddbmm(carried, wrote[-1].mT, end)
    queries = of.q.reshape(len(of.k), -1, size, d_k)
    spread = torch.cat([x[:, None, :, :1] * queries for x in (stays, taken)], -1).flatten(1, 2)
    out = torch.baddbmm(reading @ torch.cat(wrote), spread, torch.cat(before).mT)
    s, z = both.reshape(batch, heads, -1, 2 * d_k).split_with_sizes([d_k, d_k], -1)
    return joined([out], batch, heads, size)[:, :, :length], (s, z)
