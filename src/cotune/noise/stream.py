"""Signs of a stream, and how they are added to a tensor: the same bits by every path, in any chunks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from cotune.core.errors import Code, CotuneError
from cotune.noise import anywhere, vectorised
from cotune.noise.philox import BLOCK, END

# How the bits are computed; they never differ. None takes the fastest that is there.
Path = Literal["compiled", "numpy", "torch"]
ARRAYS = (torch.float32, torch.float64)  # dtypes that NumPy and machine code compute with


def signs(
    seed: int, stream: int, start: int, count: int, *, device: torch.device | str = "cpu", path: Path | None = None
) -> Tensor:
    """Elements `start` … `start + count − 1` of a stream: int8 (count,), each −1 or +1.

    Args:
        seed: 64 bits.
        stream: 64 bits: block · 2³² + direction.
        start: the first element, up to 2⁷¹.
        count: how many.
        device: of the result.
        path: how.

    Raises:
        CotuneError: E_SEED for a seed or stream that is no unsigned 64-bit integer; E_COUNT outside the stream.
    """
    check_stream([seed], [stream], start, count)
    device = torch.device(device)
    skip, first = start % BLOCK, start // BLOCK
    blocks = -(-(skip + count) // BLOCK)
    if (path or _path(device, torch.float32)) == "torch":
        table = anywhere.meant(torch.tensor(1, dtype=torch.int8, device=device))
        octets = anywhere.octets(seed, stream, first, blocks, device)
        return table[octets].view(-1)[skip : skip + count].clone()
    made = _arrays(path).words(np.array([seed], np.uint64), np.array([stream], np.uint64), first, blocks)
    return torch.from_numpy(vectorised.signs(made)[skip : skip + count].copy()).to(device)


def apply_(
    tensor: Tensor, coefficient: float, seed: int, stream: int, start: int = 0, *, path: Path | None = None
) -> Tensor:
    """`tensor += coefficient · sign`, in place, one rounding an element; the coefficient is rounded to the dtype first.

    Args:
        tensor: of any floating dtype, shape and device; element i in C order takes the stream's element `start + i`.
        coefficient: finite; zero leaves every bit as it is, also that of −0.
        seed: 64 bits.
        stream: 64 bits: block · 2³² + direction.
        start: the first element.
        path: how.

    Raises:
        CotuneError: E_SEED, E_COUNT as `signs`; E_SCALAR for a coefficient that is not finite in the dtype; E_DTYPE for
            a tensor that is not floating; E_SHAPE for one whose elements share memory.
    """
    return apply_many_(tensor, [coefficient], [seed], [stream], start, path=path)


def apply_many_(
    tensor: Tensor,
    coefficients: Sequence[float],
    seeds: Sequence[int],
    streams: Sequence[int],
    start: int = 0,
    *,
    path: Path | None = None,
) -> Tensor:
    """Bit for bit what `apply_` makes one direction after another, in one pass over the tensor.

    Args:
        tensor: as for `apply_`.
        coefficients: one a direction, in the order in which they are added to each element.
        seeds: one a direction.
        streams: one a direction.
        start: the first element, the same of every stream.
        path: how.

    Raises:
        CotuneError: as `apply_`; E_COUNT where the lists differ in length.
    """
    each = rounded(tensor, coefficients)
    if not len(each) == len(seeds) == len(streams):
        got = f"{len(each)}, {len(seeds)} and {len(streams)}"
        raise CotuneError(Code.COUNT, "coefficients, seeds and streams differ in number", where="noise", got=got)
    check_stream(seeds, streams, start, tensor.numel())
    check_memory(tensor)
    used = [i for i, c in enumerate(each.tolist()) if c]
    if not used or not tensor.numel():
        return tensor
    if len(used) < len(each):
        each, seeds, streams = each[used], [seeds[i] for i in used], [streams[i] for i in used]
    flat = tensor.detach().contiguous().view(-1)
    path = path or _path(tensor.device, tensor.dtype)
    if path == "torch":
        anywhere.add(flat, each.to(tensor.device), seeds, streams, start)
    else:
        keys, lanes = np.array(seeds, np.uint64), np.array(streams, np.uint64)
        _arrays(path).add(flat.numpy(), each.numpy(), keys, lanes, start)
        if not tensor.is_inference():  # autograd sees what NumPy wrote
            torch.autograd.graph.increment_version(tensor)
    if not tensor.is_contiguous():
        tensor.detach().copy_(flat.view(tensor.shape))
    return tensor


def apply_runs_(
    rows: Tensor,
    runs: Sequence[tuple[slice, int]],
    coefficient: float,
    seed: int,
    stream: int,
    *,
    path: Path | None = None,
) -> Tensor:
    """`rows[run] += coefficient · sign`, in place, for each run of rows: bit for bit what `apply_` makes of it.

    Args:
        rows: (rows, …), as for `apply_`.
        runs: which rows, and the stream's element that the first number of them takes.
        coefficient: as for `apply_`.
        seed: 64 bits.
        stream: 64 bits.
        path: how.

    Raises:
        CotuneError: as `apply_`.
    """
    check_stream([seed], [stream], 0, 0)
    path = path or _path(rows.device, rows.dtype)
    if path == "torch" or not rows.is_contiguous():
        for run, start in runs:
            apply_(rows[run], coefficient, seed, stream, start, path=path)
        return rows
    each, arrays = rounded(rows, [coefficient]).numpy(), rows.detach().numpy()
    keys, lanes, add = np.array([seed], np.uint64), np.array([stream], np.uint64), _arrays(path).add
    for run, start in runs:
        flat = arrays[run].reshape(-1)
        check_stream([seed], [stream], start, len(flat))
        if each[0] != 0:
            add(flat, each, keys, lanes, start)
    if not rows.is_inference():
        torch.autograd.graph.increment_version(rows)
    return rows


def _path(device: torch.device, dtype: torch.dtype) -> Path:
    if device.type != "cpu" or dtype not in ARRAYS:
        return "torch"
    return "compiled" if _compiles() else "numpy"


@cache
def _compiles() -> bool:
    """Whether the extra `fast` is installed: looked up once, since a search through every folder takes long."""
    return find_spec("numba") is not None


def _arrays(path: Path | None) -> ModuleType:
    """The module that computes by a path on arrays."""
    return import_module("cotune.noise.compiled") if path == "compiled" else vectorised


def rounded(tensor: Tensor, coefficients: Sequence[float]) -> Tensor:
    """The coefficients in the dtype of the tensor, (directions,), on the CPU."""
    if not tensor.dtype.is_floating_point:
        raise CotuneError(Code.DTYPE, "directions are added to floating numbers only", where="noise", got=tensor.dtype)
    wide = [float(c) for c in coefficients]
    rounded = torch.tensor(wide, dtype=torch.float64).to(tensor.dtype)
    for c, arrived in zip(wide, rounded.tolist(), strict=True):
        if not math.isfinite(arrived):
            expected = f"a finite {tensor.dtype}"
            raise CotuneError(Code.SCALAR, "a coefficient is not finite", where="noise", got=c, expected=expected)
    return rounded


def check_stream(seeds: Sequence[int], streams: Sequence[int], start: int, count: int, end: int = END) -> None:
    """Raise E_SEED or E_COUNT for what no stream has."""
    for what, numbers in (("seed", seeds), ("stream", streams)):
        for number in numbers:
            if not 0 <= number < 2**64:
                raise CotuneError(
                    Code.SEED,
                    f"a {what} is an unsigned 64-bit integer",
                    where="noise",
                    got=number,
                    expected="0 … 2⁶⁴−1",
                )
    if start < 0 or count < 0 or start + count > end:
        got = f"{count} elements from {start}"
        raise CotuneError(Code.COUNT, "outside the stream", where="noise", got=got, expected=f"0 … {end}")


def check_memory(tensor: Tensor) -> None:
    """Raise E_SHAPE for a tensor in which one number stands at several places."""
    if any(step == 0 and side > 1 for side, step in zip(tensor.shape, tensor.stride(), strict=True)):
        raise CotuneError(
            Code.SHAPE, "elements of the tensor share memory", where="noise", got="an expanded tensor", fix="clone it"
        )
