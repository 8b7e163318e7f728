"""Where the layers of a transformer are, whatever its architecture calls them."""

from __future__ import annotations

from torch import nn

ATTENTION = ("self_attn", "attn")  # what decoders call the attention in a layer


def trunk(model: nn.Module) -> nn.Module:
    """The innermost module that runs all layers: what every forward pass goes through, with whichever head."""
    lists = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and any(True for _ in module.parameters())
    ]
    return model.get_submodule(min(lists, key=lambda name: name.count(".")).rpartition(".")[0])


def attention_layers(model: nn.Module) -> list[nn.Module]:
    """The modules of a decoder that attend among a row's own tokens, in the model's order."""
    return [
        module
        for name, module in model.named_modules()
        if hasattr(module, "layer_idx") and name.rpartition(".")[2] in ATTENTION
    ]
