"""The bytes of tensors that are alive at once, counted storage by storage: the same on every machine."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """`with LiveBytes(held) as live: ...; live.peak`: the most bytes of storage that were alive inside at one time.

    What a kernel needs for itself, and arrays that are no tensors, are not seen.

    Attributes:
        now: bytes of what was held before and of what has been made inside and is alive.
        peak: the most that `now` has been.
    """

    def __init__(self, held: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        storages = {(tensor.device, t.data_ptr()): t.nbytes() for tensor in held for t in [tensor.untyped_storage()]}
        self.now = self.peak = sum(storages.values())

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: object, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The operation, and a note of the storages that it has made."""
        del types
        given = {id(t.untyped_storage()) for t in tree_iter((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, Tensor) and id(storage := tensor.untyped_storage()) not in given:
                given.add(id(storage))
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._gone, storage.nbytes()).atexit = False
        return result

    def _gone(self, size: int) -> None:
        self.now -= size
