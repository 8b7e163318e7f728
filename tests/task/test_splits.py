"""A published data set gives the same rows from the hub and from local files, split by its makers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
from published import SCHEMAS, hellaswag, many, mmlu, on_disk, prompted

from cotune.core.errors import Code, CotuneError
from cotune.task.splits import WHOLE, joined, read_splits
from cotune.task.table import Table


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which ids of the hub are folders: the library takes those, so that only the transport is absent."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path


@pytest.mark.parametrize("name", ["Rowan/hellaswag", "cais/mmlu:all", "rajpurkar/squad"])
def test_the_hub_and_its_files_give_the_same_splits(name: str, hub: Path) -> None:
    known: dict[str, Callable[..., dict[str, Any]]] = {"Rowan/hellaswag": hellaswag, "cais/mmlu:all": mmlu}
    make = known.get(name, lambda number: prompted(name, number))
    given = {"train": many(make, 5), "validation": many(make, 3), "test": many(make, 2)}
    folder = on_disk(hub, name, given)
    wanted = ("validation", "train", "dev")
    served, local = read_splits(name, wanted), read_splits(f"./{folder.relative_to(hub)}", wanted)
    for found in (served, local):
        assert list(found) == ["validation", "train"]
        assert {split: list(table.rows) for split, table in found.items()} == {split: given[split] for split in found}
        assert found["train"].columns == tuple(SCHEMAS[name])
    assert {split: table.names for split, table in served.items()} == {s: t.names for s, t in local.items()}
    assert served["train"].place(2) == f"{name}, row 3"


def lines(folder: Path, name: str, rows: int) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("".join(json.dumps({"text": f"{name} {i}"}) + "\n" for i in range(rows)))


def test_files_named_after_splits_are_those_splits_and_shards_come_in_order(tmp_path: Path) -> None:
    for name, rows in (("train-00001.jsonl", 1), ("train-00000.jsonl", 2), ("val.jsonl", 3), (".test.jsonl", 4)):
        lines(tmp_path, name, rows)
    found = read_splits(str(tmp_path), ("train", "validation", "test"))
    assert {split: len(table) for split, table in found.items()} == {"train": 3, "validation": 3}
    assert [row["text"][:11] for row in found["train"].rows] == ["train-00000"] * 2 + ["train-00001"]
    assert found["train"].place(2) == "train-00001.jsonl, line 1"


def test_a_folder_with_another_file_is_a_folder_of_clients_and_a_file_is_whole(tmp_path: Path) -> None:
    lines(tmp_path, "train.jsonl", 2)
    lines(tmp_path, "north.jsonl", 3)
    found = read_splits(str(tmp_path), ("train",))
    assert list(found) == [WHOLE]
    assert [row["client_id"] for row in found[WHOLE].rows] == ["north"] * 3 + ["train"] * 2
    assert list(read_splits(str(tmp_path / "train.jsonl"), ("validation",))) == [WHOLE]


def test_splits_of_which_none_is_wanted_are_refused_by_name(tmp_path: Path) -> None:
    lines(tmp_path, "test.jsonl", 2)
    with pytest.raises(CotuneError, match=r"no rows in any split of train, validation .* got test") as caught:
        read_splits(str(tmp_path), ("train", "validation"))
    assert caught.value.code is Code.DATA


def test_tables_that_declare_other_classes_are_not_joined() -> None:
    def table(*names: str) -> Table:
        return Table(("label",), [{"label": 0}], [("row", 1)], names={"label": names})

    assert len(joined([table("no", "yes"), table("no", "yes")])) == 2
    with pytest.raises(CotuneError, match="other classes in column 'label'"):
        joined([table("no", "yes"), table("yes", "no")])
