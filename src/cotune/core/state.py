"""The four kinds of state, as four types: what may travel is decided by type, never by a name prefix.

| type | trained | leaves the client | on disk |
|---|---|---|---|
| Theta | yes | yes, float32 | server checkpoints |
| Personal | yes | never | the client's folder |
| Private | a part's own numbers (control variate, surrogate, mixing weights) | never | the client's folder |
| Session | memory written at inference | never | never |
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import NoReturn, Self

import safetensors.torch
import torch
from torch import Tensor

from cotune.core.errors import Code, CotuneError


class Named(Mapping[str, Tensor]):
    """Named tensors as an immutable value, never written in place but by a step whose view alone holds them."""

    __slots__ = ("_tensors",)

    def __init__(self, tensors: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] = ()) -> None:
        self._tensors: dict[str, Tensor] = dict(tensors)

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} tensors, {self.numel} numbers)"

    @property
    def numel(self) -> int:
        """How many numbers."""
        return sum(tensor.numel() for tensor in self._tensors.values())

    def replace(self, tensors: Mapping[str, Tensor]) -> Self:
        """The same names with some tensors exchanged; an unknown name is our own bug, so it is a KeyError."""
        unknown = [name for name in tensors if name not in self._tensors]
        if unknown:
            raise KeyError(f"no tensor named {unknown[0]}")
        return type(self)({name: tensors.get(name, old) for name, old in self._tensors.items()})

    def select(self, names: Iterable[str]) -> Self:
        """Only `names`, in their order."""
        return type(self)({name: self._tensors[name] for name in names})

    def sha256(self) -> str:
        """The digest of names, dtypes, shapes and bytes, in the order of the names."""
        return digest(self._tensors)


class Theta(Named):
    """The trained tensors that travel, float32: what the server aggregates."""


class Personal(Named):
    """Trained tensors that stay with their client and are checkpointed there."""


class Private(Named):
    """A client part's own numbers between rounds; they stay."""


class Session:
    """State written at inference: it can neither be pickled, nor copied, nor packed, nor printed with its values."""

    __slots__ = ()

    def _refuse(self, *_: object) -> NoReturn:
        raise CotuneError(
            Code.CONFLICT,
            "session memory never leaves its process",
            where=type(self).__name__,
            fix="keep it in the session, and call reset() to forget it",
        )

    __reduce__ = _refuse
    __reduce_ex__ = _refuse
    __getstate__ = _refuse
    __copy__ = _refuse
    __deepcopy__ = _refuse

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


def from_bytes(data: bytes) -> dict[str, Tensor]:
    """The tensors of safetensors bytes, each in memory of its own.

    They are copied out of the buffer, whose parts lie at any address: math libraries promise the same bits only for the
    same alignment, and the same theta must train the same wherever it was read from.
    """
    return {name: tensor.clone() for name, tensor in safetensors.torch.load(data).items()}


def to_bytes(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Named tensors as safetensors bytes."""
    data: bytes = safetensors.torch.save(apart(tensors), metadata)
    return data


def raw(tensor: Tensor) -> bytes:
    """The bytes of a tensor in C order, whatever its dtype (bfloat16 has no NumPy form)."""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as safetensors takes them: on the CPU, in C order, each with memory of its own."""
    packed, seen = {}, set()
    for name, tensor in tensors.items():
        plain = tensor.detach().to("cpu").contiguous()
        memory = plain.untyped_storage().data_ptr()
        packed[name] = plain.clone() if memory in seen else plain
        seen.add(memory)
    return packed


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over (name, dtype, shape, bytes), names sorted, as 64 hex digits."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        escaped = name.replace("|", "||")  # where a name ends is never in doubt
        total.update(f"{escaped}|{tensor.dtype}|{tuple(tensor.shape)}|".encode("utf-8", "surrogatepass"))
        total.update(raw(tensor))
    return total.hexdigest()
