"""The keys and values that a window will see again: the last valid ones of every row, wherever padding was."""

from __future__ import annotations

from typing import Any

import torch
from torch import LongTensor, Tensor
from transformers.cache_utils import DynamicSlidingWindowLayer


class WindowLayer(DynamicSlidingWindowLayer):  # type: ignore[no-untyped-call]
    """A sliding layer in which padding takes no place: each row keeps its last window − 1 valid tokens.

    Attributes:
        valid: which kept columns are tokens, bool (rows, columns).
        arriving: the same of the tokens that the next update brings; None for all.
    """

    def __init__(self, window: int) -> None:
        super().__init__(sliding_window=window)
        self.valid: Tensor | None = None
        self.arriving: Tensor | None = None

    def all_valid(self, rows: int, tokens: int, device: torch.device) -> Tensor:
        """Which columns are tokens once `tokens` more have come (rows, kept + tokens)."""
        new = self.arriving
        if new is None:
            new = torch.ones(rows, tokens, dtype=torch.bool, device=device)
        return new if self.valid is None else torch.cat([self.valid, new], 1)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The kept keys and values with the new ones behind them; then the last valid ones are kept."""
        rows, _, tokens, _ = key_states.shape
        valid, padded = self.all_valid(rows, tokens, key_states.device), self.arriving is not None
        keys, values = super().update(key_states, value_states, *args, **kwargs)
        kept = min(keys.shape[2], self.sliding_window - 1)
        if padded:
            # A stable sort by "is there" moves the valid columns to the right end and keeps their order.
            order = torch.argsort(valid.int(), dim=1, stable=True)[:, -kept:]
            at = order[:, None, :, None].expand(-1, keys.shape[1], -1, keys.shape[-1])
            self.keys, self.values, valid = keys.gather(2, at), values.gather(2, at), valid.gather(1, order)
        else:  # a copy: a view would keep all keys and values of the call
            self.keys, self.values = keys[:, :, -kept:].clone(), values[:, :, -kept:].clone()
        self.valid, self.arriving = valid[:, -kept:], None
        return keys, values

    def reorder_cache(self, beam_idx: LongTensor) -> None:
        """The rows at `beam_idx`."""
        super().reorder_cache(beam_idx)
        self._choose(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """The rows at `indices`."""
        super().batch_select_indices(indices)
        self._choose(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row `repeats` times."""
        super().batch_repeat_interleave(repeats)
        if self.valid is not None:
            self.valid = self.valid.repeat_interleave(repeats, dim=0)

    def _choose(self, rows: Tensor) -> None:
        if self.valid is not None:
            self.valid = self.valid[rows.to(self.valid.device)]
