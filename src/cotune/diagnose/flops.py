"""FLOPs by torch's own counter: the matrix products of what really runs."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from torch.utils.flop_counter import FlopCounterMode


class FlopMeter:
    """The FLOPs of things that cost the same whenever their key is the same; each is counted once."""

    def __init__(self) -> None:
        self._counted: dict[Hashable, int] = {}

    def count(self, key: Hashable, action: Callable[[], object]) -> int:
        """What `action` costs. It runs only to be counted: under the counter some models take other kernels."""
        if key not in self._counted:
            with FlopCounterMode(display=False) as counter:
                action()
            self._counted[key] = int(counter.get_total_flops())
        return self._counted[key]
