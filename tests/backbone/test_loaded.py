"""The backbone as configuration: what it accepts, and what `load` promises whatever the source."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from pydantic import ValidationError

from cotune.backbone import Backbone
from cotune.core import contracts
from cotune.core.errors import Code, CotuneError


def test_what_is_loaded_and_its_skeleton_keep_the_contracts() -> None:
    backbone = Backbone(ref="random:bert")
    loaded: contracts.Backbone = backbone.load("classification", 2, 0)
    skeleton: contracts.Attachable = backbone.skeleton("classification", 2)
    assert loaded.head == skeleton.head
    assert loaded.device == "cpu"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"ref": "bert-base"}, "bare name"),
        ({"ref": "synth:recall"}, "names data"),
        ({"ref": "synth:recall"}, "builtin:NAME, pkg:minilm-l6"),
        ({"ref": "builtin:tiny"}, "no builtin model 'tiny'"),
        ({"ref": "pkg:minilm"}, "did you mean 'minilm-l6'?"),
        ({"ref": "org/name:config"}, "no configurations"),
        ({"ref": "org/name@a", "revision": "b"}, "two revisions"),
        ({"ref": "random:bert", "revision": "b"}, "only a hub id"),
    ],
)
def test_a_reference_that_names_no_backbone_is_refused_where_it_is_written(fields: dict[str, str], reason: str) -> None:
    with pytest.raises(CotuneError, match=reason.replace("?", r"\?")) as caught:
        Backbone.model_validate(fields)
    assert caught.value.code is Code.CONFIG


def test_a_folder_or_hub_id_is_not_looked_for_before_it_is_needed() -> None:
    assert Backbone(ref="./not/there").ref == "./not/there"
    assert Backbone(ref="org/name@v1", revision="v1").revision == "v1"


@pytest.mark.parametrize("field", ["quantization", "dtype", "threads", "attention"])
def test_other_fields_and_values_are_refused(field: str) -> None:
    with pytest.raises(ValidationError):
        Backbone.model_validate({"ref": "random:bert", field: 0})


def test_the_number_of_threads_is_set(restored_threads: None) -> None:
    Backbone(ref="random:bert", threads=2).load("classification", 2, 0)
    assert torch.get_num_threads() == 2
    Backbone(ref="random:bert").load("classification", 2, 0)
    assert torch.get_num_threads() == 1


@pytest.fixture
def restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_limit_is_the_least_of_model_tokenizer_and_configuration() -> None:
    assert Backbone(ref="random:llama?positions=99", max_tokens=40).load("causal", 0, 0).limit == 40
    assert Backbone(ref="random:llama?positions=30", max_tokens=40).load("causal", 0, 0).limit == 30


def test_the_attention_kernel_is_the_one_asked_for() -> None:
    model = Backbone(ref="random:llama", attention="eager").load("causal", 0, 0).model
    assert model.config._attn_implementation == "eager"  # type: ignore[union-attr]


@pytest.mark.parametrize("device", ["cuda:99", "nonsense"])
def test_a_device_that_is_not_there_is_refused_before_anything_is_loaded(device: str) -> None:
    with pytest.raises(CotuneError) as caught:
        Backbone(ref="./not/there", device=device).load("causal", 0, 0)
    assert caught.value.code is Code.CONFIG


def test_an_unknown_head_or_a_head_without_classes_is_refused() -> None:
    with pytest.raises(CotuneError, match="did you mean 'classification'"):
        Backbone(ref="random:bert").load("classifier", 2, 0)
    with pytest.raises(CotuneError, match="needs classes"):
        Backbone(ref="random:bert").load("classification", 0, 0)


def test_loading_prints_nothing_and_leaves_the_libraries_as_they_were(capfd: pytest.CaptureFixture[str]) -> None:
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled
    from transformers.utils import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled(), are_progress_bars_disabled()
    Backbone(ref="random:roberta").load("classification", 2, 0)
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled(), are_progress_bars_disabled()) == before
    assert capfd.readouterr() == ("", "")
