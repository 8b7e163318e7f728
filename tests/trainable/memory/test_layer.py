from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from cotune.backbone import Backbone, Loaded
from cotune.backbone.bind import bind
from cotune.core.errors import Code, CotuneError
from cotune.core.part import check_fit
from cotune.core.spec import Role, Spec
from cotune.trainable import LoRA, Memory
from cotune.trainable.memory import Rules
from cotune.trainable.memory.layer import MemoryLayer
from cotune.trainable.memory.session import Carried
from cotune.trainable.memory.sites import Site

DECODERS = ("random:llama?kv_heads=2", "random:qwen2?kv_heads=2", "random:opt", "random:gpt2")
LLAMA = DECODERS[0]
HALF = {"gate": "constant", "gate_start": 0.5}
VARIANTS = {
    "delta": Rules(**HALF),
    "looking back": Rules(shift=True, centre=True, silu=True, **HALF),
    "by channel": Rules(beta="vector", norm=True, value_scale="root-width", **HALF),
    "gated": Rules(rule="gated-delta", decay_start=0.9, **HALF),
    "hebbian": Rules(rule="hebbian", **HALF),
    "titans": Rules(rule="titans", shift=True, **HALF),
}
variants = pytest.mark.parametrize("rules", VARIANTS.values(), ids=VARIANTS)
decoders = pytest.mark.parametrize("ref", DECODERS)


def attached(ref: str, rules: Rules, part: dict[str, Any] | None = None, **fields: Any) -> tuple[Loaded, Any, Spec]:
    backbone = Backbone(ref=ref, **{"window": 6, **fields}).load("causal", 0, seed=1)
    theta, personal, spec = Memory(rank=2, rules=rules, **(part or {})).attach(backbone, 3, "all")
    return backbone, {**theta, **personal}, spec


def model(ref: str, rules: Rules, **fields: Any) -> Any:
    return attached(ref, rules, **fields)[0].model


