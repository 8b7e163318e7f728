"""What is asked of any tokenizer: a padding token, ids that the model has rows for, a limit, and a digest."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from torch import nn

from cotune.core.errors import Code, CotuneError

UNLIMITED = 2**31


def pad(tokenizer: Any, where: str) -> int:
    """The id of the padding token, after giving one to a tokenizer without it: the end of text, or the unknown token.

    Padding goes to the right, where it changes no position.

    Raises:
        CotuneError: E_TOKENIZER when there is nothing to pad with.
    """
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    if tokenizer.pad_token_id is None:
        raise CotuneError(
            Code.TOKENIZER,
            "nothing to pad with",
            where=where,
            got="a tokenizer without pad, eos and unk tokens",
            fix="set tokenizer.pad_token and save the tokenizer",
        )
    tokenizer.padding_side = "right"
    return int(tokenizer.pad_token_id)


def check_rows(tokenizer: Any, rows: int, where: str) -> None:
    """Raise E_TOKENIZER when the tokenizer makes ids that the embedding has no row for."""
    ids = 1 + max(tokenizer.get_vocab().values())
    if ids > rows:
        raise CotuneError(
            Code.TOKENIZER,
            "the tokenizer is not this model's",
            where=where,
            got=f"ids up to {ids - 1}",
            expected=f"below {rows}, the rows of the embedding",
        )


def limit(tokenizer: Any, model: nn.Module, config: Any, most: int | None, *, windowed: bool = False) -> int:
    """The most tokens of one input: the least of what tokenizer, model and configuration allow.

    Where positions start after the padding id, as in RoBERTa, the first rows of their table are never used. Behind a
    window, rotary positions have no end: only the distance of two tokens that see each other counts.
    """
    if windowed and any(name.endswith("rotary_emb") for name, _ in model.named_modules()):
        return UNLIMITED if most is None else most
    positions = getattr(config, "max_position_embeddings", None)
    tables = [m for n, m in model.named_modules() if n.endswith("position_embeddings") and isinstance(m, nn.Embedding)]
    if positions is not None and tables and tables[0].padding_idx is not None:
        positions -= tables[0].padding_idx + 1
    return min(int(most) for most in (tokenizer.model_max_length, positions, most) if most is not None)


def digest(tokenizer: Any) -> str:
    """SHA-256 of what decides the ids, as 64 hex digits; padding and truncation of the moment are left out."""
    core = getattr(tokenizer, "backend_tokenizer", None)
    rules = json.loads(core.to_str()) if core is not None else sorted(tokenizer.get_vocab().items())
    if isinstance(rules, dict):
        rules = {key: value for key, value in rules.items() if key not in ("padding", "truncation")}
    text = json.dumps([rules, tokenizer.special_tokens_map], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
