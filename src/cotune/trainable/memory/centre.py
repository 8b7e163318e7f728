"""Where the offsets of keys and queries start: at what is common to all of them on a public text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from cotune.trainable.memory.attach import CHILD
from cotune.trainable.memory.layer import MemoryLayer
from cotune.trainable.memory.sites import listen


def centres(model: nn.Module, windows: Sequence[Sequence[int]], device: str) -> dict[str, Tensor]:
    """`key_centre` and `query_centre` of every memory by name: the mean over the tokens of all windows, float32.

    Args:
        model: memories attached, gates closed: what it computes is what the backbone does.
        windows: token ids; each is a row of its own.
        device: where the model is.
    """
    sums: dict[str, Tensor] = {}
    layers = {name: module for name, module in model.named_modules() if isinstance(module, MemoryLayer)}

    def add(site: str, part: str, projected: Tensor) -> None:
        if part != "v":
            name = f"{site}.{'key' if part == 'k' else 'query'}_centre"
            sums[name] = sums.get(name, torch.zeros(())) + projected[0].double().sum(0).cpu()

    hooks = [
        hook
        for name in layers
        for hook in listen(model.get_submodule(name.removesuffix(f".{CHILD}")), partial(add, name))
    ]
    with torch.no_grad():
        for window in windows:
            model(input_ids=torch.tensor([[*window]], device=device), use_cache=False)
    for hook in hooks:
        hook.remove()
    count = sum(len(window) for window in windows)
    return {
        name: (total / count).float().view(-1, layers[name.rpartition(".")[0]].site.width)
        for name, total in sums.items()
    }
