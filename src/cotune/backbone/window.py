"""A window on the softmax path: a token attends to the `window` latest tokens, itself among them, and to the first few.

What a token sees is decided in front of every attention layer, by its mask, whatever the kernel. Distance is counted
in tokens, so padding on any side takes no place in a window. With a window alone, generation keeps the last
window − 1 keys and values and no more.

Symbols: `q`, `k` numbers of query and key columns; column j of the keys is token j of the row, and the last q columns
are the queries' own.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cotune.backbone.layers import attention_layers, trunk
from cotune.core.errors import Code, CotuneError

if TYPE_CHECKING:
    from cotune.backbone.window_cache import WindowLayer


def limit_attention(model: Any, window: int, sinks: int, where: str) -> None:
    """Make every attention layer of a decoder see `window` tokens and the first `sinks`.

    Args:
        model: loaded, nothing attached.
        window: at least 2.
        sinks: first tokens of a row that stay visible; generation then keeps every key and value.
        where: how the user named the model.

    Raises:
        CotuneError: E_MODEL when the attention layers are not where they are expected.
    """
    sites = attention_layers(model)
    if len(sites) != model.config.num_hidden_layers:
        raise CotuneError(
            Code.MODEL,
            "cannot find every attention layer, so no window can be put on them",
            where=where,
            got=f"{len(sites)} layers",
            expected=model.config.num_hidden_layers,
            fix="leave backbone.window out",
        )
    for module in sites:
        module.register_forward_pre_hook(_Seen(window, sinks), with_kwargs=True)
    if not sinks:
        trunk(model).register_forward_pre_hook(_Sliding(window), with_kwargs=True)


def seen(valid: Tensor, queries: int, window: int, sinks: int) -> Tensor:
    """Which of `valid`'s (rows, k) columns each of the last `queries` sees: bool (rows, 1, q, k); an invalid one none.

    Token i of a row sees token j where 0 ≤ i − j < window, or j ≤ i and j < sinks; i and j count valid tokens from 0.
    """
    place = valid.long().cumsum(-1)
    at, of = place[:, -queries:, None], place[:, None, :]
    column = torch.arange(valid.shape[1], device=valid.device)
    past = column[-queries:, None] >= column
    near = at - of < window
    if sinks:
        near = near | (of <= sinks)
    return (past & near & valid[:, None, :])[:, None]


class _Seen:
    """In front of an attention layer: its mask, narrowed to the window."""

    def __init__(self, window: int, sinks: int) -> None:
        self.window, self.sinks = window, sinks

    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        hidden: Tensor = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        mask, kept = kwargs.get("attention_mask"), _kept(_cache(kwargs), module.layer_idx)
        rows, queries = hidden.shape[:2]
        valid = None
        if mask is not None:  # the last query stands behind every column, so what it may not see is padding
            last = mask[:, 0, -1]
            valid = last if last.dtype is torch.bool else last == 0
        if kept is not None:
            kept.arriving = None if valid is None else valid[:, -queries:]
            valid = kept.all_valid(rows, queries, hidden.device)
        elif valid is None:
            columns = (
                queries if (cache := _cache(kwargs)) is None else cache.get_mask_sizes(queries, module.layer_idx)[0]
            )
            valid = torch.ones(1, columns, dtype=torch.bool, device=hidden.device)
        allowed = seen(valid, queries, self.window, self.sinks).expand(rows, -1, -1, -1)
        if module.config._attn_implementation == "eager":
            closed = torch.finfo(hidden.dtype).min
            allowed = torch.zeros(allowed.shape, dtype=hidden.dtype, device=hidden.device).masked_fill(~allowed, closed)
        return args, {**kwargs, "attention_mask": allowed}


class _Sliding:
    """In front of the model: an empty cache gets layers that forget what no window will see again."""

    def __init__(self, window: int) -> None:
        self.window = window

    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        from transformers import DynamicCache

        from cotune.backbone.window_cache import WindowLayer

        cache, asked = _cache(kwargs), kwargs.get("use_cache")
        if asked is None:  # nothing is carried on from a pass that trains
            asked = module.config.use_cache and not torch.is_grad_enabled()
        if cache is None and asked:
            cache = DynamicCache()
            named = "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"
            kwargs = {**kwargs, named: cache}
        if isinstance(cache, DynamicCache) and cache.get_seq_length() == 0:
            cache.layers = [WindowLayer(self.window) for _ in range(module.config.num_hidden_layers)]
        return args, kwargs


def _cache(kwargs: dict[str, Any]) -> Any:
    """The cache among the arguments, whatever this version of transformers calls it."""
    from transformers import Cache

    return next((value for value in kwargs.values() if isinstance(value, Cache)), None)


def _kept(cache: Any, layer: int) -> WindowLayer | None:
    """What the window's own cache keeps of a layer; None for any other cache."""
    from cotune.backbone.window_cache import WindowLayer

    found = cache.layers[layer] if cache is not None and layer < len(cache.layers) else None
    return found if isinstance(found, WindowLayer) else None
