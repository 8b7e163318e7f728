"""Six data sets in the hub's schemas: golden prompts, label words, splits, sizes and shots."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from published import many, on_disk, prompted
from pydantic import ValidationError
from words import words

from cotune.core.errors import Code, CotuneError
from cotune.core.part import resolve
from cotune.core.seeds import Seeds
from cotune.task import KINDS, Iid, Prompted
from cotune.task.rows import Table
from cotune.task.templates import DATASETS

SEEDS = Seeds(seed=3)
CAUSAL = {
    "sst2": ("sentence 1 is here It was", (" terrible", " great")),
    "rte": ('premise 1 is here\nDoes this mean that "hypothesis 1 is here" is true? Yes or No?\n', ("Yes", "No")),
    "wic": (
        'Does the word "word 1 is here" have the same meaning in these two sentences? Yes, No?\n'
        "sentence1 1 is here\nsentence2 1 is here\n",
        ("No", "Yes"),
    ),
    "multirc": (
        "paragraph 1 is here\nQuestion: question 1 is here\n"
        'I found this answer "answer 1 is here". Is that correct? Yes or No?\n',
        ("No", "Yes"),
    ),
    "boolq": ("passage 1 is here Question 1 is here?\n", ("No", "Yes")),
    "squad": (
        "Title: title 1 is here\nContext: context 1 is here\nQuestion: question 1 is here\nAnswer:",
        (" gate 1", " the gate 1"),
    ),
}
MASKED = {
    "sst2": ("sentence 1 is here It was", ".", (" terrible", " great")),
    "rte": ("premise 1 is here?", ", hypothesis 1 is here", (" Yes", " No")),
    "wic": (
        'sentence1 1 is here sentence2 1 is here Does "word 1 is here" mean the same in both?',
        ".",
        (" No", " Yes"),
    ),
    "multirc": ("paragraph 1 is here question 1 is here Is it answer 1 is here?", ".", (" No", " Yes")),
    "boolq": ("passage 1 is here Question 1 is here?", ".", (" No", " Yes")),
}


def folder(root: Path, dataset: str, train: int = 30, test: int = 8) -> str:
    name = DATASETS[dataset].data
    splits = {"train": many(prompted, train, name), "validation": many(prompted, test, name)}
    hidden = many(prompted, 4, name, hidden=True) if dataset != "squad" else many(prompted, 4, name)
    return str(on_disk(root, name, {**splits, "test": hidden}))


@pytest.mark.parametrize("dataset", CAUSAL)
def test_the_prompt_and_the_answers_of_a_row_are_mezos(dataset: str, tmp_path: Path) -> None:
    task = Prompted(dataset=dataset, data=folder(tmp_path, dataset), partition=Iid(clients=2))
    corpus = task.load(SEEDS)
    (row,) = (row for row in corpus.test if row["place"].endswith("row 2"))
    asked = task.question(row)
    assert (asked.prompt, asked.options) == CAUSAL[dataset]
    assert asked.gold == (1 if dataset not in ("squad", "boolq") else 0)
    assert corpus.labels == tuple(word.strip() for word in DATASETS[dataset].words)
    assert corpus.facts["splits"] == {"clients": ["train"], "test": ["validation"]}
    assert (sum(len(s.train) for s in corpus.clients.values()), len(corpus.test)) == (20, 8)
    assert task.encode(corpus.test, words("<bos> $A"), 400).sources == [*range(8)]


@pytest.mark.parametrize("dataset", MASKED)
def test_a_masked_prompt_has_its_gap_where_the_word_is_missing(dataset: str, tmp_path: Path) -> None:
    task = Prompted(dataset=dataset, form="masked", data=folder(tmp_path, dataset), partition=Iid(clients=2))
    (row,) = (row for row in task.load(SEEDS).test if row["place"].endswith("row 2"))
    asked = task.question(row)
    assert (asked.prompt, asked.behind, asked.options) == MASKED[dataset]
    assert (task.head, task.metrics) == ("masked", ("loss", "accuracy", "tied"))


def test_a_data_set_knows_where_its_rows_are_and_the_table_says_so() -> None:
    assert Prompted(dataset="rte").data == "aps/super_glue:rte"
    assert Prompted(dataset="rte", data="./mine").data == "./mine"
    assert resolve("task", KINDS, Prompted(dataset="rte").model_dump()) == Prompted(dataset="rte")
    assert {name: asks.data for name, asks in DATASETS.items()} == {
        "sst2": "nyu-mll/glue:sst2",
        "rte": "aps/super_glue:rte",
        "wic": "aps/super_glue:wic",
        "multirc": "aps/super_glue:multirc",
        "boolq": "google/boolq",
        "squad": "rajpurkar/squad",
    }


def test_the_sizes_are_mezos() -> None:
    task = Prompted(dataset="sst2")
    assert (task.limit, task.test_limit, round(task.held * task.limit)) == (1500, 1000, 500)


@pytest.mark.parametrize("dataset", [name for name in CAUSAL if name not in ("squad", "boolq")])
def test_rows_with_a_hidden_label_are_refused(dataset: str, tmp_path: Path) -> None:
    path = Path(folder(tmp_path, dataset)) / "test-00000-of-00001.parquet"
    with pytest.raises(CotuneError, match=r"the label is hidden .* row 1 .* use the validation split") as caught:
        Prompted(dataset=dataset, data=str(path)).load(SEEDS)
    assert caught.value.code is Code.LABEL


def test_shots_are_rows_of_each_class_and_a_class_with_fewer_is_refused(tmp_path: Path) -> None:
    data = folder(tmp_path, "sst2")
    task = Prompted(dataset="sst2", data=data, shots=6, held=0.5, partition=Iid(clients=1))
    (split,) = task.load(SEEDS).clients.values()
    assert (len(split.train), len(split.held)) == (6, 6)
    assert Counter(row["label"] for row in [*split.train, *split.held]) == {0: 6, 1: 6}
    assert task.load(SEEDS) == task.load(SEEDS)
    with pytest.raises(CotuneError, match=r"too few rows of a class .* got 15 of class 0"):
        Prompted(dataset="sst2", data=data, shots=16).load(SEEDS)


def test_chance_is_the_larger_class_of_the_test_and_squad_has_none(tmp_path: Path) -> None:
    corpus = Prompted(dataset="rte", data=folder(tmp_path, "rte", test=5), partition=Iid(clients=2)).load(SEEDS)
    assert corpus.facts["test"]["labels"] == [3, 2]
    assert corpus.chance == dict.fromkeys(("accuracy", "accuracy_sum", "accuracy_byte"), 0.6)
    assert {name: sum(counts) for name, counts in corpus.facts["labels"].items()} == {"client-00": 15, "client-01": 15}
    written = Prompted(dataset="squad", data=folder(tmp_path, "squad"), partition=Iid(clients=2)).load(SEEDS)
    assert (written.chance, written.labels) == ({}, ())
    assert {title for topics in written.facts["topics"].values() for title in topics} == {
        f"title {number} is here" for number in range(30)
    }


def test_boolq_is_read_from_either_publisher(tmp_path: Path) -> None:
    rows = [{"passage": f"p{i}", "question": "is it?", "label": i % 2} for i in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = Prompted(dataset="boolq", data=str(tmp_path / "rows.jsonl"), test=4, partition=Iid(clients=1))
    found = [*task.load(SEEDS).test]
    assert all(row["label"] == int(row["passage"][1:]) % 2 for row in found)
    assert task.question(found[0]).prompt.endswith(" Is it?\n")


@pytest.mark.parametrize(
    ("cell", "said"),
    [(None, "not a list of answers"), ({"text": "gate"}, "not a list of answers"), ({"text": [3]}, "not a list")],
)
def test_answers_that_are_no_texts_are_refused_and_questions_without_one_are_counted(cell: Any, said: str) -> None:
    rows = [prompted("rajpurkar/squad", 0), {**prompted("rajpurkar/squad", 1), "answers": {"text": []}}]
    task, places = Prompted(dataset="squad"), [("row", 1), ("row", 2)]
    found = task.parse(Table(tuple(rows[0]), rows, places))
    assert ([*found.rows], found.skipped) == ([0], {"without an answer": 1})
    with pytest.raises(CotuneError, match=rf"{said}.* row 2"):
        task.parse(Table(tuple(rows[0]), [rows[0], {**rows[1], "answers": cell}], places))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dataset": "squad", "form": "masked"}, "has no word to put at a mask"),
        ({"dataset": "squad", "shots": 3}, "squad has no classes"),
        ({"dataset": "cola"}, "dataset"),
        ({}, "dataset"),
    ],
)
def test_what_a_data_set_has_not_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Prompted.model_validate(options)
