"""Gradient checkpointing: layers really run again, gradients are the same numbers, and dropout stays off."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor

from cotune.backbone import Backbone, Loaded
from cotune.backbone.builtin import DECODERS, ENCODERS

LAYERS = {
    "llama": "model.layers",
    "qwen2": "model.layers",
    "opt": "model.decoder.layers",
    "gpt2": "transformer.h",
    "bert": "bert.encoder.layer",
    "roberta": "roberta.encoder.layer",
}


def gradient(loaded: Loaded, arch: str) -> tuple[Tensor, Counter[str]]:
    """The gradient of the first layer's first weight, and how often each layer's submodules ran."""
    runs: Counter[str] = Counter()
    layers = loaded.model.get_submodule(LAYERS[arch])
    for name, layer in layers.named_children():
        first = next(layer.children())
        first.register_forward_hook(lambda *_, name=name: runs.update([name]))
    weight = next(layers.parameters()).requires_grad_()
    batch = loaded.tokenizer(["some text", "another, longer text"], padding=True, return_tensors="pt")
    loaded.model(**batch).logits.square().mean().backward()
    assert weight.grad is not None
    return weight.grad, runs


@pytest.mark.parametrize("arch", DECODERS + ENCODERS)
def test_every_layer_runs_twice_and_gives_the_same_gradient(arch: str) -> None:
    plain = Backbone(ref=f"random:{arch}").load("classification", 2, 0)
    again = Backbone(ref=f"random:{arch}", gradient_checkpointing=True).load("classification", 2, 0)
    expected, once = gradient(plain, arch)
    found, twice = gradient(again, arch)
    assert once == {"0": 1, "1": 1}
    assert twice == {"0": 2, "1": 2}
    assert torch.equal(found, expected)


@pytest.mark.parametrize("arch", ["opt", "gpt2", "bert"])
def test_only_the_layers_themselves_believe_that_they_train(arch: str) -> None:
    model = Backbone(ref=f"random:{arch}", gradient_checkpointing=True).load("classification", 2, 0).model
    training = {name for name, module in model.named_modules() if module.training}
    assert training == {f"{LAYERS[arch]}.0", f"{LAYERS[arch]}.1"}
