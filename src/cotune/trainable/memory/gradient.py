"""The chunkwise form's gradient, derived by hand; see README.md.

For a chunk with weights D (the decay from j to i, lower triangular), U what was written and S the state before it:

    dU = Aᵀ dO + (tail ⊙ W) dS'ᵀ           E = dV = (I + L)⁻ᵀ dU
    dS = e dS' + dOᵀ (start ⊙ Q) − Eᵀ (start ⊙ K)
    N = (dO Uᵀ) ⊙ D, P = −(E Uᵀ) ⊙ D       the gradients of Q Wᵀ and K Wᵀ; P strictly lower triangular
    dQ = N W + start ⊙ (dO S)              dK = P W − start ⊙ (E S)          dW = Nᵀ Q + Pᵀ K + tail ⊙ (U dS')
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from cotune.trainable.memory.blocks import Block, block, chunks, joined, masks, played, put, solved
from cotune.trainable.memory.rule import Pair, Rule, Tokens, compute_dtype

SEGMENT = 8  # chunks that are worked on together
ROWS = 1152  # on a CPU at most so many keys together: what is in its cache is far faster

Inputs = Sequence[Any]  # q, k, v, beta, decay or None, state


class Kept(Function):
    """A function of (q, k, v, beta, decay, state, size, rule) that keeps these, and all it returns past (o, state)."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep them."""
        *given, ctx.size, ctx.rule = inputs
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*output[2:])
        ctx.save_for_backward(*given, *output[2:])


def forward(inputs: Inputs, size: int, rule: Rule, keep: bool) -> tuple[Tensor, ...]:
    """(o, the last state), and of every segment the states before each chunk; with `keep` its block too."""
    q, k, v, _, _, state = inputs
    now = state.to(compute_dtype(q, k, v)).flatten(0, 1)
    seen, reads, kept = _masks(q, k, size), [], []
    for at in segments(k, size):
        of = block(_cut(inputs, at), size, seen)
        read, written, before, now = played(of, now, rule)
        reads.append(read)
        kept.append(before)
        if keep:
            kept += [of.q, of.k, written, of.beta, of.write, of.reads, of.meets]
            kept += [] if of.decay is None else [of.decay]
    out = joined(reads, k.shape[0], k.shape[1], size)[:, :, : k.shape[2]]
    return out, now.reshape(state.shape), *kept


