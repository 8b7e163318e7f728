"""Texts as token ids, and token ids as padded batches; what is padding is known by position, never by id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cotune.core.contracts import Batch

_AT_ONCE = 1000  # texts that a tokenizer is given in one call


def encoded(texts: Sequence[str], tokenizer: Any, limit: int) -> tuple[list[list[int]], int]:
    """The ids of each text with its special tokens, at most `limit`, and how many texts were cut.

    A text is cut on its right, inside the special tokens that end it. A lone surrogate, which no tokenizer takes,
    becomes U+FFFD. A text that a tokenizer makes nothing of becomes one special token, so no row is empty.
    """
    rows: list[list[int]] = []
    truncated = 0
    for start in range(0, len(texts), _AT_ONCE):
        whole = [_whole(text) for text in texts[start : start + _AT_ONCE]]
        made = tokenizer(whole, return_special_tokens_mask=True, return_attention_mask=False, verbose=False)
        for ids, special in zip(made["input_ids"], made["special_tokens_mask"], strict=True):
            truncated += len(ids) > limit
            rows.append(_cut(list(ids), special, limit) or [_filler(tokenizer, "bos", "eos", "unk", "pad")])
    return rows, truncated


def padded(rows: Sequence[Sequence[int]], tokenizer: Any) -> Batch:
    """`input_ids` and `attention_mask` (rows, longest), long: each row, then padding with mask 0."""
    longest = max(len(row) for row in rows)
    filler = _filler(tokenizer, "pad", "eos")
    ids = [[*row, *[filler] * (longest - len(row))] for row in rows]
    mask = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def _whole(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _cut(ids: list[int], special: Sequence[int], limit: int) -> list[int]:
    if len(ids) <= limit:
        return ids
    tail = 0
    while tail < min(len(ids), limit) and special[len(ids) - 1 - tail]:
        tail += 1
    return ids[: limit - tail] + ids[len(ids) - tail :]


def _filler(tokenizer: Any, *names: str) -> int:
    """The id of the first of these special tokens that the tokenizer has; 0 when it has none."""
    ids = (getattr(tokenizer, f"{name}_token_id", None) for name in names)
    return next((number for number in ids if number is not None), 0)