def ids(rows: int = 2, tokens: int = 30, seed: int = 0) -> Tensor:
    return torch.randint(7, 250, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def close(got: Tensor, expected: Tensor, atol: float = 3e-6) -> None:
    torch.testing.assert_close(got, expected, atol=atol, rtol=0)


def padded(x: Tensor, front: int, inside: int, behind: int, filler: int) -> tuple[Tensor, dict[str, Tensor]]:
    """The rows with padding in three places, and what a model is told about it."""
    half = x.shape[1] // 2
    parts = [(front, None), (0, x[:, :half]), (inside, None), (0, x[:, half:]), (behind, None)]
    rows, mask = [], []
    for count, real in parts:
        rows.append(torch.full((len(x), count), filler) if real is None else real)
        mask.append(torch.zeros(len(x), count).long() if real is None else torch.ones_like(real))
    told = torch.cat(mask, 1)
    return torch.cat(rows, 1), {"attention_mask": told, "position_ids": (told.cumsum(1) - 1).clamp(min=0)}


@decoders
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_closed_gate_is_the_frozen_backbone_under_the_same_window_bit_for_bit(ref: str, attention: str) -> None:
    plain: Any = Backbone(ref=ref, window=6, attention=attention).load("causal", 0, seed=1).model
    ours = model(ref, Rules(shift=True, centre=True), attention=attention)
    x, told = padded(ids(), 4, 0, 3, filler=0)
    with torch.no_grad():
        assert torch.equal(ours(input_ids=ids()).logits, plain(input_ids=ids()).logits)
        mask = told["attention_mask"]
        assert torch.equal(*(each(input_ids=x, attention_mask=mask).logits for each in (ours, plain)))
        greedy = {"do_sample": False, "max_new_tokens": 8, "attention_mask": torch.ones_like(ids())}
        assert torch.equal(ours.generate(ids(), **greedy), plain.generate(ids(), **greedy))


@decoders
@variants
def test_any_split_of_a_stream_gives_the_same_output(ref: str, rules: Rules) -> None:
    ours, x = model(ref, rules), ids()
    with torch.no_grad():
        whole = ours(input_ids=x).logits
        for sizes in ([1] * 30, [7, 1, 12, 2, 8], [30]):
            memory = ours.memory_session()
            parts = [ours(input_ids=part, **memory.arguments).logits for part in torch.split(x, sizes, dim=1)]
            close(torch.cat(parts, 1), whole)
            assert memory.tokens == 30


@decoders
@variants
def test_padding_anywhere_leaves_no_trace_whatever_its_ids(ref: str, rules: Rules) -> None:
    """B28: left, right and interior padding, batches of 1 and 4, on the first call and on a continued one."""
    ours = model(ref, rules)
    told_positions = ref != "random:opt"  # whose positions are counted from the mask
    for rows in (1, 4):
        first, second = ids(rows, 14, seed=1), ids(rows, 8, seed=2)
        clean = ours.memory_session()
        with torch.no_grad():
            expected = [ours(input_ids=part, **clean.arguments).logits for part in (first, second)]
            for front, inside, behind in ((3, 0, 0), (0, 17, 0), (0, 0, 3), (3, 3, 17)):
                found = []
                for filler in (0, 99):
                    memory, got, masks, seen = ours.memory_session(), [], [], 0
                    for part, logits in zip((first, second), expected, strict=True):
                        x, told = padded(part, front, inside, behind, filler)
                        masks.append(told["attention_mask"])
                        told["position_ids"] = told["position_ids"] + seen
                        told["attention_mask"] = torch.cat(masks, 1)
                        if not told_positions:
                            del told["position_ids"]
                        out = ours(input_ids=x, **told, **memory.arguments).logits[masks[-1].bool()]
                        got.append(out.view(logits.shape))
                        seen += part.shape[1]
                    for one, other in zip(got, expected, strict=True):
                        close(one, other, atol=5e-6)
                    found.append((got, [memory.carried(layer) for layer in (0, 1)]))
                (a, states), (b, others) = found
                assert all(torch.equal(one, other) for one, other in zip(a, b, strict=True))
                for state, other in zip(states, others, strict=True):
                    assert torch.equal(state.state, other.state)
                    close(state.state, clean.carried(states.index(state)).state)


@variants
def test_rows_of_a_batch_never_mix(rules: Rules) -> None:
    """B30: one state a row; a row's bits do not depend on its neighbours."""
    ours, x = model(LLAMA, rules), ids(4)
    other = torch.cat([x[:1], ids(3, seed=9)])
    with torch.no_grad():
        together = ours(input_ids=x).logits
        assert torch.equal(ours(input_ids=other).logits[0], together[0])
        for row in range(4):
            close(ours(input_ids=x[row : row + 1]).logits[0], together[row])


@decoders
@variants
def test_generation_goes_on_from_the_memory_as_a_recomputation_would(ref: str, rules: Rules) -> None:
    ours, x = model(ref, rules), ids(2, 11)
    greedy = {"do_sample": False, "max_new_tokens": 8, "attention_mask": torch.ones_like(x)}
    expected = x
    with torch.no_grad():
        for _ in range(8):
            expected = torch.cat([expected, ours(input_ids=expected).logits[:, -1:].argmax(-1)], 1)
        assert torch.equal(ours.generate(x, **greedy), expected)
        for beams in (2, 3):
            searched = ours.generate(x, num_beams=beams, **greedy)
            assert torch.equal(searched, ours.generate(x, num_beams=beams, use_cache=False, **greedy))
        memory = ours.memory_session()
        ours(input_ids=x[:, :6], **memory.arguments)
        assert torch.equal(ours.generate(x, **greedy, **memory.arguments), expected)


@decoders
def test_a_left_padded_batch_generates_what_each_row_does(ref: str) -> None:
    ours, x = model(ref, VARIANTS["looking back"]), ids(2, 11)
    left, told = padded(x, 5, 0, 0, filler=0)
    greedy = {"do_sample": False, "max_new_tokens": 8}
    alone = ours.generate(x, attention_mask=torch.ones_like(x), **greedy)
    assert torch.equal(ours.generate(left, attention_mask=told["attention_mask"], **greedy)[:, 5:], alone)


@variants
def test_gradient_checkpointing_changes_no_gradient(rules: Rules) -> None:
    x, told = padded(ids(), 0, 0, 5, filler=0)
    found = []
    for checkpointing in (False, True):
        backbone, own, spec = attached(LLAMA, rules, gradient_checkpointing=checkpointing)
        leaves = {name: (tensor + 0.01).requires_grad_() for name, tensor in own.items()}
        with bind(backbone.model, leaves, spec) as bound:
            loss = bound(leaves, input_ids=x, attention_mask=told["attention_mask"]).logits.square().mean()
            found.append(torch.autograd.grad(loss, [leaves[name] for name in spec.names]))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert all(bool(grad.abs().max() > 0) for grad in found[0])


def layer(rules: Rules) -> MemoryLayer:
    made = MemoryLayer(Site("it", 0, queries=2, heads=2, width=4), rules, torch.device("cpu"))
    for number, rule in enumerate(made.parameters()):  # away from the start, where some gradients vanish
        rule.data += 0.3 * torch.randn(rule.shape, generator=torch.Generator().manual_seed(number))
        rule.requires_grad_()
    return made


@variants
def test_a_gradient_goes_through_the_state_and_stops_where_the_state_is_cut(rules: Rules) -> None:
    """What early tokens wrote moves what late tokens read, by way of S alone; finite differences say as much."""
    made = layer(rules.model_copy(update={"chunk": 4}))
    q, k, v, pull = (torch.randn(1, 12, 8, generator=torch.Generator().manual_seed(n)) for n in (1, 2, 3, 4))

    def late(k: Tensor, v: Tensor, *, cut: bool = False) -> Tensor:
        first, carried = made.read(q[:, :6], k[:, :6], v[:, :6], None, None)
        if cut:
            keys = None if carried.keys is None else carried.keys.detach()
            carried = Carried(carried.state.detach(), keys, carried.known)
        second, _ = made.read(q[:, 6:], k[:, 6:], v[:, 6:], None, carried)
        del first
        return (pull[:, 8:] * second[:, 2:]).sum()  # two tokens on, so that no filter looks back that far

    keys, values = k.clone().requires_grad_(), v.clone().requires_grad_()
    read, _ = made.read(q, keys, values, None, None)
    whole = torch.autograd.grad((pull[:, 8:] * read[:, 8:]).sum(), [keys, values])
    parts = torch.autograd.grad(late(keys, values), [keys, values])
    for one, other in zip(whole, parts, strict=True):
        close(one, other, atol=1e-4 * float(other.abs().max()))
    early = parts[0][0, :4]
    assert bool(early.abs().max() > 1e-4)
    for token, number in ((0, 0), (1, 5), (3, 2)):
        step = torch.zeros_like(k)
        step[0, token, number] = 1e-2
        with torch.no_grad():
            slope = float(late(k + step, v).double() - late(k - step, v).double()) / 2e-2
        assert math.isclose(slope, float(early[token, number]), rel_tol=0.05, abs_tol=2e-3)
    keys, values = k.clone().requires_grad_(), v.clone().requires_grad_()
    cut = torch.autograd.grad(late(keys, values, cut=True), [keys, values])
    assert not any(bool(grad[0, :6].any()) for grad in cut)


def test_beta_gate_and_key_factors_learn_from_what_lies_beyond_the_window() -> None:
    backbone, own, spec = attached(LLAMA, Rules(gate="sigmoid"), window=2)
    leaves = {name: (tensor + 0.01).requires_grad_() for name, tensor in own.items()}
    asked = {
        "gate": "layers.0.self_attn.memory.gate",
        "beta": "layers.0.self_attn.memory.beta_bias",
        "keys": "layers.0.self_attn.k_proj.lora_B.default.weight",
    }
    names = {what: next(name for name in spec.names if name.endswith(end)) for what, end in asked.items()}
    x = ids(1, 24)

    def loss(tensors: dict[str, Tensor]) -> Tensor:
        with bind(backbone.model, tensors, spec) as bound:
            logits: Tensor = bound(tensors, input_ids=x).logits
            return logits[:, -4:].double().square().sum()  # two layers of window 2 reach three tokens back

    grads = torch.autograd.grad(loss(leaves), [leaves[name] for name in names.values()])
    for name, grad in zip(names.values(), grads, strict=True):
        place = int(grad.abs().argmax())
        step = torch.zeros(grad.numel())
        step[place] = 1e-2
        both = [{**leaves, name: leaves[name].detach() + s * step.view(grad.shape)} for s in (1, -1)]
        with torch.no_grad():
            slope = float(loss(both[0]) - loss(both[1])) / 2e-2
        assert math.isclose(slope, float(grad.flatten()[place]), rel_tol=0.03)


def test_freezing_reads_on_and_writes_nothing_and_reset_forgets_every_bit() -> None:
    ours = model(LLAMA, VARIANTS["looking back"])
    fresh, memory, x, y = ours.memory_session(), ours.memory_session(), ids(), ids(seed=4)
    with torch.no_grad():
        first = ours(input_ids=x, **memory.arguments).logits
        states = [memory.carried(layer).state.clone() for layer in (0, 1)]
        memory.freeze()
        frozen = ours(input_ids=y, **memory.arguments).logits
        assert all(torch.equal(memory.carried(layer).state, states[layer]) for layer in (0, 1))
        memory.thaw()
        ours(input_ids=y, **memory.arguments)
        assert not any(torch.equal(memory.carried(layer).state, states[layer]) for layer in (0, 1))
        memory.reset()
        assert memory.tokens == memory.state_bytes == memory.cache_bytes == 0
        assert torch.equal(ours(input_ids=x, **memory.arguments).logits, first)
        assert torch.equal(ours(input_ids=x, **fresh.arguments).logits, first)
        assert not torch.allclose(ours(input_ids=y).logits, frozen, atol=1e-4)  # it did read


def test_a_full_memory_stays_within_its_cap_and_counts() -> None:
    ours = model(LLAMA, Rules(cap=0.05, **HALF))
    memory = ours.memory_session()
    memory.read(ids(tokens=64), segment=8)
    assert all(norm <= 0.05 * (1 + 1e-6) for norms in memory.norms.values() for norm in norms)
    assert memory.clipped > 0


def test_reading_by_segments_is_reading_at_once_and_so_are_the_losses() -> None:
    ours, x = model(LLAMA, VARIANTS["delta"]), ids()
    with torch.no_grad():
        logits = ours(input_ids=x).logits
    close(ours.memory_session().read(x, segment=7), logits[:, -1])
    nll = ours.memory_session().losses(x, segment=7)
    assert bool(nll[:, 0].isnan().all())
    close(nll[:, 1:], -logits[:, :-1].log_softmax(-1).gather(2, x[:, 1:, None])[..., 0], atol=1e-5)


def test_memory_is_no_state_of_the_model() -> None:
    ours = model(LLAMA, VARIANTS["titans"])
    before = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    ours.memory_session().read(ids())
    assert not dict(ours.named_buffers()).keys() & {name for name, _ in ours.named_parameters()}
    assert all(torch.equal(tensor, before[name]) for name, tensor in ours.state_dict().items())
    assert ours.state_dict().keys() == before.keys()


def test_a_copy_of_the_model_computes_the_same_with_memories_of_its_own() -> None:
    ours = model(LLAMA, VARIANTS["delta"])
    other = copy.deepcopy(ours)
    ours.memory_session().read(ids(seed=5))
    with torch.no_grad():
        assert torch.equal(other(input_ids=ids()).logits, ours(input_ids=ids()).logits)
        assert other.memory_session()._model is other


def test_the_state_is_float32_beside_a_backbone_of_half_the_width() -> None:
    ours = model(LLAMA, VARIANTS["delta"], dtype="bfloat16")
    memory = ours.memory_session()
    assert memory.read(ids()).dtype is torch.bfloat16
    assert memory.carried(0).state.dtype is torch.float32


@decoders
def test_the_trained_filter_has_four_numbers_for_each_channel_of_the_keys(ref: str) -> None:
    rules = Rules(beta="vector", gate="constant")
    backbone, _, spec = attached(ref, rules)
    heads = 2 if "kv_heads" in ref else 4
    assert sum(entry.numel for entry in spec if entry.role is Role.RULE) == 2 * 4 * heads * 16
    assert {entry.role for entry in spec} == {Role.RULE, Role.FACTOR_A, Role.FACTOR_B}
    del backbone


def test_factors_go_where_the_memory_listens_and_can_be_left_out() -> None:
    _, _, spec = attached("random:gpt2", Rules())
    assert {e.module.rpartition(".")[2] for e in spec if e.role is Role.FACTOR_A} == {"c_attn"}
    _, _, spec = attached(LLAMA, Rules())
    assert {e.module.rpartition(".")[2] for e in spec if e.role is Role.FACTOR_A} == {"q_proj", "k_proj", "v_proj"}
    _, _, spec = attached(LLAMA, Rules(), {"factors": False})
    assert {entry.role for entry in spec} == {Role.RULE}


def test_factors_start_as_those_of_lora_alone() -> None:
    _, own, _ = attached(LLAMA, Rules())
    backbone = Backbone(ref=LLAMA).load("causal", 0, seed=1)
    theta, _, _ = LoRA(rank=2, targets=("q_proj", "k_proj", "v_proj")).attach(backbone, 3, "all")
    assert all(torch.equal(own[name], tensor) for name, tensor in theta.items())


def test_what_cannot_have_a_memory_is_refused_with_the_reason() -> None:
    encoder = Backbone(ref="random:roberta").load("classification", 2, seed=1)
    with pytest.raises(CotuneError, match="reads both ways") as raised:
        Memory().attach(encoder, 0, "all")
    assert raised.value.code is Code.MODEL
    with pytest.raises(CotuneError, match="drop memory, or choose a backbone that reads from left to right") as raised:
        check_fit([("trainable", Memory())], encoder.gives)
    assert raised.value.code is Code.CONFLICT
    twice = attached(LLAMA, Rules(), {"factors": False})[0]
    with pytest.raises(CotuneError, match="a memory already"):
        Memory(factors=False).attach(twice, 0, "all")


def test_a_call_that_the_memory_cannot_follow_is_refused() -> None:
    from transformers import DynamicCache

    ours, plain = model(LLAMA, Rules()), Backbone(ref=LLAMA).load("causal", 0, seed=1).model
    memory = ours.memory_session()
    named = next(name for name in memory.arguments if name != "use_cache")
    filled = DynamicCache()
    plain(input_ids=ids(), **{named: filled, "use_cache": True})
    with pytest.raises(CotuneError, match="no memory of what it has seen"):
        ours(input_ids=ids(), **{named: filled, "use_cache": True})
    with pytest.raises(CotuneError, match="which tokens are padding"):
        ours(input_ids=ids(), attention_mask=torch.ones(2, 1, 30, 30).bool())
    with pytest.raises(CotuneError, match="cannot be cut back"):
        memory.cache.crop(-3)
    learned = model("random:opt?positions=40", Rules())
    with pytest.raises(CotuneError, match="vector for each position"):
        learned.memory_session().read(ids(tokens=41))
