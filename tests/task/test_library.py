"""What the datasets library reads leaves no trace, and a hub out of reach is one line."""

from __future__ import annotations

from pathlib import Path

import datasets
import pytest

from cotune.core.errors import Code, CotuneError
from cotune.task.table import read

CANARY = "canary-7f3a"
ROWS = [{"text": "fine", "label": 1}, {"text": "2020-01-01", "label": 0}, {"text": "NA", "label": 1}]


def refused(reference: str, *said: str) -> None:
    with pytest.raises(CotuneError) as caught:
        read(reference)
    assert caught.value.code is Code.DATA
    assert caught.value.__context__ is None
    for word in said:
        assert word in str(caught.value)
    assert CANARY not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_class_names_that_a_parquet_file_declares_are_kept(tmp_path: Path) -> None:
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    path = tmp_path / "a.parquet"
    datasets.Dataset.from_list(ROWS, features=features).to_parquet(str(path))
    assert read(str(path)).names == {"label": ("no", "yes")}


def test_reading_leaves_no_cache_and_the_progress_bars_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.parquet"
    datasets.Dataset.from_list(ROWS).to_parquet(str(path))
    capfd.readouterr()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    assert len(read(str(path))) == 3
    assert not list((tmp_path / "scratch").iterdir())
    assert not datasets.are_progress_bars_disabled()
    assert capfd.readouterr() == ("", "")


def test_the_hub_out_of_reach_is_one_line_with_the_alternatives(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise ConnectionError(f"no route\n{CANARY}")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    refused("some/reviews:plain@v1", "some/reviews:plain@v1", "ConnectionError", "pkg:rotten-tomatoes", "./file.jsonl")


def test_the_hub_is_asked_for_the_config_and_revision_and_gives_the_training_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[object, ...]] = []

    def served(name: str, config: str | None, revision: str | None) -> dict[str, datasets.Dataset]:
        asked.append((name, config, revision))
        return {split: datasets.Dataset.from_list([{"text": split, "label": 0}]) for split in ("test", "train")}

    monkeypatch.setattr(datasets, "load_dataset", served)
    assert read("some/reviews:plain@v1").rows == [{"text": "train", "label": 0}]
    assert asked == [("some/reviews", "plain", "v1")]


def test_a_hub_data_set_with_other_splits_only_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = {split: datasets.Dataset.from_list([{"text": "x"}]) for split in ("dev", "test")}
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: splits)
    refused("some/reviews", "no split 'train'", "dev, test")
