"""`random:` backbones: every architecture, every option, and weights that are a function of the seed alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cotune.backbone import Backbone, Loaded
from cotune.backbone.builtin import DECODERS, ENCODERS
from cotune.core.errors import Code, CotuneError
from cotune.core.part import Capability

ARCHS = DECODERS + ENCODERS
CASES = [(arch, "classification") for arch in ARCHS] + [(arch, "causal") for arch in DECODERS]


def load(ref: str, head: str = "classification", labels: int = 3, seed: int = 5) -> Loaded:
    return Backbone(ref=ref).load(head, labels, seed)


def logits(loaded: Loaded, texts: list[str]) -> Tensor:
    with torch.no_grad():
        out: Tensor = loaded.model(**loaded.tokenizer(texts, padding=True, return_tensors="pt")).logits
    return out


def refused(ref: str) -> str:
    with pytest.raises(CotuneError) as caught:
        Backbone(ref=ref)
    assert caught.value.code is Code.CONFIG
    return str(caught.value)


@pytest.mark.parametrize(("arch", "head"), CASES)
def test_every_architecture_loads_frozen_and_runs_a_padded_batch(arch: str, head: str) -> None:
    loaded = load(f"random:{arch}", head)
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert loaded.limit == 512
    alone, padded = logits(loaded, ["short"]), logits(loaded, ["short", "a much longer text"])
    size = 7 if arch in ENCODERS else 5
    assert padded.shape == ((2, 3) if head == "classification" else (2, 18, 263))
    torch.testing.assert_close(padded[0] if head == "classification" else padded[0, :size], alone[0])


@pytest.mark.parametrize(("arch", "head"), CASES)
def test_the_skeleton_has_the_same_names_shapes_and_head_and_no_numbers(arch: str, head: str) -> None:
    backbone = Backbone(ref=f"random:{arch}", dtype="bfloat16")
    loaded, skeleton = backbone.load(head, 3, 0), backbone.skeleton(head, 3)
    shapes = [(name, tensor.shape, tensor.dtype) for name, tensor in loaded.model.named_parameters()]
    assert [(name, t.shape, t.dtype) for name, t in skeleton.model.named_parameters()] == shapes
    assert all(tensor.is_meta and not tensor.requires_grad for tensor in skeleton.model.parameters())
    assert (skeleton.head, skeleton.gives) == (loaded.head, loaded.gives)


@pytest.mark.parametrize("arch", ARCHS)
def test_the_head_is_what_lies_outside_the_pretrained_part(arch: str) -> None:
    head = load(f"random:{arch}").head
    roberta = [f"classifier.{layer}.{kind}" for layer in ("dense", "out_proj") for kind in ("weight", "bias")]
    bert = ["classifier.weight", "classifier.bias"]
    assert list(head) == {"roberta": roberta, "bert": bert}.get(arch, ["score.weight"])


def test_a_causal_model_has_no_new_head_and_says_that_it_is_causal() -> None:
    loaded = load("random:llama", "causal")
    assert loaded.head == ()
    assert loaded.gives == {Capability.SPLIT, Capability.CAUSAL, Capability.DECODER}
    assert load("random:llama").gives == {Capability.SPLIT, Capability.DECODER}


@pytest.mark.parametrize("arch", ENCODERS)
def test_an_encoder_is_no_causal_model(arch: str) -> None:
    for call in (
        lambda: load(f"random:{arch}", "causal"),
        lambda: Backbone(ref=f"random:{arch}").skeleton("causal", 0),
    ):
        with pytest.raises(CotuneError) as caught:
            call()
        assert caught.value.code is Code.MODEL


def test_weights_are_a_function_of_the_seed_and_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = load("random:llama", seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    again, other = load("random:llama", seed=5), load("random:llama", seed=6)
    for name, tensor in first.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name])
    assert first.digest == again.digest != other.digest
    assert not torch.equal(first.model.get_parameter("score.weight"), other.model.get_parameter("score.weight"))


def test_the_digest_covers_the_backbone_and_leaves_the_head_out() -> None:
    classifier = load("random:llama")
    assert load("random:llama", "causal").digest == load("random:llama", labels=9).digest == classifier.digest
    assert load("random:llama?layers=1").digest != classifier.digest
    assert Backbone(ref="random:llama", dtype="bfloat16").load("causal", 0, 5).digest != classifier.digest


def test_another_dtype_rounds_the_same_weights_and_keeps_the_rotations() -> None:
    exact, rounded = load("random:llama", "causal"), Backbone(ref="random:llama", dtype="bfloat16").load("causal", 0, 5)
    for name, tensor in exact.model.named_parameters():
        assert torch.equal(tensor.bfloat16(), rounded.model.get_parameter(name))
    for name, buffer in exact.model.named_buffers():
        assert torch.equal(buffer, rounded.model.get_buffer(name))


def test_options_reach_the_model() -> None:
    ref = "random:qwen2?layers=3&hidden=48&heads=6&kv_heads=2&vocab=300&positions=40&intermediate=20&tied=false"
    model = load(ref, "causal").model
    shapes = {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}
    assert shapes["lm_head.weight"] == shapes["model.embed_tokens.weight"] == (300, 48)
    assert shapes["model.layers.2.self_attn.k_proj.weight"] == (16, 48)
    assert shapes["model.layers.2.mlp.up_proj.weight"] == (20, 48)
    assert "model.layers.3.mlp.up_proj.weight" not in shapes
    assert load(ref, "causal").limit == 40
    assert load("random:roberta?positions=40").limit == 40


def test_a_tied_head_is_the_embedding() -> None:
    assert "lm_head.weight" not in dict(load("random:opt", "causal").model.named_parameters())


@pytest.mark.parametrize("arch", ["roberta", "opt", "gpt2"])
def test_an_input_of_the_greatest_length_runs(arch: str) -> None:
    loaded = load(f"random:{arch}?positions=24")
    ids = torch.full((1, loaded.limit), 50)
    assert loaded.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.shape == (1, 3)


def test_unknown_words_are_refused_with_the_nearest() -> None:
    assert "did you mean 'llama'?" in refused("random:lama")
    assert "did you mean 'layers'?" in refused("random:llama?layer=2")
    assert "bert has no option 'tied'" in refused("random:bert?tied=true")
    assert "gpt2 has no option 'kv_heads'" in refused("random:gpt2?kv_heads=1")


@pytest.mark.parametrize("value", ["x", "1.5", "-1", "0", "1_0", "²", "99999999999"])
def test_what_is_no_positive_integer_is_refused(value: str) -> None:
    assert "positive integer" in refused(f"random:llama?layers={value}")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("hidden=65", "hidden is not divisible by heads"),
        ("kv_heads=3", "heads is not divisible by kv_heads"),
        ("hidden=12", "odd width"),
        ("vocab=262", "at least 263"),
        ("tied=1", "true or false"),
    ],
)
def test_sizes_that_do_not_fit_together_are_refused(options: str, reason: str) -> None:
    assert reason in refused(f"random:llama?{options}")
