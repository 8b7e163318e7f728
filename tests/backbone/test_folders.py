"""Folders in the Hugging Face layout: what is read from them, and every way in which one is not a backbone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from cotune.backbone import Backbone, Loaded
from cotune.core.errors import Code, CotuneError


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one model of every kind, saved by the library itself."""
    root = tmp_path_factory.mktemp("saved")
    for arch, head in [("llama", "causal"), ("bert", "classification"), ("gpt2", "causal")]:
        loaded = Backbone(ref=f"random:{arch}").load(head, 4, 1)
        loaded.model.save_pretrained(root / arch)  # type: ignore[operator]
        loaded.tokenizer.save_pretrained(root / arch)
    return root


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Callable[[str], Path]:
    return lambda arch: Path(shutil.copytree(saved / arch, tmp_path / arch))


def load(folder: Path, head: str = "classification", seed: int = 0, labels: int = 2) -> Loaded:
    return Backbone(ref=str(folder)).load(head, labels, seed)


def refused(folder: Path, code: Code, reason: str, head: str = "classification") -> str:
    with pytest.raises(CotuneError, match=reason) as caught:
        load(folder, head)
    assert caught.value.code is code
    assert "\n" not in str(caught.value)
    return str(caught.value)


def edit(folder: Path, file: str, **fields: object) -> None:
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize("arch", ["llama", "gpt2"])
def test_a_folder_gives_the_model_that_was_saved_into_it(saved: Path, arch: str) -> None:
    original, loaded = Backbone(ref=f"random:{arch}").load("causal", 0, 1), load(saved / arch, "causal")
    batch = loaded.tokenizer(["text"], return_tensors="pt")
    assert torch.equal(loaded.model(**batch).logits, original.model(**batch).logits)
    assert (loaded.digest, loaded.tokenizer_digest) == (original.digest, original.tokenizer_digest)
    assert (loaded.limit, loaded.gives) == (original.limit, original.gives)
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert not loaded.model.training


def test_a_folder_and_its_skeleton_have_the_same_parameters(saved: Path) -> None:
    loaded, skeleton = load(saved / "bert"), Backbone(ref=str(saved / "bert")).skeleton("classification", 2)
    shapes = [(name, tensor.shape) for name, tensor in loaded.model.named_parameters()]
    assert [(name, tensor.shape) for name, tensor in skeleton.model.named_parameters()] == shapes
    assert skeleton.head == loaded.head


def test_a_skeleton_needs_the_config_alone(copy: Callable[[str], Path]) -> None:
    folder = copy("llama")
    for file in folder.iterdir():
        if file.name != "config.json":
            file.unlink()
    assert Backbone(ref=str(folder)).skeleton("causal", 0).model is not None


def test_a_head_that_no_file_has_is_a_function_of_the_seed(saved: Path) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first, again, other = (load(saved / "llama", seed=seed) for seed in (7, 7, 8))
    assert torch.equal(torch.get_rng_state(), before)
    heads = [loaded.model.get_parameter("score.weight") for loaded in (first, again, other)]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    assert first.digest == other.digest


def test_a_head_for_another_number_of_classes_is_drawn_anew(saved: Path) -> None:
    kept, drawn = load(saved / "bert", labels=4), load(saved / "bert", labels=2)
    original = load_file(saved / "bert" / "model.safetensors")["classifier.weight"]
    assert torch.equal(kept.model.get_parameter("classifier.weight"), original)
    assert drawn.model.get_parameter("classifier.weight").shape == (2, 64)


def test_weights_are_read_in_the_dtype_asked_for(saved: Path) -> None:
    model = Backbone(ref=str(saved / "llama"), dtype="bfloat16").load("causal", 0, 0).model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model.get_buffer("model.rotary_emb.inv_freq").dtype == torch.float32


def test_the_tokenizer_digest_does_not_depend_on_what_was_tokenized_last(saved: Path, tmp_path: Path) -> None:
    loaded = load(saved / "llama")
    loaded.tokenizer(["a", "bcd"], padding=True, truncation=True, max_length=2)
    shutil.copytree(saved / "llama", tmp_path / "used")
    loaded.tokenizer.save_pretrained(tmp_path / "used")
    assert load(tmp_path / "used").tokenizer_digest == loaded.tokenizer_digest


def test_no_folder_a_file_and_an_empty_folder_are_told_apart(tmp_path: Path) -> None:
    refused(tmp_path / "absent", Code.MODEL, "nothing there")
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file", Code.MODEL, "a file")
    refused(tmp_path, Code.MODEL, "no config.json")
    (tmp_path / "adapter_config.json").write_text("{}")
    refused(tmp_path, Code.MODEL, "adapter_config.json")


