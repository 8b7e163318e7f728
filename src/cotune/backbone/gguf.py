"""GGUF files: what they say about a model, and their tensors in float32, read in one pass without another library.

Read are little-endian files of version 2 or 3 whose tensors are F32, Q8_0 or Q4_1. A quantised tensor is blocks of 32
numbers: Q8_0 is `d · q` with q in −128…127, Q4_1 is `d · q + m` with q in 0…15; d and m are float16, and each sum and
product is rounded to float32 once. The first half of a Q4_1 block lies in the low halves of its 16 bytes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cotune.core.errors import Code, CotuneError

Floats = NDArray[np.float32]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_BLOCK = 32
_F32, _Q4_1, _Q8_0 = 0, 3, 8
_KINDS = {
    _F32: np.dtype([("x", "<f4", _BLOCK)]),
    _Q4_1: np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", _BLOCK // 2)]),
    _Q8_0: np.dtype([("d", "<f2"), ("q", "i1", _BLOCK)]),
}


@dataclass(frozen=True)
class Entry:
    """A row of the table of tensors.

    Attributes:
        shape: as PyTorch counts, the last dimension contiguous.
        kind: the number of its encoding.
        start: of its first byte in the file.
    """

    shape: tuple[int, ...]
    kind: int
    start: int


class GGUF:
    """An open GGUF file.

    Attributes:
        says: the metadata by key.
        table: name -> where its tensor is, in the order of the file.
    """

    says: Mapping[str, Any]
    table: Mapping[str, Entry]

    def __init__(self, path: Path) -> None:
        """Read everything but the tensors.

        Raises:
            CotuneError: E_MODEL for what is no such file, one that ends early, or a tensor of another encoding.
        """
        self._path = path
        try:
            self._bytes = np.memmap(path, np.uint8, "r")
            self._read(_Cursor(self._bytes))
        except (struct.error, ValueError, KeyError, ArithmeticError) as error:
            raise self._refuse("the file is damaged", repr(error)) from error

    def _read(self, cursor: _Cursor) -> None:
        magic, version = cursor.take("4sI")
        if magic != _MAGIC or version not in _VERSIONS:
            raise self._refuse("no GGUF file that can be read", f"{magic!r} version {version}")
        tensors, pairs = cursor.take("QQ")
        self.says = dict(cursor.pair() for _ in range(pairs))
        rows = [cursor.row() for _ in range(tensors)]
        grain = int(self.says.get("general.alignment", 32))
        base = -(-cursor.at // grain) * grain
        self.table = {name: Entry(shape, kind, base + offset) for name, shape, kind, offset in rows}
        for name, entry in self.table.items():
            if entry.kind not in _KINDS:
                raise self._refuse(f"tensor {name} has an encoding that is not read", str(entry.kind))
            if entry.kind != _F32 and entry.shape[-1] % _BLOCK:
                raise self._refuse(f"tensor {name} is not made of whole blocks", str(entry.shape))
            if entry.start + self._size(entry) > len(self._bytes):
                raise self._refuse(f"the file ends within tensor {name}", f"{len(self._bytes)} bytes")

    def tensor(self, name: str) -> Floats:
        """The tensor `name` in float32, in memory of its own."""
        entry = self.table[name]
        content = self._bytes[entry.start : entry.start + self._size(entry)]
        if entry.kind == _F32:
            return content.view("<f4").astype(np.float32).reshape(entry.shape)
        blocks = content.view(_KINDS[entry.kind])
        scale = blocks["d"].astype(np.float32)[:, None]
        if entry.kind == _Q8_0:
            return (scale * blocks["q"].astype(np.float32)).reshape(entry.shape)
        halves = np.concatenate([blocks["q"] & 15, blocks["q"] >> 4], axis=1).astype(np.float32)
        return (scale * halves + blocks["m"].astype(np.float32)[:, None]).reshape(entry.shape)

    def _size(self, entry: Entry) -> int:
        """Bytes of a tensor."""
        return math.prod(entry.shape) * _KINDS[entry.kind].itemsize // _BLOCK

    def _refuse(self, what: str, got: str) -> CotuneError:
        return CotuneError(Code.MODEL, what, where=self._path.name, got=got, expected="GGUF with F32, Q4_1 or Q8_0")


class _Cursor:
    """A place in the header of a file."""

    def __init__(self, content: NDArray[np.uint8]) -> None:
        self._content = content.data
        self.at = 0

    def take(self, form: str) -> tuple[Any, ...]:
        """The next values of a struct format."""
        found = struct.unpack_from(f"<{form}", self._content, self.at)
        self.at += struct.calcsize(f"<{form}")
        return found

    def text(self) -> str:
        """The next string."""
        (length,) = self.take("Q")
        if length > len(self._content) - self.at:
            raise struct.error(f"a string of {length} bytes")
        found = bytes(self._content[self.at : self.at + length]).decode()
        self.at += length
        return found

    def pair(self) -> tuple[str, Any]:
        """The next key of the metadata and its value."""
        key = self.text()
        (kind,) = self.take("I")
        return key, self._value(kind)

    def row(self) -> tuple[str, tuple[int, ...], int, int]:
        """The next row of the table: name, shape, encoding and the offset among the tensors."""
        name = self.text()
        (rank,) = self.take("I")
        *shape, kind, offset = self.take(f"{rank}QIQ")
        return name, tuple(reversed(shape)), kind, offset

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            return self.take(_SCALARS[kind])[0]
        inner, count = self.take("IQ")
        if count > len(self._content) - self.at:
            raise struct.error(f"an array of {count} values")
        return [self._value(inner) for _ in range(count)] if inner in (_STRING, _ARRAY) else self._row(inner, count)

    def _row(self, kind: int, count: int) -> list[Any]:
        return list(self.take(f"{count}{_SCALARS[kind]}"))
