"""A long tail: which classes are rare is a fact, who has them is another, and test rows are scored apart by it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from published import mmlu, on_disk
from tiny import experiment, play

import cotune as ct
from cotune.core.contracts import Corpus, Row
from cotune.core.errors import CotuneError
from cotune.core.seeds import Seeds
from cotune.diagnose.interval import mean_interval
from cotune.diagnose.metrics import cell_metrics
from cotune.task import MMLU, Classify, Iid, LongTail

SEEDS = Seeds(seed=2)
SIZES = {"cats": 60, "dogs": 40, "newts": 10, "voles": 6}


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    rows = [
        {"text": f"{beast} number {i}", "label": beast, "ward": beast[0]}
        for beast, n in SIZES.items()
        for i in range(n)
    ]
    path = tmp_path / "zoo.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def beasts(rows: list[Row]) -> Counter[str]:
    return Counter(row["text"].split()[0] for row in rows)


def held(corpus: Corpus, client: str) -> list[Row]:
    return [*corpus.clients[client].train, *corpus.clients[client].held]


def test_the_facts_name_the_rare_classes_their_holders_and_everyones_rows(zoo: Path) -> None:
    corpus = Classify(data=str(zoo), partition=LongTail(clients=4, holders=2, tail=2)).load(SEEDS)
    tail = corpus.facts["tail"]
    own = {client: beasts(held(corpus, client)) for client in corpus.clients}
    assert tail["by"] == "label"
    assert tail["classes"] == {
        beast: [client for client, found in own.items() if found[beast]] for beast in ("newts", "voles")
    }
    assert all(len(clients) == 2 for clients in tail["classes"].values())
    assert tail["clients"] == {
        client: {"head": found["cats"] + found["dogs"], "tail": found["newts"] + found["voles"]}
        for client, found in own.items()
    }
    tested = beasts(list(corpus.test))
    assert tail["test"] == {
        "head": tested["cats"] + tested["dogs"],
        "tail": tested["newts"] + tested["voles"],
        "other": 0,
    }
    rare = ["tail" if row["text"].startswith(("newts", "voles")) else "head" for row in corpus.test]
    assert corpus.strata == rare
    assert {*rare} == {"head", "tail"}


def test_a_column_tells_the_classes_as_well_as_the_label_does(zoo: Path) -> None:
    by_label, by_ward = (
        Classify(data=str(zoo), partition=LongTail(clients=4, tail=2, by=by)).load(SEEDS) for by in (None, "ward")
    )
    assert by_ward.strata == by_label.strata
    assert by_ward.facts["tail"]["by"] == "ward"
    assert [*by_ward.facts["tail"]["classes"]] == ["n", "v"]
    assert by_ward.facts["tail"]["clients"] == by_label.facts["tail"]["clients"]


def test_another_division_says_nothing_of_a_tail(zoo: Path) -> None:
    corpus = Classify(data=str(zoo), partition=Iid(clients=4)).load(SEEDS)
    assert corpus.strata == ()
    assert "tail" not in corpus.facts
    assert corpus.cells(0, "here") == ("here",)
    assert corpus.cells(0, "") == ()


def test_rows_without_a_label_have_no_tail_by_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": f"row {i}"}) + "\n" for i in range(20)))
    with pytest.raises(CotuneError, match=r"E_CONFIG.*nothing to divide by"):
        ct.task.Text(data=str(path), partition=LongTail(clients=2)).load(SEEDS)


def test_a_benchmarks_test_split_is_told_apart_by_the_column_and_keeps_its_own_strata(tmp_path: Path) -> None:
    def many(subjects: dict[str, int], first: int) -> list[dict[str, Any]]:
        named = [subject for subject, count in subjects.items() for _ in range(count)]
        return [mmlu(first + number, subject) for number, subject in enumerate(named)]

    known = {"anatomy": 20, "sociology": 16, "virology": 3}
    folder = on_disk(
        tmp_path,
        "cais/mmlu:all",
        {
            "validation": many(known, 0),
            "dev": many({"anatomy": 2}, 100),
            "test": many({**known, "marketing": 2}, 200),
        },
    )
    task = MMLU(data=str(folder), partition=LongTail(clients=3, tail=1, by="subject"), train_rows=5, held_rows=1)
    corpus = task.load(SEEDS)
    subjects = [row["subject"] for row in corpus.test]
    stratum = {"anatomy": "head", "sociology": "head", "virology": "tail", "marketing": ""}
    assert corpus.strata == [stratum[subject] for subject in subjects]
    assert corpus.facts["tail"]["test"] == {"head": 36, "tail": 3, "other": 2}
    kept = {name: sum(counts.values()) for name, counts in corpus.facts["tail"]["clients"].items()}
    assert kept == {name: len(held(corpus, name)) for name in corpus.clients}, "also of rows over the caps"
    cells = {corpus.cells(number, task.cell(row)) for number, row in enumerate(corpus.test)}
    assert cells == {("stem", "head"), ("humanities", "head"), ("medical-psychology", "tail"), ("humanities",)}


def test_strata_overlap_and_each_is_the_mean_over_its_rows() -> None:
    scored = {"accuracy": [1.0, 0.0, 1.0, 1.0], "loss": [1.0, 2.0, 3.0, 4.0]}
    found = cell_metrics(scored, [("a", "head"), ("a", "tail"), ("tail",), ()], {"accuracy": 0.5})
    assert {name: (one.value, one.n, one.chance) for name, one in found["accuracy"].items()} == {
        "a": (0.5, 2, 0.5),
        "head": (1.0, 1, 0.5),
        "tail": (0.5, 2, 0.5),
    }
    assert [*found] == ["accuracy"]


def test_a_rounds_record_has_the_accuracy_of_head_and_tail_apart(zoo: Path, tmp_path: Path) -> None:
    partition = {"kind": "long-tail", "clients": 4, "holders": 1, "tail": 2}
    one = experiment(task__data=str(zoo), task__partition=partition, evaluation__rows=40, federation__rounds=1)
    run = play(one, tmp_path / "out")
    (record,) = run.rounds
    strata = one.task.load(one.seeds).strata
    right = np.asarray(run.scores(1)["accuracy"])
    assert {*record.cells["accuracy"]} == {"head", "tail"}
    for name, metric in record.cells["accuracy"].items():
        inside = right[[stratum == name for stratum in strata]].tolist()
        assert metric.n == len(inside)
        assert (metric.value, metric.low, metric.high) == pytest.approx(mean_interval(inside))
    assert run.about["data"]["tail"]["test"]["tail"] > 0
    shown = [record.cells["accuracy"][name].value for name in ("head", "tail")]
    assert [*run.table("accuracy/head", "accuracy/tail").rows[0]] == [1, *shown]