def backward(
    inputs: Inputs,
    kept: Sequence[Tensor],
    d_out: Tensor | None,
    d_state: Tensor | None,
    size: int,
    rule: Rule,
    in_place: bool,
) -> list[Tensor | None]:
    """The gradients of `inputs`, segment by segment from the end.

    Args:
        inputs: of `forward`.
        kept: what it returned after the last state: of a segment the states, or also a block with what it writes as v.
        d_out: the gradient of o; None for zeros.
        d_state: of the last state; None for zeros.
        size: tokens a chunk.
        rule: delta or hebbian.
        in_place: write to what was computed and to whole gradients, which is faster; not where what is done here is
            differentiated or mapped.
    """
    q, k, v, beta, _, state = inputs
    batch, heads = k.shape[:2]
    if d_out is None:
        d_out = kept[0].new_zeros(*q.shape[:3], v.shape[-1])
    later = (torch.zeros_like(state, dtype=kept[0].dtype) if d_state is None else d_state).flatten(0, 1)
    seen, gathered, parts = _masks(q, k, size), _Gathered(inputs, size, in_place), segments(k, size)
    each = len(kept) // len(parts)
    for i, at in reversed(list(enumerate(parts))):
        before, *known = kept[i * each : (i + 1) * each]
        of = _kept(known, seen, len(before) // (batch * heads)) if known else _again(inputs, at, seen, before, rule)
        d_read = chunks(d_out[:, :, at], heads, size)
        d_q, d_k, d_w, d_v, d_decay, later = _backward(of, before, d_read, later, rule, in_place)
        d_k = d_w * of.beta if d_k is None else torch.addcmul(d_k, d_w, of.beta)
        d_beta = d_w * of.k
        d_beta = d_beta if beta.ndim == 4 else d_beta.sum(-1, keepdim=True)
        gathered.add((d_q, d_k, d_v, d_beta, d_decay), at.start // size)
    return [*gathered.whole(), later.reshape(state.shape).to(state.dtype)]


class _Gathered:
    """The gradients of q, k, v, beta and decay, of segments in reverse: written where they belong, or joined."""

    def __init__(self, inputs: Inputs, size: int, in_place: bool) -> None:
        self.inputs, self.size, self.in_place = inputs[:5], size, in_place
        self.batch, self.heads, self.length = inputs[1].shape[:3]
        self.parts: list[tuple[Tensor | None, ...]] = []
        self.into: list[Tensor | None] = [self._opened(x) for x in self.inputs] if in_place else []

    def _opened(self, like: Tensor | None) -> Tensor | None:
        if like is None:
            return None
        width = like.shape[3] if like.ndim == 4 else 1
        count = -(-self.length // self.size)
        return like.new_empty(self.batch, self.heads, like.shape[1] // self.heads, count, self.size, width)

    def add(self, parts: tuple[Tensor | None, ...], first: int) -> None:
        """Take a segment, of which `first` is the first chunk."""
        if not self.in_place:
            self.parts.insert(0, parts)
            return
        for into, part in zip(self.into, parts, strict=True):
            if into is not None and part is not None:
                put(part, into, first)

    def whole(self) -> list[Tensor | None]:
        """All of each, in the shape and dtype of its input."""
        return [None if x is None else self._shaped(i, x) for i, x in enumerate(self.inputs)]

    def _shaped(self, i: int, like: Tensor) -> Tensor:
        into = self.into[i] if self.in_place else None
        if into is None:
            whole = joined(
                [p for parts in self.parts if (p := parts[i]) is not None], self.batch, self.heads, self.size
            )
        else:
            whole = into.reshape(self.batch, -1, into.shape[3] * self.size, into.shape[5])
        whole = whole[:, :, : self.length]
        return (whole if like.ndim == 4 else whole[..., 0]).to(like.dtype)


def segments(k: Tensor, size: int) -> list[slice]:
    """The tokens of every segment."""
    fitting = ROWS // (k.shape[0] * k.shape[1] * size) if k.device.type == "cpu" else SEGMENT
    count = max(1, min(SEGMENT, fitting))
    return [slice(t, t + count * size) for t in range(0, k.shape[2], count * size)]


def _kept(known: Sequence[Tensor], seen: Pair, count: int) -> Block:
    """A segment's block as `forward` kept it, with what it writes as v."""
    q, k, written, beta, write, reads, meets, *decay = known
    return Block(q, k, written, beta, write, reads, meets, decay[0] if decay else None, seen, count)


def _again(inputs: Inputs, at: slice, seen: Pair, before: Tensor, rule: Rule) -> Block:
    """A segment's block computed again, and from the states before its chunks what it writes, as v."""
    of = block(_cut(inputs, at), len(seen[1]), seen)
    if rule == "hebbian":
        return of
    return replace(of, v=solved(of.decayed(of.meets), torch.baddbmm(of.v, of.started(of.k), before.mT, alpha=-1)))


def _masks(q: Tensor, k: Tensor, size: int) -> Pair:
    return masks(q.shape[1] // k.shape[1], size, q.new_empty(0, dtype=compute_dtype(q, k)))


def _cut(inputs: Inputs, at: slice) -> Tokens:
    q, k, v, beta, decay, state = inputs
    dtype = compute_dtype(q, k, v)
    beta, decay = (x if x is None or x.ndim == 4 else x[..., None] for x in (beta, decay))
    q, k, v, beta = (x[:, :, at].to(dtype) for x in (q, k, v, beta))
    return Tokens(q, k, v, beta, None if decay is None else decay[:, :, at].to(dtype), state)


def _backward(
    of: Block, before: Tensor, d_read: Tensor, later: Tensor, rule: Rule, in_place: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor | None, Tensor]:
    """The gradients of q, k (without what comes through write), write, v, decay, and the state before the first chunk.

    Args:
        of: n chunks, with what they write as v.
        before: the states before each (N, d_v, d_k).
        d_read: the gradient of what was read (N, g·C, d_v).
        later: of the state after the last chunk (B, d_v, d_k).
        rule: delta or hebbian.
        in_place: of `backward`.
    """
    add: Callable[..., Tensor] = Tensor.baddbmm_ if in_place else torch.baddbmm
    delta, error, started, written = rule == "delta", of.decayed(of.meets), of.started(of.k), of.v
    direct = of.apart(of.decayed(of.reads).mT @ d_read)
    queries, d_reads = of.apart(of.started(of.q)), of.apart(d_read)
    errors, keys, ending, over = of.apart(error), of.apart(started), of.apart(of.ended(of.write)), of.over()
    d_values, afters = [], []
    for i in reversed(range(of.count)):
        afters.append(later)
        d_value, decay = add(direct[i], ending[i], later.mT), over[i]
        later = torch.baddbmm(later if decay is None else later * decay, d_reads[i].mT, queries[i])
        if delta:
            d_value = _solved_transposed(errors[i], d_value)
            later = add(later, d_value.mT, keys[i], alpha=-1)
        d_values.append(d_value)
    d_v, d_after = torch.cat(d_values[::-1]), torch.cat(afters[::-1])
    to_state = written @ d_after
    sides = [_Side(d_read, of.q, of.reads, of.masks[0], 1)] + (
        [_Side(d_v, of.k, of.meets, of.masks[1], -1)] if delta else []
    )
    d_rows, d_w, through = [], of.ended(to_state), []
    for side in sides:
        inside, outside = side.gradient @ written.mT, side.gradient @ before
        d_scores = inside.mul_(side.mask)
        if of.decay is not None:
            through.append(side.of_products(outside, inside, of.k.shape[1]))
            d_scores = of.decayed(inside)
        d_rows.append(add(of.started(outside), d_scores, of.write, beta=side.sign, alpha=side.sign))
        d_w = add(d_w, d_scores.mT, side.rows, alpha=side.sign)
    d_k = d_rows[1] if delta else None
    if of.decay is None:
        return d_rows[0], d_k, d_w, d_v, None, later
    ends = torch.cat([(d_after * before).sum((-2, -1))[:, None], (to_state * of.write).sum(-1)], -1)
    through.append(F.pad(ends[:, None], (0, 0, of.k.shape[1] - 1, 0)))  # the last row: what lasts to the chunk's end
    return d_rows[0], d_k, d_w, d_v, _factors(of.decay, torch.stack(through).sum(0)), later


class _Side(NamedTuple):
    """One of two ways to meet what is in the memory: queries read it, keys have it taken off what they write.

    Attributes:
        gradient: of what comes of it (N, any·C, d_v).
        rows: queries or keys (N, any·C, d_k).
        scores: rows writeᵀ (N, any·C, C).
        mask: (any·C, C), of what a row meets.
        sign: 1, or −1 for taken off.
    """

    gradient: Tensor
    rows: Tensor
    scores: Tensor
    mask: Tensor
    sign: int

    def of_products(self, outside: Tensor, inside: Tensor, size: int) -> Tensor:
        """The gradient of `products` (N, C, C + 1): of what was there at the start, and of what tokens wrote since."""
        start = (outside * self.rows).sum(-1).reshape(len(outside), -1, size).sum(1)
        since = (inside * self.scores).reshape(len(inside), -1, size, size).sum(1)
        return torch.cat([start[..., None], since], -1) * self.sign


def _factors(decay: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of the factors (N, C, 1): Σ_{i >= l, j < l} gradient[i, j] Π(l+1..i) Π(j+1..l-1); no division.

    Args:
        decay: `products` of the factors.
        gradient: of these, 0 where they are fixed at 0.
    """
    size = decay.shape[-2]
    none = F.pad(
        torch.ones_like(decay[:1, :1, :1]), (0, size)
    )  # before the chunk's first token: nothing but the start, undecayed
    earlier = torch.cat([none.expand(len(decay), 1, -1), decay[:, :-1]], 1)
    return (decay[..., 1:] * (gradient @ earlier.mT)).sum(-2)[..., None]


def _solved_transposed(matrix: Tensor, right: Tensor) -> Tensor:
    """`(I + strict lower triangle of matrix)⁻ᵀ right`."""
    found: Tensor = torch.linalg.solve_triangular(matrix, right.mT, upper=False, left=False, unitriangular=True)
    return found.mT
