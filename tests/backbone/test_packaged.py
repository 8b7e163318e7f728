"""`pkg:minilm-l6`: the real encoder that a package carries."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from cotune.backbone import Backbone, Loaded
from cotune.core.errors import Code, CotuneError

pytestmark = pytest.mark.real_model


@pytest.fixture(scope="module")
def minilm() -> Loaded:
    try:
        return Backbone(ref="pkg:minilm-l6").load("classification", 2, 0)
    except CotuneError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


def test_it_is_the_model_that_its_name_says(minilm: Loaded) -> None:
    pretrained = [tensor for name, tensor in minilm.model.named_parameters() if name not in minilm.head]
    assert sum(tensor.numel() for tensor in pretrained) == 22_713_216
    assert minilm.head == ("classifier.weight", "classifier.bias")
    assert (len(minilm.tokenizer), minilm.limit) == (30522, 512)


def test_its_weights_know_a_paraphrase(minilm: Loaded) -> None:
    texts = ["A man is eating food.", "A man eats something.", "The stock market fell sharply."]
    batch = minilm.tokenizer(texts, padding=True, return_tensors="pt")
    mask = batch["attention_mask"][..., None]
    with torch.no_grad():
        states: Tensor = minilm.model.get_submodule("bert")(**batch).last_hidden_state
    means = torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)
    assert means[0] @ means[1] > 0.7
    assert means[0] @ means[2] < 0.2


def test_the_seed_draws_the_head_and_nothing_else(minilm: Loaded) -> None:
    other = Backbone(ref="pkg:minilm-l6").load("classification", 2, 1)
    assert other.digest == minilm.digest
    assert not torch.equal(*(loaded.model.get_parameter("classifier.weight") for loaded in (minilm, other)))


def test_its_skeleton_has_its_shapes(minilm: Loaded) -> None:
    skeleton = Backbone(ref="pkg:minilm-l6").skeleton("classification", 2)
    shapes = [(name, tensor.shape) for name, tensor in minilm.model.named_parameters()]
    assert [(name, tensor.shape) for name, tensor in skeleton.model.named_parameters()] == shapes


def test_it_is_an_encoder(minilm: Loaded) -> None:
    with pytest.raises(CotuneError) as caught:
        Backbone(ref=minilm.config.ref).load("causal", 0, 0)
    assert caught.value.code is Code.MODEL
