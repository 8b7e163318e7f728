"""Where a memory can be attached: the attention layers of a decoder, and what each of them projects to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from cotune.core.contracts import Attachable
from cotune.core.errors import Code, CotuneError
from cotune.core.part import Capability

SEPARATE = ("q_proj", "k_proj", "v_proj")  # Llama, Qwen2, OPT, and most others
FUSED = "c_attn"  # GPT-2: queries, keys and values are one product
OUTPUTS = ("o_proj", "out_proj", "c_proj")


@dataclass(frozen=True)
class Site:
    """An attention layer.

    Attributes:
        name: of the module.
        layer: its number.
        queries: heads of the queries.
        heads: heads of keys and values; it divides `queries`.
        width: numbers a head.
    """

    name: str
    layer: int
    queries: int
    heads: int
    width: int


def sites(backbone: Attachable) -> list[Site]:
    """The attention layers of a decoder in the model's order.

    Raises:
        CotuneError: E_MODEL for an encoder, with the reason, or a decoder whose projections have other names.
    """
    if Capability.DECODER not in backbone.gives:
        raise CotuneError(
            Code.MODEL,
            "a memory is written from left to right, and an encoder reads both ways at once",
            where=type(backbone.model).__name__,
            fix='choose a decoder, or train factors alone (kind = "lora")',
        )
    found = []
    for name, module in backbone.model.named_modules():
        outputs = [part for part in OUTPUTS if hasattr(module, part)]
        if outputs and hasattr(module, "layer_idx") and (_separate(module) or hasattr(module, FUSED)):
            width = int(module.head_dim)
            if _separate(module):
                queries, heads = _out(module.q_proj) // width, _out(module.k_proj) // width
            else:
                queries = heads = _out(module.c_attn) // 3 // width
            found.append(Site(name, int(module.layer_idx), queries, heads, width))
    if not found:
        raise CotuneError(
            Code.MODEL,
            "no attention layer that a memory can be attached to",
            where=type(backbone.model).__name__,
            expected="a decoder with q_proj, k_proj, v_proj and o_proj, or c_attn and c_proj",
        )
    return found


def targets(backbone: Attachable) -> tuple[str, ...]:
    """The names of the projections to queries, keys and values, as LoRA takes them."""
    first = backbone.model.get_submodule(sites(backbone)[0].name)
    return SEPARATE if _separate(first) else (FUSED,)


def listen(module: Any, take: Callable[[str, Tensor], None]) -> list[RemovableHandle]:
    """Have `take` told, in each forward pass, the raw projections 'q', 'k' and 'v' (rows, tokens, heads · width)."""
    if _separate(module):
        return [getattr(module, name).register_forward_hook(_Told(take, name[0])) for name in SEPARATE]
    return [module.c_attn.register_forward_hook(_Told(take, None))]


def heard(module: Any) -> list[nn.Module]:
    """What a memory is attached to in an attention layer: the projections, in and out."""
    return [*(getattr(module, name) for name in (SEPARATE if _separate(module) else (FUSED,))), output(module)]


def output(module: Any) -> nn.Module:
    """The projection that the heads' results go through."""
    found: nn.Module = next(getattr(module, name) for name in OUTPUTS if hasattr(module, name))
    return found


class _Told:
    """A hook behind a projection; a fused one is told as its three parts."""

    def __init__(self, take: Callable[[str, Tensor], None], part: str | None) -> None:
        self.take, self.part = take, part

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...], result: Tensor) -> None:
        del module, inputs
        if self.part is not None:
            self.take(self.part, result)
            return
        for part, tensor in zip("qkv", result.chunk(3, dim=-1), strict=True):
            self.take(part, tensor)


def _separate(module: Any) -> bool:
    return all(hasattr(module, name) for name in SEPARATE)


def _out(layer: Any) -> int:
    """How many numbers a projection gives, adapted, quantised or transposed."""
    return int(layer.out_features) if hasattr(layer, "out_features") else int(layer.nf)
