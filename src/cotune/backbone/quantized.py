"""Frozen weights in 8 or 4 bits, by bitsandbytes (the extra `quant`); what is trained beside them stays float32.

Quantised are the linear layers inside the model: not the embedding, not the head. `int8` multiplies in 8 bits, inputs
too; `nf4` stores blocks of 64 numbers and multiplies in the model's dtype. Both run on CPUs (bitsandbytes 0.50).
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from importlib import import_module
from typing import Any, Literal

import torch
from torch import nn

from cotune.core.errors import Code, CotuneError

Quantization = Literal["int8", "nf4"]


def hush() -> None:
    """Let libraries say nothing but errors about kernels that they do without, and bitsandbytes about layers it casts.

    peft loads bitsandbytes wherever it is installed, for models that are not quantised as well; transformers tells of
    kernels for CUDA on machines without it.
    """
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    logging.getLogger("transformers.integrations.hub_kernels").setLevel(logging.ERROR)


def check_installed(where: str) -> None:
    """Raise E_MODEL when bitsandbytes is not there, before anything is loaded for it."""
    try:
        import_module("bitsandbytes")
    except Exception as error:
        raise CotuneError(
            Code.MODEL,
            "quantised backbones need bitsandbytes",
            where=where,
            got=str(error).partition("\n")[0],
            fix="pip install 'cotune[quant]'",
        ) from error


def mark(model: Any, head: Collection[str], where: str) -> None:
    """Give the layers that would be quantised weights of integers, on a model that has no numbers."""
    for name, layer in _layers(model, head, where).items():
        shape = layer.weight.shape
        integers = torch.empty(shape, dtype=torch.int8, device="meta")
        model.get_submodule(name).weight = nn.Parameter(integers, requires_grad=False)


def quantize(model: Any, how: Quantization, head: Collection[str], where: str) -> None:
    """Put quantised layers in the places of linear ones, and say so as transformers does: peft looks there.

    Args:
        model: frozen; its weights are on the CPU, and the layers quantise when they come to the device.
        how: how.
        head: parameter names that stay as they are.
        where: how the user named the model.

    Raises:
        CotuneError: E_CONFLICT for an architecture without linear layers.
    """
    quant: Any = import_module("bitsandbytes.nn")
    for name, layer in _layers(model, head, where).items():
        made: Any
        if how == "int8":
            made = quant.Linear8bitLt(layer.in_features, layer.out_features, has_fp16_weights=False)
            made.weight = quant.Int8Params(layer.weight.data, requires_grad=False, has_fp16_weights=False)
        else:
            dtype = layer.weight.dtype
            made = quant.Linear4bit(layer.in_features, layer.out_features, compute_dtype=dtype, quant_type="nf4")
            made.weight = quant.Params4bit(layer.weight.data, requires_grad=False, quant_type="nf4", module=made)
            # Else a forward without gradient repacks the weights, for a kernel that has no backward and other bits.
            made.support_avx512bf16_for_cpu = False
        made.bias = layer.bias
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, made.requires_grad_(False).eval())
    setattr(model, "is_loaded_in_8bit" if how == "int8" else "is_loaded_in_4bit", True)


def _layers(model: Any, head: Collection[str], where: str) -> dict[str, nn.Linear]:
    """The linear layers between the embedding and the head, by name."""
    output = model.get_output_embeddings()
    linear = {name: layer for name, layer in model.named_modules() if type(layer) is nn.Linear and layer is not output}
    found = {name: layer for name, layer in linear.items() if f"{name}.weight" not in head}
    if not found:
        raise CotuneError(
            Code.CONFLICT, "no linear layer to quantise", where=where, got=type(model).__name__, fix="drop quantization"
        )
    return found