def test_pickled_weights_are_never_opened(copy: Callable[[str], Path]) -> None:
    folder = copy("bert")
    (folder / "model.safetensors").unlink()
    refused(folder, Code.MODEL, "no weights")
    (folder / "pytorch_model.bin").write_bytes(b"not even a pickle")
    refused(folder, Code.MODEL, "pytorch_model.bin")


def test_damaged_or_missing_weights_are_refused(copy: Callable[[str], Path]) -> None:
    file = copy("llama") / "model.safetensors"
    tensors = load_file(file)
    save_file({k: t for k, t in tensors.items() if "layers.1." not in k}, file, metadata={"format": "pt"})
    assert "model.layers.1." in refused(file.parent, Code.MODEL, "9 weights of the backbone are missing")
    file.write_bytes(file.read_bytes()[:-10])
    refused(file.parent, Code.MODEL, "cannot load the model")


def test_a_config_for_other_shapes_is_refused(copy: Callable[[str], Path]) -> None:
    folder = copy("llama")
    edit(folder, "config.json", intermediate_size=99)
    refused(folder, Code.MODEL, "of another shape")


def test_a_pooler_that_pretraining_dropped_is_drawn_like_the_head(copy: Callable[[str], Path]) -> None:
    file = copy("bert") / "model.safetensors"
    save_file({k: t for k, t in load_file(file).items() if "pooler" not in k}, file, metadata={"format": "pt"})
    assert load(file.parent, seed=1).digest != load(file.parent, seed=2).digest


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ('{"model_type": "t5"}', "encoder–decoder"),
        ('{"model_type": "vit"}', "vit is no classifier of sequences"),
        ('{"model_type": "no-such-architecture"}', "no-such-architecture"),
        ('{"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config"}}', "cannot read the model's config"),
        ('{"model_type": "bert", "hidden_size": "wide"}', "hidden_size"),
        ("{", "cannot read the model's config"),
    ],
)
def test_other_architectures_and_broken_configs_are_refused_with_the_reason(
    copy: Callable[[str], Path], config: str, reason: str
) -> None:
    folder = copy("bert")
    (folder / "config.json").write_text(config)
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    refused(folder, Code.MODEL, reason)


def test_a_folder_without_a_tokenizer_is_refused(copy: Callable[[str], Path]) -> None:
    folder = copy("bert")
    (folder / "tokenizer.json").unlink()
    refused(folder, Code.TOKENIZER, "no tokenizer")


@pytest.mark.parametrize(("lost", "expected"), [(("pad",), "<eos>"), (("pad", "eos"), "<unk>")])
def test_padding_falls_back_to_the_end_of_text_and_then_to_the_unknown_token(
    copy: Callable[[str], Path], lost: tuple[str, ...], expected: str
) -> None:
    folder = copy("llama")
    edit(folder, "tokenizer_config.json", padding_side="left", **{f"{name}_token": None for name in lost})
    edit(folder, "config.json", pad_token_id=None)
    loaded = load(folder)
    assert loaded.tokenizer.pad_token == expected
    assert loaded.model.config.pad_token_id == loaded.tokenizer.pad_token_id  # type: ignore[union-attr]
    batch = loaded.tokenizer(["a", "longer"], padding=True, return_tensors="pt")
    assert batch["attention_mask"].tolist() == [[1, 0, 0, 0, 0, 0], [1] * 6]
    torch.testing.assert_close(
        loaded.model(**batch).logits[:1], loaded.model(**loaded.tokenizer(["a"], return_tensors="pt")).logits
    )


def test_a_tokenizer_with_nothing_to_pad_with_is_refused(copy: Callable[[str], Path]) -> None:
    folder = copy("llama")
    bare: PreTrainedTokenizerFast = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({"a": 0}, [])))  # type: ignore[no-untyped-call]
    bare.save_pretrained(folder)
    refused(folder, Code.TOKENIZER, "nothing to pad with")


def test_a_tokenizer_with_more_ids_than_rows_is_refused(copy: Callable[[str], Path]) -> None:
    folder = copy("llama")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["one-more"])
    tokenizer.save_pretrained(folder)
    refused(folder, Code.TOKENIZER, "ids up to 263")


def test_an_adapter_beside_a_model_is_not_loaded_by_the_way(copy: Callable[[str], Path]) -> None:
    folder = copy("llama")
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "org/name"}')
    refused(folder, Code.MODEL, "an adapter beside the model")
