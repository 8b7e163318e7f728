"""Random inputs of a memory's rule, for tests that hold its forms against the definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from cotune.core.seeds import torch_generator
from cotune.trainable.memory.chunkwise import chunked
from cotune.trainable.memory.lean import lean

Form = Callable[..., tuple[Tensor, Tensor]]
Given = dict[str, Any]  # by name, None for what there is not
FORMS: list[Form] = [chunked, lean]
BATCH, HEADS, D_K, D_V = 2, 2, 6, 5


def drawn(
    seed: int,
    tokens: int,
    *,
    decays: bool = True,
    groups: int = 1,
    by_channel: bool = False,
    batch: int = BATCH,
    dtype: torch.dtype = torch.float64,
) -> Given:
    """Random inputs with unit keys and a state that is not zero."""
    g = torch_generator(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(batch, *shape, generator=g, dtype=torch.float64)

    def share(*shape: int) -> Tensor:
        return torch.rand(batch, *shape, generator=g, dtype=torch.float64)

    found = {
        "q": normal(HEADS * groups, tokens, D_K),
        "k": normalize(normal(HEADS, tokens, D_K), dim=-1),
        "v": normal(HEADS, tokens, D_V),
        "beta": share(HEADS, tokens, D_K) if by_channel else share(HEADS, tokens),
        "decay": share(HEADS, tokens),
        "state": normal(HEADS, D_V, D_K),
    }
    return {name: None if name == "decay" and not decays else x.to(dtype) for name, x in found.items()}


def followed(given: Given) -> Given:
    return {name: None if x is None else x.detach().clone().requires_grad_() for name, x in given.items()}
