"""A sequence in chunks, and the algebra inside one chunk of C tokens; see README.md.

Chunk first, (n·batch·h, rows, d): a batch of matrices, of which a chunk's are neighbours. The g queries that read a
state are the rows of one matrix, g·C of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cotune.trainable.memory.rule import Pair, Rule, Tokens

CPU_CHUNK = 32  # the most tokens a chunk that pay on a CPU: more is more arithmetic, and no faster an instruction


def fitted(chunk: int, k: Tensor) -> int:
    """Tokens a chunk: `chunk` at most, and no more than there are or than pay off on this device."""
    return min(chunk, k.shape[2], CPU_CHUNK if k.device.type == "cpu" else chunk)


def chunks(x: Tensor, heads: int, size: int, fill: float = 0.0) -> Tensor:
    """(batch, heads·g, T, d) as (n·batch·heads, g·size, d), the last chunk padded with `fill`."""
    batch, grouped, length, width = x.shape
    count = -(-length // size)
    if count * size > length:
        x = F.pad(x, (0, 0, 0, count * size - length), value=fill)
    x = x.reshape(batch, heads, grouped // heads, count, size, width).permute(3, 0, 1, 2, 4, 5)
    return x.reshape(count * batch * heads, grouped // heads * size, width)


def joined(parts: Sequence[Tensor], batch: int, heads: int, size: int) -> Tensor:
    """`chunks` undone: parts (n·batch·heads, g·size, d), one after the other, as (batch, heads·g, all, d)."""
    whole = torch.cat([_apart(x, batch, heads, size) for x in parts], 3)
    return whole.reshape(batch, -1, whole.shape[3] * size, whole.shape[-1])


def put(part: Tensor, into: Tensor, first: int) -> None:
    """Write a part (n·batch·heads, g·size, d) from chunk `first` on into what is (batch, heads, g, chunks, size, d)."""
    laid = _apart(part, into.shape[0], into.shape[1], into.shape[4])
    into[:, :, :, first : first + laid.shape[3]] = laid


def _apart(x: Tensor, batch: int, heads: int, size: int) -> Tensor:
    """(n·batch·heads, g·size, d) as (batch, heads, g, n, size, d)."""
    return x.reshape(-1, batch, heads, x.shape[1] // size, size, x.shape[-1]).permute(1, 2, 3, 0, 4, 5)


def masks(groups: int, size: int, like: Tensor) -> Pair:
    """1 where token j is token i or earlier (groups·size, size), and 1 where it is earlier (size, size)."""
    ones = torch.ones(size, size, dtype=like.dtype, device=like.device)
    return ones.tril().repeat(groups, 1), ones.tril(-1)


def products(factors: Tensor) -> Tensor:
    """`R[i, j] = Π a_l over j <= l <= i` for j <= i + 1, else 0: of (..., C) factors all (..., C, C + 1) products.

    Column 0 is the decay since the chunk's start, column j + 1 the decay since token j. Multiplied up as they are:
    nothing is divided, and there is no logarithm, so a factor may be 1, tiny or 0.
    """
    size = factors.shape[-1]
    since = torch.ones(size, size + 1, dtype=torch.bool, device=factors.device)
    steps = torch.where(since.tril(), factors[..., None], 1.0).cumprod(-2)
    return torch.where(since.tril(1), steps, 0.0)


def solved(matrix: Tensor, right: Tensor) -> Tensor:
    """`(I + strict lower triangle of matrix)⁻¹ right`: what is on and above the diagonal is never read."""
    # Transposed, because LAPACK's order is by columns: so `right` and the answer stay as they lie.
    found: Tensor = torch.linalg.solve_triangular(matrix.mT, right.mT, upper=True, left=False, unitriangular=True)
    return found.mT


@dataclass(frozen=True)
class Block:
    """Chunks, with all that can be had of them before their states are known; N = n·B.

    Attributes:
        q: (N, g·C, d_k).
        k: (N, C, d_k).
        v: (N, C, d_v).
        beta: (N, C, 1 or d_k).
        write: β ⊙ k (N, C, d_k).
        reads: q writeᵀ (N, g·C, C), masked, not decayed.
        meets: k writeᵀ (N, C, C), neither masked nor decayed.
        decay: `products` of the decay (N, C, C + 1); None for a decay of 1.
        masks: `masks(g, C)`.
        count: n.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor
    write: Tensor
    reads: Tensor
    meets: Tensor
    decay: Tensor | None
    masks: Pair
    count: int

    def decayed(self, scores: Tensor) -> Tensor:
        """Scores (N, any·C, C), each times the decay from token j to token i."""
        return scores if self.decay is None else scores * self._of_rows(self.decay[..., 1:], scores.shape[1])

    def started(self, rows: Tensor) -> Tensor:
        """Rows (N, any·C, d), each times the decay from its chunk's start to its token."""
        return rows if self.decay is None else rows * self._of_rows(self.decay[..., :1], rows.shape[1])

    def ended(self, rows: Tensor) -> Tensor:
        """Rows (N, C, d), each times the decay from its token to its chunk's end."""
        return rows if self.decay is None else rows * self.decay[:, -1, 1:, None]

    def _of_rows(self, decays: Tensor, count: int) -> Tensor:
        """(N, C, ...), one after the other until there are `count` rows."""
        groups = count // decays.shape[1]
        return decays if groups == 1 else decays.repeat(1, groups, 1)

    def apart(self, x: Tensor) -> tuple[Tensor, ...]:
        """(N, ...) as n of (B, ...)."""
        return tuple(x.reshape(self.count, -1, *x.shape[1:]).unbind(0))

    def over(self) -> Sequence[Tensor | None]:
        """(B, 1, 1) for every chunk: the decay over all of it."""
        return [None] * self.count if self.decay is None else self.apart(self.decay[:, -1:, :1])


def block(given: Tokens, size: int, seen: Pair) -> Block:
    """All tokens in chunks of `size`, with their `masks`; a padded token writes nothing and decays nothing."""
    heads = given.k.shape[1]
    q, k, v, beta = (chunks(x, heads, size) for x in (given.q, given.k, given.v, given.beta))
    write = k * beta
    decay = None if given.decay is None else products(chunks(given.decay, heads, size, 1.0)[..., 0])
    count = -(-given.k.shape[2] // size)
    return Block(q, k, v, beta, write, (q @ write.mT).mul_(seen[0]), k @ write.mT, decay, seen, count)


def played(of: Block, state: Tensor, rule: Rule) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What queries read, what tokens write, the states before each chunk, and the last state.

    Args:
        of: n chunks.
        state: before the first of them (B, d_v, d_k).
        rule: delta or hebbian.

    Returns:
        (N, g·C, d_v), (N, C, d_v), (N, d_v, d_k), (B, d_v, d_k).
    """
    free, moves = of.apart(of.v), None
    if rule == "delta":
        right = solved(of.decayed(of.meets), torch.cat([of.v, of.started(of.k)], -1))
        free, moves = (of.apart(x) for x in right.split_with_sizes([of.v.shape[-1], of.k.shape[-1]], -1))
    states, wrote = list[Tensor](), list[Tensor]()
    for i, (target, write, decay) in enumerate(zip(free, of.apart(of.ended(of.write)), of.over(), strict=True)):
        states.append(state)
        wrote.append(target if moves is None else torch.baddbmm(target, moves[i], state.mT, alpha=-1))
        state = torch.baddbmm(state if decay is None else decay * state, wrote[i].mT, write)
    written, before = torch.cat(wrote), torch.cat(states)
    return torch.baddbmm(of.decayed(of.reads) @ written, of.started(of.q), before.mT), written, before, state
