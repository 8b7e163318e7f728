"""Quantised backbones: refused in one line without the extra; with it, LoRA trains beside them exactly."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cotune.backbone import Backbone, Loaded
from cotune.backbone.bind import bind
from cotune.core.errors import Code, CotuneError
from cotune.trainable.full import Full
from cotune.trainable.lora import LoRA

KINDS = ("int8", "nf4")
# How far the logits of a random model, of about 1, may move.
CLOSE = {"int8": 0.03, "nf4": 0.3}
needs_extra = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes, of the extra quant, is not installed"
)
# bitsandbytes tells of casts and missing kernels by warnings of its own.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


def load(ref: str, kind: str | None, head: str = "causal", **fields: Any) -> Loaded:
    return Backbone.model_validate({"ref": ref, "quantization": kind, **fields}).load(head, 2, 0)


def logits(loaded: Loaded) -> Tensor:
    with torch.no_grad():
        found: Tensor = loaded.model(**loaded.tokenizer("eight bits or four", return_tensors="pt")).logits
    return found


def test_without_the_extra_it_is_one_line_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(CotuneError, match=r"pip install 'cotune\[quant\]'") as caught:
        load("./not/there", "nf4")
    assert caught.value.code is Code.MODEL


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_need_no_extra_and_whole_numbers_are_not_trained(kind: str) -> None:
    skeleton = Backbone.model_validate({"ref": "random:llama", "quantization": kind}).skeleton("causal", 0)
    with pytest.raises(CotuneError, match=r"drop backbone\.quantization") as caught:
        Full().attach(skeleton, 0, "all")
    assert caught.value.code is Code.CONFLICT
    assert len(Full(only=("norm",)).attach(skeleton, 0, "all")[0]) == 5
    assert len(LoRA().attach(skeleton, 0, "all")[0]) == 8


def test_a_model_without_linear_layers_is_refused() -> None:
    with pytest.raises(CotuneError, match="no linear layer") as caught:
        Backbone(ref="random:gpt2", quantization="nf4").skeleton("causal", 0)
    assert caught.value.code is Code.CONFLICT


@needs_extra
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_near_the_model_and_the_same_each_time(kind: str, dtype: str) -> None:
    plain, first, second = (load("random:llama", name, dtype=dtype) for name in (None, kind, kind))
    assert 0 < (logits(first) - logits(plain)).abs().max() < CLOSE[kind]
    assert torch.equal(logits(first), logits(second))
    assert torch.equal(logits(first), logits(first))
    assert plain.digest != first.digest == second.digest
    assert first.model.get_parameter("model.layers.0.mlp.up_proj.weight").element_size() == 1
    assert first.model.get_parameter("lm_head.weight").dtype == getattr(torch, dtype)


@needs_extra
@pytest.mark.parametrize(("ref", "head"), [("random:llama", "causal"), ("random:bert", "classification")])
@pytest.mark.parametrize("kind", KINDS)
def test_lora_beside_it_has_the_gradient_of_the_model_that_its_numbers_mean(kind: str, ref: str, head: str) -> None:
    quantised = load(ref, kind, head)
    logits(quantised)  # a forward without gradient first: it may not change what comes after
    plain = load(ref, None, head)
    with torch.no_grad():
        for name, layer in plain.model.named_modules():
            other = quantised.model.get_submodule(name)
            if isinstance(layer, nn.Linear) and type(other) is not nn.Linear:
                layer.weight.copy_(meant(other))
    found, wanted = gradient(quantised), gradient(plain)
    assert found.abs().max() > 0
    similar = torch.nn.functional.cosine_similarity(found, wanted, dim=0)
    assert similar > (0.9999999 if kind == "nf4" else 0.999)  # int8 rounds the inputs of layers too


def meant(layer: Any) -> Tensor:
    """The weight that a quantised layer stands for."""
    from bitsandbytes.functional import dequantize_4bit  # type: ignore[import-not-found,unused-ignore]

    if layer.weight.dtype == torch.int8:
        found: Tensor = layer.weight.float() * layer.state.SCB[:, None] / 127
    else:
        found = dequantize_4bit(layer.weight.data, layer.weight.quant_state)
    return found


def gradient(loaded: Loaded) -> Tensor:
    """Of the squared logits with respect to every factor, at factors that are not zero."""
    theta, _, spec = LoRA(rank=4).attach(loaded, 0, "all")
    generator = torch.Generator().manual_seed(1)
    drawn = {name: 0.1 * torch.randn(tensor.shape, generator=generator) for name, tensor in theta.items()}
    tensors = {name: tensor.requires_grad_() for name, tensor in drawn.items()}
    batch = loaded.tokenizer("eight bits or four", return_tensors="pt")
    with bind(loaded.model, tensors, spec) as bound:
        total = bound(tensors, **batch).logits.float().square().sum()
        return torch.cat([part.flatten() for part in torch.autograd.grad(total, list(tensors.values()))])
