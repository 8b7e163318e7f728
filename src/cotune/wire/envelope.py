"""Envelopes as bytes: safetensors with one fixed-width JSON header, never pickle.

The size of a message follows from its layout alone, so `size` predicts it exactly. Whatever a message claims is checked
against its limits before anything is allocated for it.

| bytes | what |
|---|---|
| 8 | length of the table, little endian |
| n | safetensors table: `__metadata__` holds the header, then one row a tensor, named `part/name` |
| rest | the tensors, and the metrics vector (float64) |
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import safetensors.torch
import torch

from cotune.core.contracts import Layouts
from cotune.core.errors import Code, CotuneError
from cotune.core.message import Envelope, Header, Kind, Limits, Parts
from cotune.core.state import from_bytes, to_bytes

VERSION = "01"
MAX_TABLE_BYTES = 64 * 2**20
METRICS = "metrics"

# torch name -> (safetensors name, bytes, rank in the table: safetensors writes wide types first)
_DTYPES: Mapping[str, tuple[str, int, int]] = {
    "bool": ("BOOL", 1, 0),
    "uint8": ("U8", 1, 1),
    "int8": ("I8", 1, 2),
    "int16": ("I16", 2, 3),
    "float16": ("F16", 2, 4),
    "bfloat16": ("BF16", 2, 5),
    "int32": ("I32", 4, 6),
    "float32": ("F32", 4, 7),
    "float64": ("F64", 8, 8),
    "int64": ("I64", 8, 9),
}
_NAMES = {row[0]: name for name, row in _DTYPES.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """'float32' for torch.float32."""
    return str(dtype).removeprefix("torch.")


def layouts(envelope: Envelope) -> Layouts:
    """The content of a message at hand: by part and name, (dtype, shape)."""
    return layouts_of(envelope.parts)


def layouts_of(parts: Parts) -> Layouts:
    """The content of parts at hand."""
    return {
        part: {name: (dtype_name(tensor.dtype), tuple(tensor.shape)) for name, tensor in tensors.items()}
        for part, tensors in parts.items()
    }


def encode(envelope: Envelope) -> bytes:
    """The message as bytes; the same envelope gives the same bytes.

    Raises:
        CotuneError: E_DTYPE for something that is no dense tensor of a known dtype, or no number, with its name.
    """
    tensors = {}
    for part, named in envelope.parts.items():
        for name, tensor in named.items():
            known = isinstance(tensor, torch.Tensor) and dtype_name(tensor.dtype) in _DTYPES
            if not known or tensor.layout is not torch.strided:
                got = dtype_name(tensor.dtype) if isinstance(tensor, torch.Tensor) else type(tensor).__name__
                raise CotuneError(Code.DTYPE, "cannot be sent", where=f"{part}/{name}", got=got)
            tensors[f"{part}/{name}"] = tensor
    try:
        tensors[METRICS] = torch.tensor(envelope.metrics, dtype=torch.float64)
    except (ValueError, TypeError, OverflowError) as error:
        raise CotuneError(Code.DTYPE, "cannot be sent", where=METRICS, got=str(error), expected="numbers") from error
    return to_bytes(tensors, {"cotune": _dump(envelope.header)})


def readdressed(message: bytes, old: Header, new: Header) -> bytes:
    """`encode` of the content of `message` under another header, without packing the content again.

    Headers have one width and come first in the table, so nothing else moves.
    """
    here, there = (json.dumps(_dump(header)).encode() for header in (old, new))
    return message.replace(here, there, 1)


def decode(data: bytes, limits: Limits) -> Envelope:
    """The envelope behind `data`.

    Raises:
        CotuneError: E_SIZE over the limit, E_TRUNC when bytes are missing, E_FORMAT when it is no message of ours,
            E_VERSION of another protocol, E_KEYS, E_DTYPE or E_SHAPE when the content is not the one announced. All are
            found before a tensor is allocated.
    """
    _check_size(data, limits)
    header, found = _table(data)
    metrics = found.pop(METRICS, None)
    if metrics is None or metrics[0] != "float64" or len(metrics[1]) != 1:
        raise CotuneError(Code.FORMAT, "message has no metrics vector")
    if limits.metrics is not None and metrics[1] != (limits.metrics,):
        raise CotuneError(Code.SHAPE, "wrong number of metrics", got=metrics[1][0], expected=limits.metrics)
    if limits.layout is not None:
        _compare(found, limits.layout)
    try:
        tensors = from_bytes(data)
    except (safetensors.SafetensorError, ValueError, RuntimeError) as error:
        raise CotuneError(Code.FORMAT, "not a message: its tensors cannot be read", got=type(error).__name__) from error
    values = tuple(tensors.pop(METRICS).tolist())
    parts: dict[str, dict[str, torch.Tensor]] = {part: {} for part in limits.layout or {}}
    for name in found:  # in the table's order; safetensors has none
        part, _, inner = name.partition("/")
        parts.setdefault(part, {})[inner] = tensors[name]
    return Envelope(header, parts, values)


def peek(data: bytes, limits: Limits) -> tuple[Header, Layouts]:
    """Header and content of a message that is whole and of allowed size; no tensor is allocated.

    Raises:
        CotuneError: E_SIZE, E_TRUNC, E_FORMAT or E_VERSION, as `decode` does.
    """
    _check_size(data, limits)
    header, found = _table(data)
    content: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {}
    for name, row in found.items():
        part, separator, inner = name.partition("/")
        if separator:
            content.setdefault(part, {})[inner] = row
    return header, content


def _check_size(data: bytes, limits: Limits) -> None:
    if len(data) > limits.bytes:
        raise CotuneError(Code.SIZE, "message too large", got=f"{len(data)} bytes", expected=f"at most {limits.bytes}")


def payload(content: Layouts) -> dict[tuple[str, str], int]:
    """Bytes of each tensor, by (part, name)."""
    return {
        (part, name): _bytes(dtype, shape) for part, rows in content.items() for name, (dtype, shape) in rows.items()
    }


def size(content: Layouts, metrics: int) -> tuple[int, int]:
    """(payload, framing) bytes of a message with this content; their sum is `len(encode(...))`."""
    rows = [(f"{part}/{name}", *row) for part, layout in content.items() for name, row in layout.items()]
    rows.append((METRICS, "float64", (metrics,)))
    table: dict[str, Any] = {"__metadata__": {"cotune": _dump(_BLANK)}}
    offset = 0
    for name, dtype, shape in sorted(rows, key=lambda row: (-_DTYPES[row[1]][2], row[0].encode())):
        end = offset + _bytes(dtype, shape)
        table[name] = {"dtype": _DTYPES[dtype][0], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    length = len(json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode())
    return sum(payload(content).values()), 8 + -(-length // 8) * 8 + 8 * metrics


def _bytes(dtype: str, shape: tuple[int, ...]) -> int:
    count = _DTYPES[dtype][1]
    for side in shape:
        count *= side
    return count


_BLANK = Header(Kind.TRAIN, "0" * 16, "0" * 16, 0, 0, "0" * 16, "0" * 64)


def _dump(header: Header) -> str:
    """The header as JSON in which every field has its own fixed width."""
    return json.dumps(
        {
            "version": VERSION,
            "kind": f"{header.kind.value:<8}",
            "run": header.run,
            "client": header.client,
            "round": f"{header.round:+011d}",
            "accepted": f"{header.accepted:+011d}",
            "spec": header.spec,
            "base": header.base,
            "rows": f"{header.rows:+020d}",
            "rate": struct.pack(">d", header.rate).hex(),
            "deadline": struct.pack(">d", header.deadline).hex(),
            "seed": f"{header.seed:016x}",
        },
        separators=(",", ":"),
    )


_WIDTHS = {name: len(value) for name, value in json.loads(_dump(_BLANK)).items()}


def _parse(text: object) -> Header:
    try:
        raw = json.loads(text) if isinstance(text, str) and len(text) < 4096 else None
        if not isinstance(raw, dict) or not all(isinstance(value, str) for value in raw.values()):
            raise ValueError("not a table of texts")
        if raw.get("version") != VERSION:
            raise CotuneError(
                Code.VERSION,
                "message of another protocol version",
                got=str(raw.get("version")),
                expected=VERSION,
                fix="install the same cotune on both sides",
            )
        if {name: len(value) for name, value in raw.items()} != _WIDTHS:
            raise ValueError("a field of another width")
        header = Header(
            kind=Kind(raw["kind"].strip()),
            run=raw["run"],
            client=raw["client"],
            round=int(raw["round"]),
            accepted=int(raw["accepted"]),
            spec=raw["spec"],
            base=raw["base"],
            rows=int(raw["rows"]),
            rate=struct.unpack(">d", bytes.fromhex(raw["rate"]))[0],
            deadline=struct.unpack(">d", bytes.fromhex(raw["deadline"]))[0],
            seed=int.from_bytes(bytes.fromhex(raw["seed"])),
        )
        if _dump(header) != text:
            raise ValueError("not written as we write it")
        return header
    except (ValueError, RecursionError, struct.error) as error:
        raise CotuneError(Code.FORMAT, "message header cannot be read", got=str(error)) from error


Found = dict[str, tuple[str, tuple[int, ...]]]


def _table(data: bytes) -> tuple[Header, Found]:
    """Header, and name -> (dtype, shape), after checking that the tensors tile the rest of the message."""
    if len(data) < 8:
        raise CotuneError(Code.TRUNCATED, "message ends in its first bytes", got=f"{len(data)} bytes")
    (length,) = struct.unpack("<Q", data[:8])
    if length > MAX_TABLE_BYTES:
        raise CotuneError(Code.FORMAT, "not a message: its table would be too long", got=f"{length} bytes")
    if length > len(data) - 8:
        raise CotuneError(Code.TRUNCATED, "message ends within its table", got=f"{len(data)} bytes")
    try:
        table = json.loads(data[8 : 8 + length], object_pairs_hook=_unique)
        header = _parse(table.pop("__metadata__")["cotune"])
        found: Found = {}
        spans = []
        for name, row in table.items():
            dtype, shape, (start, end) = _NAMES[row["dtype"]], tuple(row["shape"]), row["data_offsets"]
            if not all(type(side) is int and side >= 0 for side in (*shape, start, end)):
                raise ValueError("a side is no count")
            if name != METRICS and "/" not in name:
                raise ValueError("a tensor outside every part")
            if end - start != _bytes(dtype, shape):
                raise CotuneError(Code.TRUNCATED, "tensor claims other bytes than it has", where=name, got=end - start)
            found[name] = (dtype, shape)
            spans.append((start, end))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CotuneError(Code.FORMAT, "not a message: its table cannot be read", got=type(error).__name__) from error
    position = 0
    for start, end in sorted(spans):
        if start != position:
            raise CotuneError(Code.FORMAT, "tensors overlap or leave a gap", got=f"byte {start}", expected=position)
        position = end
    if position != len(data) - 8 - length:
        raise CotuneError(
            Code.TRUNCATED, "message ends early or late", got=f"{len(data) - 8 - length} bytes", expected=position
        )
    return header, found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key twice")
    return table


def _compare(found: Found, layout: Layouts) -> None:
    expected = {f"{part}/{name}": row for part, rows in layout.items() for name, row in rows.items()}
    for what, names in (("missing", expected.keys() - found.keys()), ("unexpected", found.keys() - expected.keys())):
        if names:
            listed = ", ".join(sorted(names)[:5])
            raise CotuneError(
                Code.KEYS, f"{len(names)} {what} tensors", where=listed, expected=f"{len(expected)} names"
            )
    for name, (dtype, shape) in expected.items():
        if found[name][0] != dtype:
            raise CotuneError(Code.DTYPE, "wrong dtype", where=name, got=found[name][0], expected=dtype)
        if found[name][1] != shape:
            raise CotuneError(Code.SHAPE, "wrong shape", where=name, got=found[name][1], expected=shape)
