from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cotune.backbone import Backbone
from cotune.backbone.window import seen
from cotune.core.errors import Code, CotuneError

DECODERS = ("random:llama?kv_heads=2", "random:qwen2?kv_heads=2", "random:opt", "random:gpt2")


def load(ref: str, **fields: Any) -> Any:
    return Backbone(ref=ref, **fields).load("causal", 0, seed=1).model


def ids(rows: int = 2, tokens: int = 30, seed: int = 0) -> Tensor:
    return torch.randint(7, 250, (rows, tokens), generator=torch.Generator().manual_seed(seed))


@given(
    valid=st.lists(st.booleans(), min_size=1, max_size=12),
    queries=st.integers(1, 12),
    window=st.integers(2, 6),
    sinks=st.integers(0, 3),
)
def test_a_token_sees_the_latest_valid_tokens_and_the_first_ones(
    valid: list[bool], queries: int, window: int, sinks: int
) -> None:
    queries = min(queries, len(valid))
    got = seen(torch.tensor([valid]), queries, window, sinks)[0, 0]
    for row, token in enumerate(range(len(valid) - queries, len(valid))):
        before = [column for column in range(token + 1) if valid[column]]
        near = before[-window:] if valid[token] else before[-(window - 1) :] if window > 1 else []
        # Padding asks as the latest valid token does, and what it hears goes nowhere.
        expected = {*near, *before[:sinks]} if valid[token] else {*before[-window:], *before[:sinks]}
        assert {column for column in range(len(valid)) if got[row, column]} == expected


@pytest.mark.parametrize("ref", DECODERS)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("sinks", [0, 2])
def test_a_window_is_the_stock_model_under_that_mask(ref: str, attention: str, sinks: int) -> None:
    x, place = ids(), torch.arange(30)
    near = place[:, None] - place < 5
    allowed = (place[:, None] >= place) & (near | (place < sinks))
    mask: Tensor = allowed.expand(2, 1, -1, -1)
    if attention == "eager":
        mask = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    stock, ours = load(ref, attention=attention), load(ref, attention=attention, window=5, sinks=sinks)
    extra = {"position_ids": place.expand(2, -1)}  # OPT would count them from a two-dimensional mask
    with torch.no_grad():
        assert torch.equal(ours(input_ids=x).logits, stock(input_ids=x, attention_mask=mask, **extra).logits)
        assert not torch.allclose(ours(input_ids=x).logits, stock(input_ids=x).logits, atol=1e-3)


@pytest.mark.parametrize("ref", DECODERS)
def test_a_window_as_long_as_the_row_is_no_window(ref: str) -> None:
    with torch.no_grad():
        stock, ours = load(ref)(input_ids=ids()).logits, load(ref, window=30)(input_ids=ids()).logits
    torch.testing.assert_close(ours, stock, atol=1e-6, rtol=0)


@pytest.mark.parametrize("ref", DECODERS)
@pytest.mark.parametrize("sinks", [0, 2])
def test_generation_with_a_cache_is_generation_without(ref: str, sinks: int) -> None:
    model = load(ref, window=6, sinks=sinks)
    greedy = {"do_sample": False, "max_new_tokens": 12, "attention_mask": torch.ones(2, 12, dtype=torch.long)}
    cached = model.generate(ids(tokens=12), **greedy)
    assert torch.equal(cached, model.generate(ids(tokens=12), use_cache=False, **greedy))


def test_a_cache_keeps_what_a_window_will_see_again_and_no_more() -> None:
    from transformers import DynamicCache

    model, cache = load("random:llama", window=6), DynamicCache()
    named = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    with torch.no_grad():
        for part in torch.split(ids(tokens=40), 8, dim=1):
            model(input_ids=part, use_cache=True, **{named: cache})
            assert [vars(layer)["keys"].shape[2] for layer in cache.layers] == [5, 5]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_padding_takes_no_place_in_a_window(attention: str) -> None:
    model, x = load("random:llama", attention=attention, window=5), ids(tokens=12)
    pads = torch.zeros(2, 4, dtype=torch.long)
    inside = torch.cat([x[:, :7], pads, x[:, 7:]], 1)
    mask = torch.cat([torch.ones(2, 7), torch.zeros(2, 4), torch.ones(2, 5)], 1).long()
    place = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        plain = model(input_ids=x).logits
        padded = model(input_ids=inside, attention_mask=mask, position_ids=place).logits
    torch.testing.assert_close(padded[mask.bool()].view(plain.shape), plain, atol=1e-6, rtol=0)


def test_a_window_and_rotary_positions_leave_no_limit_but_the_users_own() -> None:
    def limit(ref: str, **fields: Any) -> int:
        return Backbone(ref=ref, **fields).load("causal", 0, seed=1).limit

    assert limit("random:llama?positions=32") == 32
    assert limit("random:llama?positions=32", window=8) > 10**6
    assert limit("random:llama?positions=32", window=8, max_tokens=1000) == 1000
    assert limit("random:opt?positions=32", window=8) == 32


def test_a_window_is_refused_where_it_makes_no_sense() -> None:
    with pytest.raises(CotuneError, match="attention layer") as raised:
        Backbone(ref="random:bert", window=8).load("classification", 2, seed=1)
    assert raised.value.code is Code.MODEL
    for fields in ({"window": 1}, {"sinks": 2}):
        with pytest.raises(ValueError, match=next(iter(fields))):
            Backbone.model_validate({"ref": "random:llama", **fields})
