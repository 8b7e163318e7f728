"""Put memories beside the attention layers of a model, and tell every layer what a forward pass is about."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cotune.core.contracts import Attachable
from cotune.core.errors import Code, CotuneError
from cotune.trainable.memory.fused import check_installed, check_kernel, fused
from cotune.trainable.memory.layer import ARGUMENT, MemoryLayer, Pass
from cotune.trainable.memory.options import Rules
from cotune.trainable.memory.session import MemorySession, cache_argument
from cotune.trainable.memory.sites import sites

CHILD = "memory"  # the name of a memory in its attention layer, and so in the names of its rules


def attach(backbone: Attachable, rules: Rules) -> dict[str, MemoryLayer]:
    """Module name -> the memory put there, in the model's order; once for a model.

    Raises:
        CotuneError: E_CONFLICT where memories are attached already; E_MODEL for an encoder, an unknown layout, or a
            fused kernel that is not there or not right.
    """
    model: Any = backbone.model
    if any(isinstance(module, MemoryLayer) for module in model.modules()):
        raise CotuneError(Code.CONFLICT, "the backbone has a memory already", fix="load it again for another run")
    found = {}
    device = next(model.parameters()).device
    if rules.kernel == "fla" and device.type != "meta":
        check_installed(device)
        check_kernel(fused, device)
    for site in sites(backbone):
        module = model.get_submodule(site.name)
        memory = MemoryLayer(site, rules, next(module.parameters()).device)
        memory.eval()
        module.add_module(CHILD, memory)
        memory.attach(module)
        found[f"{site.name}.{CHILD}"] = memory
    backbone.trunk.register_forward_pre_hook(_Announce(model, backbone.trunk), with_kwargs=True)
    rotary = any(name.endswith("rotary_emb") for name, _ in model.named_modules())
    model.memory_session = partial(
        MemorySession, model, rules.cap, None if rotary else model.config.max_position_embeddings
    )
    return found


class _Announce:
    """In front of the model: what is padding, and which session goes on, as one more keyword for every layer."""

    def __init__(self, model: Any, trunk: Any) -> None:
        self.model = model
        self.known, self.named = tuple(inspect.signature(trunk.forward).parameters), cache_argument(trunk)

    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[()], dict[str, Any]]:
        from transformers import Cache, DynamicCache

        from cotune.trainable.memory.cache import MemoryCache

        kwargs = {**dict(zip(self.known, args, strict=False)), **kwargs}
        ids = kwargs["input_ids"] if kwargs.get("input_ids") is not None else kwargs["inputs_embeds"]
        named = next((name for name, value in kwargs.items() if isinstance(value, Cache)), self.named)
        cache = kwargs.get(named)
        asked = kwargs.get("use_cache")
        if asked is None:  # nothing is carried on from a pass that trains
            asked = module.config.use_cache and not torch.is_grad_enabled()
        session = cache.session if isinstance(cache, MemoryCache) else None
        if session is None and (cache is not None or asked):
            if cache is not None and not (type(cache) is DynamicCache and cache.get_seq_length() == 0):
                _refuse(cache)
            session = self.model.memory_session()
            if cache is not None:
                session.cache.layers = cache.layers
            kwargs[named] = session.cache
        if session is not None:
            session.saw(ids.shape[1])
        kwargs[ARGUMENT] = Pass(_valid(kwargs.get("attention_mask"), ids.shape[1]), session)
        return (), kwargs


def _valid(mask: Tensor | None, tokens: int) -> Tensor | None:
    """Which of the last `tokens` are no padding, bool (rows, tokens)."""
    if mask is None:
        return None
    if mask.dim() != 2:
        raise CotuneError(
            Code.SHAPE,
            "a memory needs to know which tokens are padding",
            where="attention_mask",
            got=f"{mask.dim()} axes",
            expected="(rows, tokens)",
        )
    return mask[:, -tokens:].bool()


def _refuse(cache: object) -> None:
    raise CotuneError(
        Code.CONFLICT,
        "the cache has no memory of what it has seen",
        where="past_key_values",
        got=type(cache).__name__,
        fix="pass **memory_session().arguments, or no cache",
    )
