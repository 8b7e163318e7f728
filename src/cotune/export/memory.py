"""The memory of an exported run on a plain transformers model: what peft leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cotune.backbone import Skeleton
from cotune.backbone.head import gives
from cotune.backbone.window import limit_attention
from cotune.core.errors import Code, CotuneError
from cotune.trainable.memory.attach import CHILD, attach
from cotune.trainable.memory.layer import MemoryLayer, starts
from cotune.trainable.memory.saved import TENSORS, Saved, read
from cotune.trainable.memory.sites import Site, sites


def attach_memory(model: Any, folder: Path | str) -> None:
    """Put the memory of an adapter folder beside the attention layers of a plain model, and its window on them.

    From then on every row that the model reads is written into a memory of its own, and `model.memory_session()` gives
    one that lasts from call to call. Factors in the folder are peft's to load, and first.

    Args:
        model: a transformers model as `from_pretrained` gives it, or a `PeftModel` around it.
        folder: of a run's adapter, or of `cotune export`.

    Raises:
        CotuneError: E_CONFLICT where the model has a memory already; E_MODEL for a folder without one, or a model that
            none fits; E_SHAPE and E_KEYS for a model of other attention layers; whatever `saved.read` raises.
    """
    saved, tensors = read(Path(folder))
    plain: Any = model.get_base_model() if hasattr(model, "get_base_model") else model
    if any(isinstance(module, MemoryLayer) for module in plain.modules()):
        raise CotuneError(Code.CONFLICT, "the model has a memory already", where=str(folder), fix="load it again")
    skeleton = Skeleton(plain, (), gives(plain.config, "causal"))
    _check(sites(skeleton), saved, tensors, dict(plain.named_parameters()))
    if saved.window is not None:
        limit_attention(plain, saved.window, saved.sinks, type(plain).__name__)
    attach(skeleton, saved.rules)
    parameters = dict(plain.named_parameters())
    with torch.no_grad():
        for name, tensor in tensors.items():
            parameters[name].copy_(tensor)


def _check(found: list[Site], saved: Saved, tensors: Mapping[str, Tensor], plain: Mapping[str, Tensor]) -> None:
    """Refuse rules of other layers than the model's, and tensors that are not those of the rules."""
    for ours, theirs in zip(saved.sites, found, strict=False):
        if ours != theirs:
            raise CotuneError(
                Code.SHAPE,
                "the memory is of a model with other attention layers",
                where=theirs.name,
                got=_said(theirs),
                expected=_said(ours) if ours.name == theirs.name else f"{ours.name}: {_said(ours)}",
                fix=f"load {saved.backbone}",
            )
    if len(saved.sites) != len(found):
        raise CotuneError(
            Code.SHAPE,
            "the memory is of a model with more or fewer layers",
            got=f"{len(found)} attention layers",
            expected=len(saved.sites),
            fix=f"load {saved.backbone}",
        )
    shapes = {
        f"{site.name}.{CHILD}.{name}": tuple(start.shape)
        for site in found
        for name, start in starts(site, saved.rules).items()
    }
    missing = sorted({*shapes} - {*tensors})
    unknown = sorted(name for name in tensors if name not in shapes and name not in plain)
    if missing or unknown:
        said = [f"{what} {', '.join(n[:2])}" for what, n in (("without", missing), ("with", unknown)) if n]
        raise CotuneError(Code.KEYS, "the tensors are not those of the rules", where=TENSORS, got=" and ".join(said))
    for name, tensor in tensors.items():
        expected = shapes[name] if name in shapes else tuple(plain[name].shape)
        if tuple(tensor.shape) != expected:
            raise CotuneError(
                Code.SHAPE, "a tensor of another shape", where=name, got=tuple(tensor.shape), expected=expected
            )


def _said(site: Site) -> str:
    return f"{site.queries} query heads, {site.heads} key-value heads of width {site.width}"
