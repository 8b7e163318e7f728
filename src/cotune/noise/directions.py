"""Directions other than plain signs, and one way to add any of them.

| kind | z | exact |
|---|---|---|
| sign | −1 or +1 | yes |
| rank1 | u vᵀ of a matrix, signs both; anything but a matrix takes plain signs | yes |
| gaussian | standard normal, by Box–Muller | no |
| sphere | the Gaussian direction of a whole block of d numbers, stretched or shrunk to length √d | no |

All have E z zᵀ = I, so a coefficient means the same for each. Signs are the default: the estimate they give has no more
variance than a Gaussian's (d − 1 against d + 1 times the squared gradient), they cost a bit an element, and adding them
rounds once, so that anyone anywhere can repeat a step exactly. Sines and logarithms differ between math libraries, and
`p + c z` between machines that fuse it and machines that do not: `gaussian` and `sphere`, which the papers use, are
repeated on the same kind of machine only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from cotune.core.errors import Code, CotuneError
from cotune.noise import vectorised
from cotune.noise.philox import WORD
from cotune.noise.stream import Path, apply_many_, apply_runs_, check_memory, check_stream, rounded, signs

ALIGNED = 64  # elements: math on vectors treats the end of an array on its own, so every array begins and ends at one
PIECE = 2**16  # elements drawn at once


class Direction(StrEnum):
    """How a direction is made from the words of a stream."""

    SIGN = "sign"
    RANK1 = "rank1"
    GAUSSIAN = "gaussian"
    SPHERE = "sphere"

    @property
    def exact(self) -> bool:
        """Whether adding it gives the same bits on every machine."""
        return self in (Direction.SIGN, Direction.RANK1)

    def check_exact(self, where: str) -> None:
        """Raise E_CONFLICT where a step is to be repeated on another machine, bit for bit, and this kind cannot."""
        if not self.exact:
            raise CotuneError(
                Code.CONFLICT,
                f"a {self} direction is not the same bits on every machine",
                where=where,
                fix="take direction = 'sign' or 'rank1', or send tensors",
            )


@dataclass(frozen=True)
class Draw:
    """One direction over a block of numbers; element i of the block is element i of the stream.

    Attributes:
        kind: of the direction.
        seed: 64 bits.
        stream: 64 bits: block · 2³² + direction.
        stretch: what every element is multiplied by.
    """

    kind: Direction
    seed: int
    stream: int
    stretch: float = 1.0

    @classmethod
    def of(cls, kind: Direction, seed: int, stream: int, total: int) -> Draw:
        """The direction over a block of `total` numbers; `sphere` draws all of them here, to know their length."""
        if kind is not Direction.SPHERE:
            return cls(kind, seed, stream)
        square = 0.0
        for at in range(0, total, PIECE):
            square += float(normals(seed, stream, at, min(PIECE, total - at)).double().square().sum())
        return cls(kind, seed, stream, math.sqrt(total / square) if square else 1.0)

    def add_(self, tensor: Tensor, coefficient: float, start: int = 0, *, path: Path | None = None) -> Tensor:
        """`tensor += coefficient · z`, in place; `tensor` holds elements `start` … of the block, as a whole parameter.

        Raises:
            CotuneError: as `apply_`.
        """
        return add_many_(tensor, [coefficient], [self], start, path=path)


def add_many_(
    tensor: Tensor, coefficients: Sequence[float], draws: Sequence[Draw], start: int = 0, *, path: Path | None = None
) -> Tensor:
    """`tensor += Σ coefficient · z`, in place, in the order of the draws, bit for bit as one `add_` after another."""
    if all(_dense(draw, tensor) for draw in draws):
        seeds, streams = [draw.seed for draw in draws], [draw.stream for draw in draws]
        return apply_many_(tensor, coefficients, seeds, streams, start, path=path)
    rounded(tensor, coefficients)
    for draw, c in zip(draws, coefficients, strict=True):
        if _dense(draw, tensor):
            apply_many_(tensor, [c], [draw.seed], [draw.stream], start, path=path)
        elif draw.kind is Direction.RANK1:
            _add_rank1(tensor, c, draw, start)
        else:
            _add_normal(tensor, c * draw.stretch, draw, start)
    return tensor


def add_rows_(
    part: Tensor, rows: Tensor, whole: int, coefficients: Sequence[float], draws: Sequence[Draw], *, start: int
) -> Tensor:
    """`part += Σ coefficient · z`, in place: bit for bit what `add_many_` makes of these rows of a whole tensor.

    Args:
        part: (rows, …), copied from the whole.
        rows: their numbers in it, ascending, int64.
        whole: how many rows it has.
        coefficients: one a draw.
        draws: in the order in which they are added to each element.
        start: the first element of the whole in the stream.
    """
    if not part.numel():
        return part
    edges = [0, *((rows.diff() != 1).nonzero().flatten() + 1).tolist(), len(rows)]
    width, firsts = part[0].numel(), rows[edges[:-1]].tolist()
    runs = [(slice(*edge), start + row * width) for edge, row in zip(pairwise(edges), firsts, strict=True)]
    if part.device.type != "cpu" and len(runs) > 1:  # a call a run: there it would wait for each
        return part.copy_(add_rows_(part.cpu(), rows.cpu(), whole, coefficients, draws, start=start))
    for draw, c in zip(draws, coefficients, strict=True):
        if draw.kind is Direction.RANK1 and part.dim() == 2 and whole > 1 and width > 1:
            _add_rank1(part, c, draw, start, (rows, whole))
        elif draw.kind in (Direction.RANK1, Direction.SIGN):
            apply_runs_(part, runs, c, draw.seed, draw.stream)
        else:
            for run, first in runs:
                _add_normal(part[run], c * draw.stretch, draw, first)
    return part


def _dense(draw: Draw, tensor: Tensor) -> bool:
    """Whether the direction is plain signs: also the rank-one one of a vector, where u or v is a single sign."""
    return draw.kind is Direction.SIGN or (draw.kind is Direction.RANK1 and (tensor.dim() != 2 or 1 in tensor.shape))


def _add_rank1(
    tensor: Tensor, coefficient: float, draw: Draw, start: int, of: tuple[Tensor | slice, int] | None = None
) -> None:
    """Of the elements that a matrix owns in the stream, the first are u, one a row, and the next v, one a column.

    `tensor` is the matrix, or it is those rows `of` one that has so many.
    """
    check_memory(tensor)
    c, (rows, whole) = rounded(tensor, [coefficient]).to(tensor.device), of or (slice(None), len(tensor))
    both = signs(draw.seed, draw.stream, start, whole + tensor.shape[1], device=tensor.device).to(tensor.dtype)
    if c != 0:
        tensor.detach().addr_(c * both[:whole][rows], both[whole:])


def _add_normal(tensor: Tensor, coefficient: float, draw: Draw, start: int) -> None:
    check_memory(tensor)
    flat = tensor.detach().contiguous().view(-1)
    for at in range(0, flat.numel(), PIECE):
        part = flat[at : at + PIECE]
        z = normals(draw.seed, draw.stream, start + at, part.numel())
        part += (coefficient * z.double()).to(flat.device, flat.dtype)
    if not tensor.is_contiguous():
        tensor.detach().copy_(flat.view(tensor.shape))


def normals(seed: int, stream: int, start: int, count: int) -> Tensor:
    """Standard normal elements `start` … of a stream: float32 (count,), in any chunks the same on one machine.

    Words (a, b) of the generator make two: r cos φ and r sin φ with r = √(−2 ln((a + 1) 2⁻³²)), φ = 2π b 2⁻³², in
    float64. Element i takes words of block i div 4.

    Raises:
        CotuneError: E_SEED, E_COUNT as `signs`.
    """
    check_stream([seed], [stream], start, count, end=2**64 * 4)
    begin, end = start // ALIGNED * ALIGNED, -(-(start + count) // ALIGNED) * ALIGNED
    keys, lanes = np.array([seed], np.uint64), np.array([stream], np.uint64)
    word = vectorised.words(keys, lanes, begin // 4, (end - begin) // 4).reshape(-1, 2).astype(np.float64)
    radius = np.sqrt(-2.0 * np.log((word[:, 0] + 1.0) / WORD))
    angle = word[:, 1] * (2.0 * np.pi / WORD)
    made = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype(np.float32).reshape(-1)
    return torch.from_numpy(made[start - begin : start - begin + count].copy())
