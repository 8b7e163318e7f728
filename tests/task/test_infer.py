"""Columns say the task, and no more is read than it takes to see them."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pytest
from typed import Type, refused, typing

from cotune import resolve
from cotune.core.errors import Code, CotuneError
from cotune.task.infer import TASKS, inferred
from cotune.task.packaged import PACKAGED
from cotune.task.synth import SYNTHETIC
from cotune.task.table import columns, read

BACKBONE = "random:llama?layers=1&hidden=16&heads=2"
ROWS: dict[tuple[str, ...], str] = {
    ("text", "label"): "classify",
    ("label", "text", "messages"): "classify",
    ("messages", "id"): "sft",
    ("prompt", "completion", "domain"): "sft",
    ("instruction", "input", "output"): "sft",
    ("instruction", "output"): "sft",
    ("text", "domain"): "text",
    ("prompt", "text"): "text",
    ("ind", "ctx_a", "ctx_b", "ctx", "endings", "label"): "hellaswag",
    ("question", "subject", "choices", "answer"): "mmlu",
}


@pytest.fixture
def type_(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Type:
    monkeypatch.chdir(tmp_path)
    return typing(capfd)


def written(folder: Path, suffix: str, names: tuple[str, ...]) -> str:
    path = folder / f"rows{suffix}"
    row = dict.fromkeys(names, "canary")
    match suffix:
        case ".csv":
            path.write_text(",".join(names) + "\n" + ",".join(row.values()) + "\n")
        case ".json":
            path.write_text(json.dumps([row, row]))
        case ".jsonl":
            path.write_text(f"\n{json.dumps(row)}\n")
        case _:
            datasets.Dataset.from_list([row]).to_parquet(str(path))
    return str(path)


@pytest.mark.parametrize("suffix", [".csv", ".json", ".jsonl", ".parquet"])
def test_the_columns_of_a_file_say_the_task(tmp_path: Path, suffix: str) -> None:
    for names, kind in ROWS.items():
        found, needed = inferred(written(tmp_path, suffix, names))
        assert found == kind
        assert set(needed) <= set(names)


def test_a_folder_is_what_its_first_file_with_rows_is(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n")
    (tmp_path / ".hidden.csv").write_text("question\n")
    (tmp_path / "notes.txt").write_text("text,label\n")
    (tmp_path / "b").mkdir()
    written(tmp_path / "b", ".jsonl", ("prompt", "completion"))
    assert inferred(str(tmp_path)) == ("sft", ("prompt", "completion"))


def test_columns_are_seen_in_the_first_rows_of_a_file_that_is_broken_later(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a"}\n{"text": "b", "label": 1}\n' * 40 + "no JSON\n")
    assert inferred(str(path))[0] == "classify"
    with pytest.raises(CotuneError, match="line 81"):
        read(str(path))


def test_generated_and_packaged_data_say_their_columns_without_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SYNTHETIC:
        assert columns(f"synth:{name}?rows=9999999") == read(f"synth:{name}?rows=2").columns
    monkeypatch.setattr("cotune.task.packaged.members", lambda *_, **__: pytest.fail("fetched"))
    assert {name: inferred(f"pkg:{name}")[0] for name in PACKAGED} == {
        "kjv": "text",
        "mmlu-dev": "mmlu",
        "rotten-tomatoes": "classify",
    }


@pytest.mark.real_model
@pytest.mark.parametrize("name", PACKAGED)
def test_packaged_columns_are_those_of_the_rows(name: str) -> None:
    assert columns(f"pkg:{name}") == read(f"pkg:{name}").columns


def test_the_hub_is_asked_for_the_description_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Builder:
        info = type("Info", (), {"features": {"messages": None, "id": None}})

    asked: list[tuple[object, ...]] = []

    def builder(*args: object, **options: object) -> Builder:
        asked.append((*args, *options.values()))
        return Builder()

    monkeypatch.setattr(datasets, "load_dataset_builder", builder)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: pytest.fail("downloaded"))
    assert inferred("some/talks:short@v1") == ("sft", ("messages",))
    assert asked == [("some/talks", "short", "v1")]


@pytest.mark.parametrize(
    ("suffix", "content", "said"),
    [
        (".jsonl", '{"question": "canary text", "reply": 1}\n', "columns question, reply"),
        (".csv", "canary text of a row,with a comma\n1,2\n", "columns 2 that are no names"),
        (".jsonl", "canary\n", "not JSON"),
        (".jsonl", "", "no rows"),
        (".csv", b"\xff\xfecanary", "not UTF-8"),
        (".txt", "text", "not a kind of data file"),
    ],
)
def test_columns_that_say_nothing_are_one_line_with_names_and_no_row(
    tmp_path: Path, suffix: str, content: str | bytes, said: str
) -> None:
    path = tmp_path / f"rows{suffix}"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CotuneError) as caught:
        inferred(str(path))
    assert caught.value.code is Code.DATA
    assert said in str(caught.value)
    assert "canary" not in str(caught.value)
    if "columns" in said:
        assert all(" and ".join(needed) in str(caught.value) for needed, _ in TASKS)


def test_an_unknown_reference_is_refused_as_when_it_is_read() -> None:
    for reference, said in (("synth:prosa", "synth:prose"), ("pkg:bible", "pkg:kjv"), ("kjv", "pkg:kjv")):
        with pytest.raises(CotuneError, match=said):
            inferred(reference)


def test_a_task_is_inferred_said_and_named_explicitly() -> None:
    heard: list[str] = []

    def kind(task: str) -> str:
        loaded = resolve.load("lora-fedavg", backbone=BACKBONE, task=task, say=heard.append).task
        assert loaded.model_dump()["data"] == task.removeprefix(f"{loaded.kind}:")
        return loaded.kind

    assert [kind(f"synth:{name}") for name in ("prose", "instructions", "sentiment")] == ["text", "sft", "classify"]
    assert heard == [
        "task text, from columns text",
        "task sft, from columns prompt, completion",
        "task classify, from columns text, label",
    ]
    assert [kind("text:pkg:kjv"), kind("sft:./nowhere"), kind("classify:./x")] == ["text", "sft", "classify"]
    assert len(heard) == 3, "a task that was named is not said"


def test_a_file_that_names_its_task_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('recipe = "local"\n[task]\nkind = "text"\ntext = "body"\ndata = "./old.csv"\n')
    task = resolve.load(str(path), backbone=BACKBONE, task="./new.csv").task
    assert task.model_dump(include={"kind", "text", "data"}) == {"kind": "text", "text": "body", "data": "./new.csv"}


def test_a_run_says_its_task_unless_it_is_quiet(type_: Type) -> None:
    words = ("run", "lora-fedavg", "--backbone", BACKBONE, "--task", "synth:instructions?rows=40&clients=2")
    budget = ("--rounds", "1", "--set", "method.budget={steps=1, batch=4}")
    said = type_(*words, *budget)
    assert (said.status, said.err) == (0, "")
    assert said.out.splitlines()[1] == "task sft, from columns prompt, completion"
    assert "perplexity" in said.out
    assert "chance 263" in said.out
    assert "task sft" not in type_(*words, *budget, "--fresh", "--quiet").out


def test_columns_that_say_no_task_end_a_run_with_status_3(type_: Type) -> None:
    Path("rows.jsonl").write_text('{"question": "a"}\n')
    line = refused(type_("run", "local", "--backbone", BACKBONE, "--task", "./rows.jsonl"), "E_DATA", 3)
    assert "columns question" in line


def test_shapes_alone_know_the_head_of_a_named_task(type_: Type) -> None:
    said = type_("show", "fedavg", "--backbone", BACKBONE, "--task", "text:./not-there", "--shapes-only")
    assert said.status == 0
    assert "assumed: 1 client of 16 rows" in said.out
    assert "head  " not in said.out.partition("what trains")[2].partition("\n\n")[0]
