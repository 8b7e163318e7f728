"""HellaSwag: rows in the hub's schema become the harness's prompts, hidden labels are refused, activities divide."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from published import hellaswag, many, on_disk
from words import words

from cotune.core.errors import Code, CotuneError
from cotune.core.seeds import Seeds
from cotune.task import Dirichlet, HellaSwag, Iid
from cotune.task.rows import Table

SEEDS = Seeds(seed=3)


def loaded(folder: Path, **options: Any) -> HellaSwag:
    return HellaSwag(data=str(folder), **{"partition": Iid(clients=2), **options})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    splits = {"train": many(hellaswag, 30), "validation": many(hellaswag, 10), "test": many(hellaswag, 4, hidden=True)}
    return on_disk(tmp_path, "Rowan/hellaswag", splits)


def test_the_prompt_of_a_row_is_the_harnesss_and_endings_stand_behind_one_blank(folder: Path) -> None:
    task = loaded(folder, test_limit=1)
    (row,) = task.load(SEEDS).test
    number = int(row["place"].split()[-1]) - 1
    activity = ("Opening gates", "Sailing", "Baking")[number % 3]
    asked = task.question(row)
    assert asked.prompt == f"{activity}: A person. stands at gate {number}. Then the person"
    ways = ("up", "down the hill", "left", "right")
    assert asked.options == tuple(f" walks {way} {number} steps." for way in ways)
    assert (asked.gold, row["stratum"]) == (number % 4, ("indomain", "zeroshot")[number % 2])
    assert task.cell(row) == row["stratum"]


def test_the_papers_wording_has_no_activity_no_capital_and_keeps_brackets(folder: Path) -> None:
    task = loaded(folder, wording="paper", test_limit=1)
    (row,) = task.load(SEEDS).test
    number = int(row["place"].split()[-1]) - 1
    asked = task.question(row)
    assert asked.prompt == f"A person. stands at gate {number}. then the person"
    assert asked.options[0] == f" walks up {number} [substeps] steps."


@pytest.mark.parametrize("wording", ["harness", "paper"])
def test_blanks_around_an_ending_change_nothing(wording: str) -> None:
    task = HellaSwag.model_validate({"wording": wording})
    row = {"activity": "Sailing", "context": ("He sails.", "he"), "label": 1}
    plain, spaced = (("goes on.", "stops.", "é", "中 文"), (" goes  on. ", "stops. ", " é", "  中 文"))
    assert task.question({**row, "endings": plain}) == task.question({**row, "endings": spaced})


def test_clients_train_on_train_and_the_test_is_validation_and_both_say_so(folder: Path) -> None:
    corpus = loaded(folder, held=0.0).load(SEEDS)
    assert sum(len(split.train) for split in corpus.clients.values()) == 30
    assert (len(corpus.test), corpus.facts["used"], corpus.head) == (10, 40, "causal")
    assert corpus.facts["splits"] == {"clients": ["train"], "test": ["validation"]}
    assert corpus.chance == {"accuracy": 0.25, "accuracy_sum": 0.25, "accuracy_byte": 0.25}
    assert loaded(folder, form="choice").load(SEEDS).chance == {"accuracy": 0.25}
    assert (loaded(folder, form="choice").head, loaded(folder, form="choice").metrics) == (
        "multiple-choice",
        ("loss", "accuracy", "tied"),
    )
    topics = corpus.facts["topics"]
    held = {name: [*split.train, *split.held] for name, split in corpus.clients.items()}
    assert topics == {name: dict(Counter(row["activity"] for row in rows)) for name, rows in held.items()}


def test_ten_clients_by_activity_are_usual(tmp_path: Path) -> None:
    folder = on_disk(tmp_path, "Rowan/hellaswag", {"train": many(hellaswag, 120), "validation": many(hellaswag, 4)})
    corpus = HellaSwag(data=str(folder)).load(SEEDS)
    usual = Dirichlet(clients=10, alpha=0.3, by="activity_label", minimum=8)
    assert corpus.facts["partition"] == usual.model_dump(mode="json")
    assert min(len([*split.train, *split.held]) for split in corpus.clients.values()) >= 8
    assert sum(sum(counts.values()) for counts in corpus.facts["topics"].values()) == 120


def test_what_is_used_is_a_function_of_the_data_seed_alone(folder: Path) -> None:
    one, again, other = (loaded(folder, limit=20, test_limit=5).load(Seeds(seed=seed)) for seed in (1, 1, 2))
    assert one == again
    assert one.facts["manifest"] != other.facts["manifest"]
    assert one.facts["test"] == {"rows": 5, "unused": 5}


@pytest.mark.parametrize("label", ["", "4", "-1", " ", "x", "1.5", -1, 4, None, 1.0, [1]])
def test_a_label_that_is_hidden_or_no_ending_is_refused_and_never_the_first(label: Any) -> None:
    row = {**hellaswag(0), "label": label}
    with pytest.raises(CotuneError) as caught:
        HellaSwag().parse(Table(tuple(row), [hellaswag(1), row], [("rows.jsonl, line", 1), ("rows.jsonl, line", 2)]))
    assert caught.value.code is Code.LABEL
    assert "rows.jsonl, line 2" in str(caught.value)
    hidden = label in ("", "-1", " ", -1, None)
    assert ("the label is hidden" in str(caught.value)) == hidden
    assert ("use the validation split" in str(caught.value)) == hidden


def test_the_test_split_alone_is_refused(folder: Path) -> None:
    with pytest.raises(CotuneError, match="the label is hidden"):
        loaded(folder / "test-00000-of-00001.parquet").load(SEEDS)


@pytest.mark.parametrize("label", ["2", 2, "02"])
def test_a_label_is_a_number_as_text_or_not(label: Any) -> None:
    row = {**hellaswag(0), "label": label}
    parsed = HellaSwag().parse(Table(tuple(row), [row], [("row", 1)]))
    assert parsed.rows[0]["label"] == 2


def test_endings_that_are_not_four_texts_are_refused_and_rows_without_a_context_are_counted() -> None:
    def parsed(**other: Any) -> Any:
        rows = [hellaswag(0), {**hellaswag(1), **other}]
        return HellaSwag().parse(Table(tuple(rows[0]), rows, [("row", 1), ("row", 2)]))

    for endings in (["a", "b", "c"], "abcd", None, ["a", "b", "c", 4]):
        with pytest.raises(CotuneError, match=r"not a list of options · row 2 · expected 4 texts"):
            parsed(endings=endings)
    assert parsed(ctx_a="", ctx_b="", ctx="").skipped == {"without a context": 1}
    assert parsed(ctx_a="").rows[1]["context"] == (hellaswag(1)["ctx"], "")


def test_long_contexts_are_cut_and_counted_and_endings_are_whole(folder: Path) -> None:
    task = loaded(folder, max_tokens=60)
    rows = task.load(SEEDS).test
    found = task.encode(rows, words("<bos> $A"), 1000)
    assert found.truncated == len(found.examples) == 10
    assert all(len(example["input_ids"]) == example["ends"][-1] <= 4 * 60 for example in found.examples)
    dropped = loaded(folder, max_tokens=20).encode(rows, words("<bos> $A"), 1000)
    assert (dropped.examples, sum(dropped.dropped.values())) == ([], 10)
