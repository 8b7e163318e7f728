"""FLOPs by torch's own counter: the matrix products of what really runs."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch.utils import flop_counter
from torch.utils.flop_counter import FlopCounterMode

Shape = tuple[int, ...]


def counting() -> FlopCounterMode:
    """A counter that also knows the attention kernels of CPUs, which torch's own passes over."""
    aten = torch.ops.aten
    attention = {
        aten._scaled_dot_product_flash_attention_for_cpu: _attention,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    }
    return FlopCounterMode(display=False, custom_mapping=attention)


def _attention(q: Shape, k: Shape, v: Shape, *_: Any, **__: Any) -> int:
    return int(flop_counter.sdpa_flop_count(q, k, v))  # type: ignore[no-untyped-call]


def _attention_backward(gradient: Shape, q: Shape, k: Shape, v: Shape, *_: Any, **__: Any) -> int:
    return int(flop_counter.sdpa_backward_flop_count(gradient, q, k, v))  # type: ignore[no-untyped-call]


class FlopMeter:
    """The FLOPs of things that cost the same whenever their key is the same; each is counted once."""

    def __init__(self) -> None:
        self._counted: dict[Hashable, int] = {}

    def count(self, key: Hashable, action: Callable[[], object]) -> int:
        """What `action` costs. It runs only to be counted: under the counter some models take other kernels."""
        if key not in self._counted:
            with counting() as counter:
                action()
            self._counted[key] = int(counter.get_total_flops())
        return self._counted[key]
