"""Texts as token ids, and token ids as padded batches; what is padding is known by position, never by id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    for ids, special in _made(texts, tokenizer):
        truncated += len(ids) > limit
        rows.append(_cut(ids, special, limit) or [_filler(tokenizer, "bos", "eos", "unk", "pad")])
    return rows, truncated


def opened(texts: Sequence[str], tokenizer: Any) -> list[tuple[list[int], int]]:
    """(ids, how many of them are special tokens before the text) of each text; none of those behind it is there."""
    found = []
    for ids, special in _made(texts, tokenizer):
        behind = _behind(special)
        front = 0 if behind == len(ids) else _behind([*reversed(special)])
        found.append((ids[: len(ids) - behind], front))
    return found


def bare(text: str, tokenizer: Any) -> list[int]:
    """The ids of a text without any special token of the tokenizer's own."""
    return list(
        tokenizer(whole(text), add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
    )


def ended(ids: Sequence[int], tokenizer: Any) -> list[int]:
    """The ids and the end of text after them, once, where the tokenizer has such a token."""
    end = tokenizer.eos_token_id
    return [*ids, end] if end is not None and [*ids[-1:]] != [end] else [*ids]


def padded(rows: Sequence[Sequence[int]], tokenizer: Any, length: int = 0) -> Batch:
    """`input_ids` and `attention_mask` (rows, longest or `length`), long: each row, then padding with mask 0."""
    longest = max(length, *map(len, rows))
    filler = _filler(tokenizer, "pad", "eos")
    ids = [[*row, *[filler] * (longest - len(row))] for row in rows]
    mask = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def whole(text: str) -> str:
    """The text with U+FFFD in place of lone surrogates, which no tokenizer takes."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _made(texts: Sequence[str], tokenizer: Any) -> Iterator[tuple[list[int], Sequence[int]]]:
    """(ids, which of them are special tokens that the tokenizer added) of each text."""
    for start in range(0, len(texts), _AT_ONCE):
        some = [whole(text) for text in texts[start : start + _AT_ONCE]]
        made = tokenizer(some, return_special_tokens_mask=True, return_attention_mask=False, verbose=False)
        yield from zip(map(list, made["input_ids"]), made["special_tokens_mask"], strict=True)


def _cut(ids: list[int], special: Sequence[int], limit: int) -> list[int]:
    if len(ids) <= limit:
        return ids
    tail = _behind(special[-limit:])
    return ids[: limit - tail] + ids[len(ids) - tail :]


def _behind(special: Sequence[int]) -> int:
    """How many special tokens end a text."""
    return next((i for i, mark in enumerate(reversed(special)) if not mark), len(special))


def _filler(tokenizer: Any, *names: str) -> int:
    """The id of the first of these special tokens that the tokenizer has; 0 when it has none."""
    ids = (getattr(tokenizer, f"{name}_token_id", None) for name in names)
    return next((number for number in ids if number is not None), 0)
