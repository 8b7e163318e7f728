"""What is predicted from shapes alone is what a real step costs."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

import cotune as ct
from cotune.backbone.bind import bind
from cotune.core.errors import CotuneError
from cotune.diagnose.flops import counting
from cotune.estimate import estimate, measured_flops

ARCHS = ("llama", "qwen2", "opt", "gpt2", "roberta", "bert")


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("recipe", ["lora-fedavg", "fedavg"])
@pytest.mark.parametrize("arch", ARCHS)
def test_the_flops_of_a_step_are_those_of_a_real_one(
    arch: str, recipe: str, attention: Literal["eager", "sdpa"]
) -> None:
    method = ct.recipe(recipe)
    backbone = ct.Backbone(ref=f"random:{arch}?layers=2&hidden=32&heads=2", attention=attention)
    predicted = estimate(method, backbone, "classification", 2, (3, 8))
    loaded = backbone.load("classification", 2, 0)
    theta, _, spec = method.trainable.attach(loaded, 0, "all")
    leaves = {name: tensor.requires_grad_() for name, tensor in theta.items()}
    ids = torch.randint(20, 200, (3, 8), generator=torch.Generator().manual_seed(0))
    with bind(loaded.model, leaves, spec) as bound, counting() as counter:
        # With a mask the same kernels do the same products: what is hidden is computed too.
        logits = bound(leaves, input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        torch.autograd.grad(logits.sum(), list(leaves.values()), allow_unused=True)
    real = counter.get_total_flops()
    # A fused kernel computes the products of queries and keys once more in its backward pass.
    assert predicted.step_flops == real if attention == "eager" else 0.97 * real < predicted.step_flops < real
    assert predicted.trained == theta.numel
    assert 0 < predicted.forward_flops < predicted.step_flops


def test_what_is_kept_grows_with_the_batch_and_not_with_the_weights() -> None:
    lora, full = ct.recipe("lora-fedavg"), ct.recipe("fedavg")
    small = ct.Backbone(ref="random:bert?layers=2&hidden=32&heads=2")
    wide_vocabulary = ct.Backbone(ref="random:bert?layers=2&hidden=32&heads=2&vocab=4000")
    once, twice = (estimate(lora, small, "classification", 2, (rows, 16)).kept_bytes for rows in (2, 4))
    assert twice == 2 * once
    ours, theirs = (estimate(full, b, "classification", 2, (2, 16)) for b in (small, wide_vocabulary))
    assert ours.kept_bytes == theirs.kept_bytes
    assert theirs.training_bytes - ours.training_bytes == 5 * (theirs.weight_bytes - ours.weight_bytes)


def test_a_billion_weights_are_estimated_without_being_made() -> None:
    shapes = "layers=16&hidden=2048&heads=32&kv_heads=8&intermediate=8192&vocab=128256&tied=true"
    cost = estimate(ct.recipe("lora-fedavg"), ct.Backbone(ref=f"random:llama?{shapes}"), "causal", 0, (1, 64))
    assert cost.parameters == 1_235_814_400
    # Two FLOPs a weight and token forward, the embedding looked up and used once as the head.
    assert cost.forward_flops == pytest.approx(2 * cost.parameters * 64, rel=0.05)


def test_a_backbone_that_does_not_fit_is_refused() -> None:
    with pytest.raises(CotuneError, match="E_MODEL"):
        estimate(ct.recipe("lora-fedavg"), ct.Backbone(ref="random:bert"), "causal", 0, (1, 8))


def test_the_speed_of_this_machine_is_a_positive_number() -> None:
    assert 1e8 < measured_flops(seconds=0.05) < 1e15
