"""`builtin:NAME`: what we ship is what its card says, and knows what it was trained on."""

from __future__ import annotations

import hashlib
import math
import random
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from cotune.backbone import Backbone, Loaded
from cotune.backbone.shipped import cards
from cotune.core.errors import Code, CotuneError
from cotune.core.state import digest

NAMES = ("tiny-llama", "tiny-recall")
ROOT = Path(str(files("cotune.backbone"))) / "models"
# Sentences made here, in the manner of the text that tiny-llama has read.
PLAIN = (
    "And the king said unto his servants, Go ye into the city, and bring unto me the men that keep the gate. "
    "And they went forth in the morning, and found them sitting by the well, and brought them before the king."
)


@pytest.fixture(scope="module")
def llama() -> Loaded:
    return Backbone(ref="builtin:tiny-llama").load("causal", 0, 0)


@pytest.fixture(scope="module")
def recall() -> Loaded:
    return Backbone(ref="builtin:tiny-recall").load("causal", 0, 0)


def test_every_shipped_model_has_a_card() -> None:
    assert tuple(cards()) == NAMES


@pytest.mark.parametrize(("name", "most"), [("tiny-llama", 3_000_000), ("tiny-recall", 300_000)])
def test_the_folder_is_small_and_is_what_the_card_says(name: str, most: int) -> None:
    card = cards()[name]
    assert sum(file.stat().st_size for file in (ROOT / name).iterdir()) < most
    for file in ("config.json", "model.safetensors", "tokenizer.json"):
        found = hashlib.sha256((ROOT / name / file).read_bytes()).hexdigest()
        assert found == card[f"sha256_{file.split('.')[0]}"], file


@pytest.mark.parametrize("name", NAMES)
def test_it_loads_in_float32_for_both_heads_with_the_weights_of_the_card(name: str) -> None:
    causal = Backbone(ref=f"builtin:{name}").load("causal", 0, 0)
    weights = dict(causal.model.named_parameters())
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    assert digest(weights) == cards()[name]["weights_digest"]
    assert sum(weight.numel() for weight in weights.values()) == cards()[name]["parameters"] < 10**6
    classifier = Backbone(ref=f"builtin:{name}").load("classification", 3, 0)
    assert classifier.digest == causal.digest
    batch = classifier.tokenizer(["a", "k1 v2 ; k1 ?"], padding=True, return_tensors="pt")
    assert classifier.model(**batch).logits.shape == (2, 3)


@pytest.mark.parametrize("name", NAMES)
def test_two_loads_give_the_same_logits_and_the_skeleton_the_same_shapes(name: str) -> None:
    backbone = Backbone(ref=f"builtin:{name}")
    first, second = (backbone.load("causal", 0, seed) for seed in (0, 1))
    batch = first.tokenizer("k1 v2 ; k1 ?", return_tensors="pt")
    with torch.no_grad():
        assert torch.equal(first.model(**batch).logits, second.model(**batch).logits)
    shapes = {key: weight.shape for key, weight in first.model.named_parameters()}
    assert {key: weight.shape for key, weight in backbone.skeleton("causal", 0).model.named_parameters()} == shapes


def test_any_text_comes_back_from_the_byte_level_tokenizer(llama: Loaded) -> None:
    text = "It came to pass:\n\tnaïve 你好 <eos> 0.5"
    ids = llama.tokenizer(text)["input_ids"]
    assert llama.tokenizer.decode(ids) == text
    assert not {0, 1} & set(ids)


def test_the_language_model_beats_letter_and_token_frequencies_clearly(llama: Loaded) -> None:
    card = cards()["tiny-llama"]
    held_out = card["held_out_bits_per_character"]
    assert held_out < 0.8 * card["bpe_unigram_bits_per_character"] < 0.8 * card["byte_unigram_bits_per_character"]
    ids = torch.tensor([llama.tokenizer(f"{PLAIN}")["input_ids"]])
    with torch.no_grad():
        logits = llama.model(input_ids=ids).logits[0, :-1]
    bits = float(cross_entropy(logits, ids[0, 1:], reduction="sum")) / math.log(2)
    assert bits / len(PLAIN) < held_out  # simpler sentences than those that were held out


def test_the_recall_model_tells_the_latest_value_of_a_key(recall: Loaded) -> None:
    draw = random.Random("not a seed of the training")
    told = right = 0
    for _ in range(200):
        pool = draw.sample(range(cards()["tiny-recall"]["keys"]), 6)
        held, words = {}, []
        for key in (*pool, *draw.choices(pool, k=6)):
            held[key] = draw.randrange(cards()["tiny-recall"]["values"])
            words.append(f"k{key} v{held[key]} ;")
        words += [f"f{draw.randrange(16)}" for _ in range(8)]
        asked = draw.choice(pool)
        batch = recall.tokenizer(" ".join([*words, f"k{asked} ?"]), return_tensors="pt")
        with torch.no_grad():
            best = int(recall.model(**batch).logits[0, -1].argmax())
        told += 1
        right += recall.tokenizer.decode(best) == f"v{held[asked]}"
    assert right / told >= 0.9


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(CotuneError, match=r"did you mean 'tiny-llama'\?") as caught:
        Backbone(ref="builtin:tiny-lama")
    assert caught.value.code is Code.CONFIG
