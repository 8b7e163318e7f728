"""Every task finds what is there twice: in a client, in several, and in the test; and every row has a hash."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from published import hellaswag, many, mmlu, on_disk, prompted

from cotune.core.contracts import Corpus, Row, Split, Task
from cotune.core.seeds import Seeds
from cotune.task import KINDS, MMLU, SFT, Choice, Classify, HellaSwag, Iid, Needle, Prompted, Recall, Ruler, Text
from cotune.task.divide import duplicates, row_hash

SEEDS = Seeds()
NONE = {"within_clients": 0, "between_clients": 0, "test": 0}


def written(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def tables(root: Path) -> dict[str, Task]:
    """A task of every kind that reads a table, on ten rows of which none is there twice."""
    halves = {"partition": Iid(clients=2)}
    one = {"train": many(hellaswag, 10), "validation": [hellaswag(n) for n in range(10, 13)]}
    two = {
        "validation": many(mmlu, 10),
        "test": [mmlu(20), mmlu(21)],
    }
    three = {
        "train": [prompted("rajpurkar/squad", n) for n in range(10)],
        "validation": [prompted("rajpurkar/squad", n) for n in range(10, 13)],
    }
    asked = [{"question": f"Which is {n}?", "choices": ["a", "b", "c", f"{n}"], "answer": 3} for n in range(10)]
    return {
        "choice": Choice(data=written(root / "choice.jsonl", asked), **halves),
        "classify": Classify(
            data=written(root / "label.jsonl", [{"text": f"row {n}", "label": n % 2} for n in range(10)]), **halves
        ),
        "hellaswag": HellaSwag(data=str(on_disk(root, "Rowan/hellaswag", one)), **halves),
        "mmlu": MMLU(data=str(on_disk(root, "cais/mmlu:all", two)), **halves),
        "prompted": Prompted(dataset="squad", data=str(on_disk(root, "rajpurkar/squad", three)), **halves),
        "sft": SFT(
            data=written(root / "sft.jsonl", [{"prompt": f"row {n}", "completion": "yes"} for n in range(10)]), **halves
        ),
        "text": Text(data=written(root / "text.jsonl", [{"text": f"row {n}"} for n in range(10)]), **halves),
    }


DRAWN: Mapping[str, Task] = {
    "needle": Needle(lengths=(256,), rows=6, test_rows=1),
    "recall": Recall(clients=2, rows=6, held=1, test_rows=2),
    "ruler": Ruler(lengths=(256,), rows=6, test_rows=1),
}
# What a model is not shown, changed: the row stays the same.
ASIDE: Mapping[str, Callable[[Row], Mapping[str, Any]]] = {
    "choice": lambda row: {"gold": (row["gold"] + 1) % 4},
    "classify": lambda row: {"label": 1 - row["label"]},
    "hellaswag": lambda row: {"label": (row["label"] + 1) % 4, "stratum": "another"},
    "mmlu": lambda row: {"gold": (row["gold"] + 1) % 4, "subject": "virology", "domain": "medical-psychology"},
    "needle": lambda row: {"seed": row["seed"] + 1, "length": 2 * row["length"], "depth": "depth 0.7"},
    "prompted": lambda row: {"answers": ("elsewhere",)},
    "recall": lambda row: {"gap": row["gap"] + 1},
    "ruler": lambda row: {"seed": row["seed"] + 1, "length": 2 * row["length"]},
    "sft": lambda row: {},
    "text": lambda row: {},
}


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Corpus]:
    made = {**tables(tmp_path_factory.mktemp("data")), **DRAWN}
    return {kind: task.load(SEEDS) for kind, task in made.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_is_there_again_is_found_wherever_it_was_read(kind: str, corpora: Mapping[str, Corpus]) -> None:
    corpus = corpora[kind]
    assert corpus.facts["duplicates"] == NONE
    (name, own), (other, theirs) = list(corpus.clients.items())[:2]
    row = own.train[0]
    again = {**row, **ASIDE[kind](row), "place": "somewhere else"}
    same = corpus.identity

    def found(mine: list[Row], yours: list[Row], test: list[Row]) -> dict[str, int]:
        clients = {name: Split([*own.train, *mine], own.held), other: Split(theirs.train, [*theirs.held, *yours])}
        return duplicates(clients, [*corpus.test, *test], same)

    assert found([again], [], []) == {**NONE, "within_clients": 1}
    assert found([], [again], []) == {**NONE, "between_clients": 2}
    assert found([], [], [again]) == {**NONE, "test": 1}
    hashes = [row_hash(*same(one)) for split in corpus.clients.values() for one in (*split.train, *split.held)]
    assert len({*hashes}) == len(hashes)
    assert row_hash(*same({**row, "place": "somewhere else"})) == hashes[0]
    assert (row_hash(*same(again)) == hashes[0]) == (kind in ("recall", "sft", "text")), (
        "whose rows are no more than that"
    )


def test_a_question_in_two_subjects_is_one_question(tmp_path: Path) -> None:
    splits = {
        "validation": [mmlu(0, "anatomy"), mmlu(0, "virology"), mmlu(1, "anatomy"), mmlu(2, "virology")],
        "test": [mmlu(1, "sociology"), mmlu(5, "sociology")],
    }
    found = MMLU(data=str(on_disk(tmp_path, "cais/mmlu:all", splits))).load(SEEDS).facts["duplicates"]
    assert found == {"within_clients": 0, "between_clients": 2, "test": 1}


def test_an_ending_that_both_kinds_of_the_test_have_is_one_row(tmp_path: Path) -> None:
    leaked = {**hellaswag(0), "split_type": "zeroshot", "ind": 99, "source_id": "synthetic~99"}
    splits = {"train": many(hellaswag, 6), "validation": [leaked, hellaswag(7)]}
    task = HellaSwag(data=str(on_disk(tmp_path, "Rowan/hellaswag", splits)), partition=Iid(clients=2))
    assert task.load(SEEDS).facts["duplicates"] == {**NONE, "test": 1}


def test_the_same_question_with_other_answers_is_one_row(tmp_path: Path) -> None:
    name = "rajpurkar/squad"
    leaked = {**prompted(name, 0), "answers": {"text": ["gate 0"], "answer_start": [0]}, "id": "another"}
    splits = {"train": [prompted(name, n) for n in range(6)], "validation": [leaked, prompted(name, 7)]}
    task = Prompted(dataset="squad", data=str(on_disk(tmp_path, name, splits)), partition=Iid(clients=2))
    assert task.load(SEEDS).facts["duplicates"] == {**NONE, "test": 1}
