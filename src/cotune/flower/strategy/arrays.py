"""Flower's arrays as tensors and back, and the checks that a reply's arrays must pass before anything is allocated.

Flower carries an array as the bytes of `numpy.save` and checks nothing in it: a wrong shape broadcasts, a NaN spreads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from cotune.core.contracts import Layout
from cotune.core.errors import Code, CotuneError

NUMPY = "numpy.ndarray"  # how Flower calls the one form of an array that can be read


def layout_of(record: ArrayRecord) -> Layout:
    """Name -> (dtype, shape), as the arrays themselves say.

    Raises:
        CotuneError: as `read` for arrays that cannot be read.
    """
    return {name: _header(name, array)[:2] for name, array in record.items()}


def tensors_of(record: ArrayRecord) -> dict[str, Tensor]:
    """Every array as a tensor of its own dtype, in memory of its own.

    Raises:
        CotuneError: as `read`.
    """
    return read(record, layout_of(record))


def read(record: ArrayRecord, layout: Layout, shorter: Mapping[str, int] | None = None) -> dict[str, Tensor]:
    """The arrays as tensors, by the names and in the order of the layout.

    Args:
        record: of somebody who may send anything.
        layout: what it must be.
        shorter: name -> the axis along which an array may have fewer numbers, but one at least.

    Raises:
        CotuneError: E_KEYS, E_DTYPE or E_SHAPE where it is something else; E_FORMAT for bytes that are no array;
            E_TRUNC for too few or too many of them; E_NONFINITE.
    """
    missing, more = (
        [name for name in layout if name not in record],
        len([name for name in record if name not in layout]),
    )
    if missing or more:
        what = f"{len(missing)} arrays are missing, and {more} were not asked for"
        raise CotuneError(Code.KEYS, what, where=", ".join(missing[:3]))
    for name, (dtype, shape) in layout.items():
        got, sides, *_ = _header(name, record[name])
        axis = (shorter or {}).get(name)
        if axis is not None and len(sides) == len(shape) and 0 < sides[axis] < shape[axis]:
            sides = (*sides[:axis], shape[axis], *sides[axis + 1 :])
        if got != dtype:
            raise CotuneError(Code.DTYPE, "an array of another dtype", where=name, got=got, expected=dtype)
        if sides != shape:
            raise CotuneError(Code.SHAPE, "an array of another shape", where=name, got=sides, expected=shape)
    return {name: _tensor(name, record[name]) for name in layout}


def record_of(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Tensors as Flower's arrays."""
    return ArrayRecord(
        {name: Array(tensor.detach().to("cpu").contiguous().numpy()) for name, tensor in tensors.items()}
    )


def _header(name: str, array: Array) -> tuple[str, tuple[int, ...], Any, bool, int]:
    """Dtype as a word, shape, dtype, whether columns come first, and where the numbers begin."""
    file = BytesIO(array.data)
    try:
        if array.stype != NUMPY:
            raise ValueError(array.stype)
        version = np.lib.format.read_magic(file)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, columns, dtype = reader(file)
    except Exception as error:  # NumPy's reader raises whatever its tokenizer and its parser do
        raise CotuneError(Code.FORMAT, "not an array", where=name, got=type(error).__name__) from error
    if dtype.kind not in "biuf" or not isinstance(getattr(torch, dtype.name, None), torch.dtype):
        raise CotuneError(Code.DTYPE, "not an array of numbers", where=name, got=f"kind {dtype.kind}")
    begin, size = file.tell(), math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or len(array.data) - begin != size:
        raise CotuneError(
            Code.TRUNCATED,
            "an array of another size",
            where=name,
            got=len(array.data) - begin,
            expected=f"{size} bytes",
        )
    return str(dtype), tuple(shape), dtype, bool(columns), begin


def _tensor(name: str, array: Array) -> Tensor:
    _, shape, dtype, columns, begin = _header(name, array)
    flat = np.frombuffer(array.data, dtype, offset=begin)
    tensor = torch.from_numpy(flat.reshape(shape, order="F" if columns else "C").copy(order="C")).clone()
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        raise CotuneError(Code.NONFINITE, "an array is not finite", where=name)
    return tensor
