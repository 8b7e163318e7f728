"""Classification data is divided by seed alone, and what is wrong with a row is said by its place."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cotune.core.contracts import Corpus, Row
from cotune.core.errors import Code, CotuneError
from cotune.core.part import resolve
from cotune.core.seeds import Purpose, Seeds
from cotune.task import KINDS, Classify, Dirichlet, Iid, Natural

SEEDS = Seeds(seed=1)
GOOD = [{"text": f"text {n}", "label": n % 2} for n in range(40)]
SYNTH = "synth:sentiment?rows=200&clients=4"


def written(folder: Path, rows: Sequence[object]) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def everyone(corpus: Corpus) -> list[Row]:
    return [row for split in corpus.clients.values() for row in [*split.train, *split.held]]


def places(corpus: Corpus) -> list[str]:
    return [row["place"] for row in [*everyone(corpus), *corpus.test]]


def error_of(folder: Path, rows: Sequence[object], **fields: Any) -> CotuneError:
    with pytest.raises(CotuneError) as caught:
        Classify(data=written(folder, rows), **fields).load(SEEDS)
    return caught.value


def test_every_row_is_somewhere_exactly_once() -> None:
    corpus = Classify(data=SYNTH, partition=Dirichlet(clients=5, alpha=0.3)).load(SEEDS)
    assert len(corpus.test) == 40
    assert sorted(places(corpus)) == sorted(f"synthetic row {n}" for n in range(1, 201))
    assert corpus.head == "classification"
    assert corpus.labels == ("negative", "positive")


def test_the_data_seed_alone_decides_the_division() -> None:
    task = Classify(data=SYNTH, limit=150, test_limit=20)
    one = task.load(Seeds(seed=1, data=5))
    assert one == task.load(Seeds(seed=2, data=5, init=3, directions=9))
    assert one.facts["manifest"] != task.load(Seeds(seed=1, data=6)).facts["manifest"]
    assert one == task.load(Seeds(seed=5, init=0))
    assert SEEDS.of(Purpose.DATA, "test") != SEEDS.of(Purpose.DATA, "partition")


def test_a_task_is_equal_to_the_table_that_makes_it() -> None:
    task = Classify(data=SYNTH, partition=Dirichlet(clients=3, alpha=0.1), test=30, group="domain")
    assert resolve("task", KINDS, task.model_dump()) == task
    assert resolve("task", KINDS, json.loads(task.model_dump_json())) == task
    table = {"kind": "classify", "data": "./a.csv", "partition": {"kind": "iid", "clients": 2}}
    assert resolve("task", KINDS, table) == Classify(data="./a.csv", partition=Iid(clients=2))
    assert task.model_dump()["partition"]["kind"] == "dirichlet"


def test_data_that_is_divided_already_stays_so_and_other_data_is_dealt_to_ten(tmp_path: Path) -> None:
    assert set(Classify(data=SYNTH).load(SEEDS).clients) == {f"domain-{n}" for n in range(4)}
    folder = tmp_path / "wards"
    folder.mkdir()
    for name in ("north", "south"):
        (folder / f"{name}.csv").write_text("text,label\n" + "".join(f"{name} {n},{n % 2}\n" for n in range(10)))
    corpus = Classify(data=str(folder)).load(SEEDS)
    assert set(corpus.clients) == {"north", "south"}
    assert corpus.facts["partition"] == {"kind": "natural", "key": "client_id", "clients": None}
    assert len(Classify(data=written(tmp_path, GOOD)).load(SEEDS).clients) == 10


def test_held_out_groups_are_whole() -> None:
    corpus = Classify(data=SYNTH, group="domain", test=0.25, partition=Iid(clients=2)).load(SEEDS)
    assert len(corpus.test) == 50
    numbers = [int(row["place"].split()[-1]) - 1 for row in corpus.test]
    assert len({number % 4 for number in numbers}) == 1


@pytest.mark.parametrize(("test", "count"), [(0, 0), (0.0, 0), (1, 1), (30, 30), (0.001, 1), (0.5, 100)])
def test_the_test_split_is_a_count_or_a_share(test: float, count: int) -> None:
    corpus = Classify(data=SYNTH, test=test).load(SEEDS)
    assert len(corpus.test) == count
    assert len(everyone(corpus)) == 200 - count


def test_limits_use_fewer_rows_and_say_so() -> None:
    corpus = Classify(data=SYNTH, limit=100, test_limit=5, partition=Iid(clients=4)).load(SEEDS)
    assert (len(corpus.test), len(everyone(corpus))) == (5, 80)
    assert corpus.facts["rows"] == 200
    assert corpus.facts["used"] == 100
    assert corpus.facts["test"] == {"rows": 5, "unused": 15, "labels": corpus.facts["test"]["labels"]}


def test_a_test_split_of_everything_is_refused() -> None:
    with pytest.raises(CotuneError, match=r"E_DATA.*nothing left"):
        Classify(data=SYNTH, test=200).load(SEEDS)


def test_rows_without_a_text_are_skipped_counted_and_never_become_texts(tmp_path: Path) -> None:
    bad = [None, math.nan, "", " \n\t", 7, ["x"], True]
    rows = [*GOOD, *({"text": cell, "label": -9} for cell in bad), {"label": 1}, {"text": "nan", "label": 1}]
    corpus = Classify(data=written(tmp_path, rows), partition=Iid(clients=2)).load(SEEDS)
    assert corpus.facts["skipped"] == {"empty": 1, "missing": 3, "not text": 3, "whitespace": 1}
    assert corpus.facts["rows"] == 49
    texts = sorted(row["text"] for row in [*everyone(corpus), *corpus.test])
    assert texts == sorted([*(str(row["text"]) for row in GOOD), "nan"])


@pytest.mark.parametrize("label", [-1, 2, 0.5, math.nan, None, "", "4", "canary", [1]])
def test_a_label_that_is_no_class_is_an_error_with_its_row(tmp_path: Path, label: object) -> None:
    error = error_of(tmp_path, [*GOOD, {"text": "canary text", "label": label}], classes=2)
    assert error.code is Code.LABEL
    assert "rows.jsonl, line 41" in str(error)
    assert "0..1" in str(error)
    assert "canary" not in str(error)


@pytest.mark.parametrize(
    ("rows", "fields", "said"),
    [
        ([{"text": "", "label": 0}, {"label": 1}], {}, "1 empty, 1 missing"),
        ([{"text": "a", "label": 1}, {"text": "b", "label": 1}], {}, "only one class"),
        (GOOD, {"text": "sentence"}, "no column 'sentence'"),
        (GOOD, {"label": "labels"}, "did you mean 'label'"),
        (GOOD, {"group": "movie"}, "no column 'movie'"),
        (GOOD, {"partition": Natural(key="who")}, "no column 'who'"),
        (GOOD, {"partition": Dirichlet(clients=100, alpha=0.01)}, "alpha 0.01"),
        (GOOD[:5], {}, "too few rows"),
        ([*GOOD, {"text": "x", "label": 1, "who": "a"}], {"partition": Natural(key="who")}, "rows.jsonl, line 1"),
        ([{"text": "a", "label": 0, "who": "a"}, {"text": "b", "label": 1, "who": " "}], {"group": "who"}, "line 2"),
    ],
)
def test_data_that_cannot_be_used_is_one_clear_error(
    tmp_path: Path, rows: list[object], fields: dict[str, Any], said: str
) -> None:
    error = error_of(tmp_path, rows, **fields)
    assert error.code is Code.DATA
    assert said in str(error)


def test_facts_count_labels_sizes_and_chance(tmp_path: Path) -> None:
    rows = [{"text": f"t{n}", "label": "yes" if n % 4 else "no"} for n in range(80)]
    corpus = Classify(data=written(tmp_path, rows), partition=Iid(clients=2), test=20).load(SEEDS)
    assert corpus.labels == ("no", "yes")
    assert {name: sum(counts) for name, counts in corpus.facts["labels"].items()} == {"client-00": 30, "client-01": 30}
    assert corpus.facts["sizes"]["client-00"] == {"train": 24, "held": 6}
    assert corpus.chance == {"accuracy": max(corpus.facts["test"]["labels"]) / 20}
    assert sum(map(sum, corpus.facts["labels"].values())) + sum(corpus.facts["test"]["labels"]) == 80
    json.dumps(dict(corpus.facts))


def test_the_known_optimum_and_what_is_synthetic_are_facts() -> None:
    facts = Classify(data=f"{SYNTH}&noise=0.1").load(SEEDS).facts
    assert facts["optimum_accuracy"] == pytest.approx(0.9)
    assert facts["synthetic"] is True


def test_repeated_texts_between_clients_and_test_are_counted(tmp_path: Path) -> None:
    rows = [{"text": "same", "label": n % 2} for n in range(20)]
    corpus = Classify(data=written(tmp_path, rows), partition=Iid(clients=2), test=4).load(SEEDS)
    assert corpus.facts["duplicates"] == {"within_clients": 14, "between_clients": 16, "test": 4}
    assert Classify(data=written(tmp_path, GOOD), partition=Iid(clients=2)).load(SEEDS).facts["duplicates"] == {
        "within_clients": 0,
        "between_clients": 0,
        "test": 0,
    }


def test_a_manifest_names_the_data_of_a_client_without_showing_it(tmp_path: Path) -> None:
    data = written(tmp_path, GOOD)
    facts = Classify(data=data, partition=Iid(clients=2)).load(SEEDS).facts
    assert all(len(digest) == 64 for digest in facts["manifest"].values())
    changed = written(tmp_path, [{**row, "label": 1 - int(str(row["label"]))} for row in GOOD])
    other = Classify(data=changed, partition=Iid(clients=2)).load(SEEDS).facts
    assert all(facts["manifest"][client] != other["manifest"][client] for client in facts["manifest"])
    assert "text 1" not in json.dumps(dict(facts))


@pytest.mark.parametrize(
    "fields",
    [{"test": 1.0}, {"test": -1}, {"held": 1.0}, {"max_tokens": 0}, {"limit": 1}, {"classes": 1}, {"colour": 1}],
)
def test_fields_out_of_range_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Classify(data=SYNTH, **fields)


@pytest.mark.real_model
def test_rotten_tomatoes_divides_by_movie() -> None:
    task = Classify(data="pkg:rotten-tomatoes", group="movie", partition=Natural(key="movie", clients=10), test=0.1)
    corpus = task.load(SEEDS)
    assert corpus.labels == ("rotten", "fresh")
    assert len(corpus.test) == pytest.approx(1275, abs=30)
    assert max(map(len, (split.train for split in corpus.clients.values()))) < 1000
    assert corpus.facts["skipped"] == {"plot": 1097, "duplicate": 56}
    assert corpus.facts["duplicates"] == {"within_clients": 0, "between_clients": 0, "test": 0}
    assert 0.5 <= corpus.chance["accuracy"] < 0.7
