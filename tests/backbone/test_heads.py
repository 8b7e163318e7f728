"""Heads for options: one number a pair for encoders, a word at the mask for masked models, each refused elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cotune.backbone import Backbone, split
from cotune.backbone.head import one_option
from cotune.core.errors import Code, CotuneError
from cotune.core.part import Capability
from cotune.estimate import estimate
from cotune.resolve import recipe

SIZES = "layers=3&hidden=16&heads=2"
HEAD = ("classifier.weight", "classifier.bias")


def backbone(arch: str) -> Backbone:
    return Backbone(ref=f"random:{arch}?{SIZES}")


def pairs(rows: int = 2, options: int = 3) -> dict[str, torch.Tensor]:
    ids = torch.randint(7, 250, (rows, options, 9), generator=torch.Generator().manual_seed(5))
    mask = torch.ones_like(ids)
    mask[0, 1, 6:] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}


@pytest.mark.parametrize("arch", ["roberta", "bert"])
def test_a_multiple_choice_head_gives_each_pair_a_number_whatever_stands_beside_it(arch: str) -> None:
    loaded = backbone(arch).load("multiple-choice", 0, seed=4)
    assert loaded.head == HEAD
    assert loaded.gives == {Capability.SPLIT}
    given = pairs()
    with torch.no_grad():
        logits = loaded.model(**given).logits
        alone = loaded.model(**{name: tensor[:1, 1:2, :6] for name, tensor in given.items()}).logits
    assert logits.shape == (2, 3)
    torch.testing.assert_close(logits[0, 1], alone[0, 0])


@pytest.mark.parametrize("arch", ["roberta", "bert"])
@pytest.mark.parametrize("head", ["multiple-choice", "masked"])
def test_shapes_alone_tell_names_and_head(arch: str, head: str) -> None:
    loaded, skeleton = backbone(arch).load(head, 0, 0), backbone(arch).skeleton(head, 0)
    shapes = [(name, tensor.shape) for name, tensor in loaded.model.named_parameters()]
    assert [(name, tensor.shape) for name, tensor in skeleton.model.named_parameters()] == shapes
    assert (skeleton.head, skeleton.gives) == (loaded.head, loaded.gives)
    assert loaded.head == (HEAD if head == "multiple-choice" else ())
    assert Capability.CAUSAL not in loaded.gives


def test_for_bert_it_is_a_classifier_of_one_class_and_for_roberta_it_is_not() -> None:
    choice, one = (backbone("bert").load(head, 1, seed=4).model for head in ("multiple-choice", "classification"))
    one.load_state_dict(choice.state_dict())
    given = pairs()
    flat = {name: tensor.flatten(0, 1) for name, tensor in given.items()}
    with torch.no_grad():
        logits: Any = one(**flat).logits
        torch.testing.assert_close(choice(**given).logits, logits.view(2, 3))
    assert "roberta.pooler.dense.weight" in dict(
        backbone("roberta").skeleton("multiple-choice", 1).model.named_parameters()
    )
    assert "classifier.dense.weight" in backbone("roberta").skeleton("classification", 1).head


@pytest.mark.parametrize("cut", [1, 2])
def test_its_halves_are_the_whole(cut: int) -> None:
    model, given = backbone("roberta").load("multiple-choice", 0, seed=4).model, pairs()
    front, back = split(model, cut)
    with torch.no_grad():
        assert torch.equal(back(front(given), given).logits, model(**given).logits)


@pytest.mark.parametrize(
    ("arch", "head", "said"),
    [
        ("llama", "multiple-choice", "llama is no model of multiple choice"),
        ("gpt2", "masked", "gpt2 is no masked language model"),
    ],
)
def test_a_decoder_has_neither(arch: str, head: str, said: str) -> None:
    with pytest.raises(CotuneError, match=said) as caught:
        backbone(arch).load(head, 0, 0)
    assert caught.value.code is Code.MODEL


def test_a_step_is_estimated_by_the_pair() -> None:
    one, two = (
        estimate(recipe("lora-fedavg"), backbone("bert"), "multiple-choice", 0, (rows, 8)).step_flops for rows in (1, 2)
    )
    assert two == 2 * one > 0
    ids = torch.zeros(2, 8)
    assert one_option(ids, "multiple-choice").shape == (2, 1, 8)
    assert one_option(ids, "masked") is ids
