"""Binding lends the model: exact inside, untouched afterwards, for tied, transposed, and half-precision weights too."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from cotune.backbone import Backbone, Loaded
from cotune.backbone.bind import bind
from cotune.core.change import Base
from cotune.core.errors import CotuneError
from cotune.core.spec import Role, Spec
from cotune.core.state import Theta, digest, from_bytes, to_bytes
from cotune.trainable import Full, LoRA

IDS = torch.arange(12, 24).reshape(2, 6)
ARCHS = ("llama", "qwen2", "opt", "gpt2", "roberta", "bert")


def loaded(arch: str = "llama", head: str = "classification", options: str = "") -> Loaded:
    return Backbone(ref=f"random:{arch}?layers=2&hidden=16&heads=2{options}").load(head, 2, seed=3)


def logits(backbone: Loaded, theta: Theta, spec: Spec, base: Base | None = None) -> Tensor:
    with torch.no_grad(), bind(backbone.model, theta, spec, base) as bound:
        result: Tensor = bound(theta, input_ids=IDS, attention_mask=torch.ones_like(IDS)).logits
    return result


def shaken(theta: Theta) -> Theta:
    generator = torch.Generator().manual_seed(7)
    return Theta(
        {name: tensor + 0.1 * torch.randn(tensor.shape, generator=generator) for name, tensor in theta.items()}
    )


def weight_of(model: nn.Module, module: str) -> nn.Parameter:
    """The frozen weight behind a LoRA layer."""
    return model.get_submodule(module).get_submodule("base_layer").get_parameter("weight")


def test_tied_weights_are_trained_once_and_travel_once_and_stay_tied() -> None:
    backbone = loaded(head="causal", options="&tied=true")
    theta, _, spec = Full().attach(backbone, 0, "all")
    assert not [name for name in theta if "lm_head" in name]
    moved = shaken(theta)
    assert digest(from_bytes(to_bytes(moved))) == digest(moved)
    oracle = copy.deepcopy(backbone.model)
    with torch.no_grad():
        for name, parameter in oracle.named_parameters():
            parameter.copy_(moved[name])
        expected = oracle(input_ids=IDS, attention_mask=torch.ones_like(IDS)).logits
    assert torch.equal(logits(backbone, moved, spec), expected)
    assert backbone.model.get_parameter("lm_head.weight") is backbone.model.get_parameter("model.embed_tokens.weight")


@pytest.mark.parametrize("arch", ARCHS)
def test_a_base_delta_is_what_merging_it_would_be(arch: str) -> None:
    backbone = loaded(arch)
    theta, _, spec = LoRA(rank=2).attach(backbone, 0, "all")
    moved, generator = shaken(theta), torch.Generator().manual_seed(1)
    pairs = {}
    for entry in spec:
        if entry.role is Role.FACTOR_B:
            (a,) = (e for e in spec if e.module == entry.module and e.role is Role.FACTOR_A)
            pairs[entry.module] = (
                0.1 * torch.randn(entry.shape, generator=generator),
                torch.randn(a.shape, generator=generator),
            )
    factors = Base(pairs)
    dense = Base({module: (factors.delta(module), torch.empty(0, pair[1].shape[1])) for module, pair in pairs.items()})
    oracle = copy.deepcopy(backbone)
    transposed = arch == "gpt2"
    with torch.no_grad():
        for module in pairs:
            delta = factors.delta(module)
            weight_of(oracle.model, module).add_(delta.mT if transposed else delta)
    expected = logits(oracle, moved, spec)
    for base in (factors, dense):
        torch.testing.assert_close(logits(backbone, moved, spec, base), expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(logits(backbone, moved, spec), expected, atol=1e-4)


def test_a_client_of_another_rank_computes_with_its_own_scale() -> None:
    backbone = loaded()
    small = LoRA(rank=2, alpha=8)
    theta, _, spec = LoRA(rank=4, alpha=8).attach(backbone, 0, "all")
    moved = shaken(theta)
    ranked = spec.ranked(2)
    fitted = small.fit(moved, ranked)
    alone = loaded()
    own, _, own_spec = small.attach(alone, 0, "all")
    assert {name: tuple(tensor.shape) for name, tensor in fitted.items()} == {n: tuple(t.shape) for n, t in own.items()}
    torch.testing.assert_close(logits(backbone, fitted, ranked), logits(alone, fitted, own_spec), rtol=1e-5, atol=1e-6)


def test_the_model_is_as_it_was_after_an_error_and_cannot_be_lent_twice() -> None:
    backbone = loaded()
    theta, _, spec = LoRA(rank=2).attach(backbone, 0, "all")
    before, parameters = digest(dict(backbone.model.named_parameters())), dict(backbone.model.named_parameters())
    base = Base({spec.entries[0].module: (torch.ones(16, 1), torch.ones(1, 16))})

    def fail_inside() -> None:
        with bind(backbone.model, shaken(theta), spec, base) as bound:
            bound(shaken(theta), input_ids=IDS)
            with pytest.raises(CotuneError, match="bound already"):
                bind(backbone.model, theta, spec).__enter__()
            raise KeyError("a client's own failure")

    with pytest.raises(KeyError):
        fail_inside()
    after = dict(backbone.model.named_parameters())
    assert digest(after) == before
    assert all(after[name] is parameters[name] for name in parameters)
    assert not [module for module in backbone.model.modules() if module._forward_hooks]


def test_a_name_without_a_place_is_refused() -> None:
    backbone = loaded()
    theta, _, spec = LoRA(rank=2).attach(backbone, 0, "all")
    with pytest.raises(CotuneError, match="1 tensors have no place in the model · nowhere"):
        bind(backbone.model, Theta({**theta, "nowhere": torch.zeros(1)}), spec).__enter__()


def test_a_second_adapter_on_the_same_model_is_refused() -> None:
    backbone = loaded()
    LoRA(rank=2).attach(backbone, 0, "all")
    with pytest.raises(CotuneError, match="has LoRA layers already"):
        LoRA(rank=2).attach(backbone, 0, "all")


def test_targets_that_match_nothing_are_refused_in_one_line() -> None:
    with pytest.raises(CotuneError, match=r"no layer to adapt · trainable\.targets"):
        LoRA(rank=2, targets=("nowhere",)).attach(loaded(), 0, "all")
    with pytest.raises(CotuneError, match=r"no weight matches · trainable\.only"):
        Full(only=("nowhere",)).attach(loaded(), 0, "all")


@pytest.mark.parametrize("arch", ARCHS)
def test_every_linear_layer_can_be_adapted_and_the_head_is_left_alone(arch: str) -> None:
    backbone = loaded(arch)
    _, _, spec = LoRA(rank=2, targets="all-linear").attach(backbone, 0, "all")
    heads = [entry for entry in spec if entry.role is Role.HEAD]
    assert sorted(entry.name for entry in heads) == sorted(backbone.head)
    assert len(spec.entries) - len(heads) >= 2 * 2 * 4


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_tensors_stay_float32_beside_a_half_precision_backbone(dtype: str) -> None:
    backbone = Backbone(ref="random:llama?layers=1&hidden=16&heads=2", dtype=dtype).load("classification", 2, seed=3)
    theta, _, spec = LoRA(rank=2).attach(backbone, 0, "all")
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in shaken(theta).items()}
    with bind(backbone.model, leaves, spec) as bound:
        out = bound(leaves, input_ids=IDS, attention_mask=torch.ones_like(IDS)).logits
        grads = torch.autograd.grad(out.float().square().sum(), list(leaves.values()))
    assert {grad.dtype for grad in grads} == {torch.float32}
    assert all(bool(grad.any()) for grad in grads)


def test_spec_is_named_by_its_ranks() -> None:
    _, _, spec = LoRA(rank=4).attach(loaded(), 0, "all")
    assert spec.ranked(4).digest == spec.digest != spec.ranked(2).digest
    assert Spec(tuple(replace(entry, shared=False) for entry in spec)).digest != spec.digest
