"""Where the layers of a transformer are, whatever its architecture calls them."""

from __future__ import annotations

from typing import Any

from torch import nn

from cotune.core.errors import Code, CotuneError

ATTENTION = ("self_attn", "attn")  # what decoders call the attention in a layer


def named_layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """(name, layer) in the model's order: the only list as long as the configuration says.

    Raises:
        CotuneError: E_MODEL for an encoder-decoder, and where no list, or more than one, is that long.
    """
    config: Any = getattr(model, "config", None)
    where = type(model).__name__
    if config is None or getattr(config, "is_encoder_decoder", False):
        got = "no configuration" if config is None else "an encoder-decoder"
        raise CotuneError(Code.MODEL, "the model has no single stack of layers", where=where, got=got)
    count = config.get_text_config().num_hidden_layers
    lists = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count
    ]
    if len(lists) != 1:
        raise CotuneError(
            Code.MODEL,
            "cannot tell which modules are the layers",
            where=where,
            got=f"{len(lists)} lists of {count} modules",
            expected="one",
        )
    name, found = lists[0]
    return [(f"{name}.{i}", layer) for i, layer in enumerate(found)]


def layers(model: nn.Module) -> list[nn.Module]:
    """The layers of a model in their order; raises as `named_layers` does."""
    return [layer for _, layer in named_layers(model)]


def trunk(model: nn.Module) -> nn.Module:
    """The module that runs the layers: what every forward pass goes through, with whichever head."""
    name, _ = named_layers(model)[0]
    return model.get_submodule(".".join(name.split(".")[:-2]))


def attention_layers(model: nn.Module) -> list[nn.Module]:
    """The modules of a decoder that attend among a row's own tokens, in the model's order."""
    return [
        module
        for name, module in model.named_modules()
        if hasattr(module, "layer_idx") and name.rpartition(".")[2] in ATTENTION
    ]
