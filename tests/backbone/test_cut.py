"""The two halves of a model are the model, bit for bit, and the model is as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from cotune.backbone import Backbone, split
from cotune.backbone.bind import bind
from cotune.backbone.cut import ahead, blocks
from cotune.core.errors import Code, CotuneError
from cotune.core.state import digest
from cotune.trainable import Full, LoRA, Memory
from cotune.trainable.memory import Rules

DECODERS = ("llama", "llama?tied=true", "qwen2?kv_heads=2", "opt?tied=true", "gpt2?tied=true")
ENCODERS = ("roberta", "bert")
LAYERS = 4
HALF = Rules(gate="constant", gate_start=0.5)


def load(arch: str, head: str = "causal", **fields: Any) -> Any:
    name, _, options = arch.partition("?")
    ref = f"random:{name}?layers={LAYERS}&hidden=16&heads=2" + (f"&{options}" if options else "")
    return Backbone(ref=ref, **fields).load(head, 3, seed=3)


def batch(head: str = "causal", side: str = "right") -> dict[str, Tensor]:
    ids = torch.randint(7, 250, (3, 9), generator=torch.Generator().manual_seed(5))
    mask = torch.ones_like(ids)
    for row, pads in enumerate((0, 4, 2)):
        mask[row, -pads or 9 :] = 0
    if side == "left":
        mask = mask.flip(1)
    ids = ids.masked_fill(mask == 0, 1)
    labels = ids.masked_fill(mask == 0, -100) if head == "causal" else torch.tensor([0, 2, 1])
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def traces(model: nn.Module) -> list[object]:
    """Everything in a model that a cut could leave behind."""
    found: list[object] = []
    for name, module in model.named_modules():
        own = sorted(key for key in vars(module) if key != "_parameters")
        hooks = [len(vars(module)[key]) for key in own if "hook" in key and hasattr(vars(module)[key], "__len__")]
        found.append((name, own, hooks, [(key, id(p)) for key, p in module._parameters.items()]))
    return found


def check(model: Any, given: dict[str, Any], cut: int) -> Any:
    """The halves' output, found equal to the whole's, from a model found unchanged."""
    front, back = split(model, cut)
    before, weights = traces(model), digest(model.state_dict())
    whole, halves = model(**given), back(front(given), given)
    assert torch.equal(halves.logits, whole.logits)
    assert torch.equal(halves.loss, whole.loss)
    assert traces(model) == before
    assert digest(model.state_dict()) == weights
    return halves


@pytest.mark.parametrize("cut", range(1, LAYERS))
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("arch", DECODERS)
def test_the_halves_of_a_decoder_are_the_whole(arch: str, side: str, cut: int) -> None:
    with torch.no_grad():
        check(load(arch).model, batch(side=side), cut)


@pytest.mark.parametrize("cut", range(1, LAYERS))
@pytest.mark.parametrize("arch", [*DECODERS, *ENCODERS])
def test_the_halves_of_a_classifier_are_the_whole(arch: str, cut: int) -> None:
    with torch.no_grad():
        check(load(arch, "classification").model, batch("classification"), cut)


@pytest.mark.parametrize(
    "fields", [{"attention": "eager"}, {"dtype": "bfloat16"}, {"window": 4}, {"window": 4, "sinks": 2}]
)
@pytest.mark.parametrize("arch", DECODERS)
def test_kernels_dtypes_and_windows_are_cut_alike(arch: str, fields: dict[str, Any]) -> None:
    with torch.no_grad():
        check(load(arch, **fields).model, batch(), 2)
        check(load(arch, **fields).model, {**batch(), "use_cache": False}, 2)


@pytest.mark.parametrize("kind", ["DistilBert", "Qwen3", "Gemma2", "Phi3"])
def test_families_that_nobody_named_are_cut_too(kind: str) -> None:
    sizes = {"num_hidden_layers": LAYERS, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    own = {"DistilBert": {"n_layers": LAYERS, "dim": 16, "hidden_dim": 32, "n_heads": 2}}.get(kind, sizes)
    own |= {"num_key_value_heads": 2, "head_dim": 8} if kind not in ENCODERS else {}
    config = getattr(transformers, f"{kind}Config")(vocab_size=300, pad_token_id=1, num_labels=3, **own)
    made = getattr(transformers, f"{kind}ForSequenceClassification")(config).eval()
    with torch.no_grad():
        check(made, batch("classification"), 3)


@pytest.mark.parametrize("arch", ["llama", "opt", "gpt2", "qwen2"])
@pytest.mark.parametrize("window", [None, 5])
def test_a_model_with_a_memory_is_cut_and_what_it_reads_is_the_same(arch: str, window: int | None) -> None:
    backbone = load(arch, window=window)
    theta, personal, spec = Memory(rank=2, rules=HALF).attach(backbone, 3, "all")
    given = batch()
    with torch.no_grad():
        tensors = {n: t + 0.1 for n, t in {**theta, **personal}.items()}
        with bind(backbone.model, tensors, spec):
            check(backbone.model, given, 2)
            check(backbone.model, {**given, "use_cache": False}, 2)


def test_inside_bind_each_half_runs_with_the_tensors_in_place_at_that_moment() -> None:
    backbone = load("llama?tied=true")
    theta, _, spec = Full().attach(backbone, 0, "all")
    moved, given = {n: t + 0.05 for n, t in theta.items()}, batch()
    halves = blocks(backbone.model, 2)
    mixed = {n: (moved if halves[n] == 0 else theta)[n] for n in theta}
    with torch.no_grad(), bind(backbone.model, theta, spec) as bound:
        front, back = split(backbone.model, 2)
        bound.place(moved)
        halfway = front(given)
        bound.place(mixed)  # the tied head is the front's, and stays as it was there
        got = back(halfway, given)
        assert torch.equal(got.logits, bound(mixed, **given).logits)
        assert not torch.equal(got.logits, bound(theta, **given).logits)


def test_both_halves_carry_gradients() -> None:
    backbone = load("qwen2")
    theta, _, spec = LoRA(rank=2).attach(backbone, 0, "all")
    leaves = {n: (t + 0.01).requires_grad_() for n, t in theta.items()}
    given = batch()
    with bind(backbone.model, leaves, spec) as bound:
        front, back = split(backbone.model, 2)
        bound.place(leaves)
        halves = torch.autograd.grad(back(front(given), given).loss, list(leaves.values()))
        whole = torch.autograd.grad(bound(leaves, **given).loss, list(leaves.values()))
    for ours, expected in zip(halves, whole, strict=True):
        assert torch.equal(ours, expected)


def test_a_checkpointed_model_is_cut_alike() -> None:
    backbone = load("llama", gradient_checkpointing=True)
    backbone.model.requires_grad_(True)
    check(backbone.model, batch(), 2)


def test_the_front_half_runs_none_of_the_layers_behind_and_the_back_half_none_in_front() -> None:
    model, ran = load("llama").model, []
    for i, layer in enumerate(model.model.layers):
        layer.self_attn.register_forward_hook(lambda *_, i=i: ran.append(i))
    front, back = split(model, 1)
    with torch.no_grad():
        halfway = front(batch())
        assert ran == [0]
        back(halfway, batch())
    assert ran == [0, 1, 2, 3]


@pytest.mark.parametrize("half", ["front", "back"])
def test_an_error_inside_leaves_the_model_as_it_was(half: str) -> None:
    model, given = load("llama").model, batch()
    front, back = split(model, 2)
    before, halfway = traces(model), front(given)
    wrong = {**given, "input_ids": given["input_ids"] + 10**6}
    calls: dict[str, Callable[[], Any]] = {"front": lambda: front(wrong), "back": lambda: back(halfway, wrong)}
    with pytest.raises(IndexError):
        calls[half]()
    assert traces(model) == before


def test_a_forward_that_a_layer_has_of_its_own_comes_back() -> None:
    model = load("llama").model
    layer = model.model.layers[0]
    own = layer.forward
    layer.forward = lambda *args, **kwargs: own(*args, **kwargs) * 2
    mine = layer.forward
    with torch.no_grad():
        check(model, batch(), 2)
    assert layer.forward is mine


@pytest.mark.parametrize("arch", [*DECODERS, *ENCODERS])
def test_every_parameter_belongs_to_the_half_that_runs_it_first(arch: str) -> None:
    model = load(arch, "classification" if arch in ENCODERS else "causal").model
    found = blocks(model, 3)
    assert list(found) == [name for name, _ in model.named_parameters()]
    given, cuts = batch(), split(model, 3)
    given.pop("labels")
    with torch.no_grad():
        halfway = cuts[0](given)
        for name, parameter in model.named_parameters():
            kept = parameter.clone()
            parameter.add_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
            moved = not torch.equal(cuts[0](given).hidden, halfway.hidden)
            parameter.copy_(kept)
            if moved:
                assert found[name] == 0, name
            elif found[name] == 0:  # a bias of keys moves nothing: softmax does not see it
                assert "k_proj.bias" in name or "key.bias" in name or "embed" in name, name


@pytest.mark.parametrize("layer", [-1, 0, LAYERS])
def test_a_cut_with_an_empty_half_is_refused(layer: int) -> None:
    with pytest.raises(CotuneError) as caught:
        split(load("llama").model, layer)
    assert caught.value.code is Code.CONFIG


def test_a_pass_that_goes_on_from_a_cache_is_refused() -> None:
    front, _ = split(load("llama").model, 1)
    with pytest.raises(CotuneError) as caught:
        front({**batch(), "past_key_values": transformers.DynamicCache()})
    assert caught.value.code is Code.CONFLICT


def test_models_without_one_stack_of_layers_are_refused() -> None:
    shared = transformers.AlbertConfig(hidden_size=16, num_attention_heads=2, intermediate_size=32, embedding_size=8)
    pair = transformers.T5Config(d_model=16, num_layers=2, num_heads=2, d_ff=32, vocab_size=50)
    for model in (transformers.AlbertModel(shared), transformers.T5Model(pair), nn.Linear(2, 2)):
        with pytest.raises(CotuneError) as caught:
            split(model, 1)
        assert caught.value.code is Code.MODEL


def test_numbers_ahead_are_those_of_all_layers_before_and_at_last_of_everything() -> None:
    backbone = load("llama")
    numbers = {name: parameter.numel() for name, parameter in backbone.model.named_parameters()}
    one, *others = ({n: s for n, s in numbers.items() if f".layers.{i}." in n} for i in range(LAYERS))
    words = numbers["model.embed_tokens.weight"]
    each = sum(one.values())
    assert all(sum(layer.values()) == each for layer in others)
    assert ahead(backbone.model, numbers) == [*(words + i * each for i in range(1, LAYERS)), sum(numbers.values())]
    assert ahead(backbone.model, one) == [each] * LAYERS
