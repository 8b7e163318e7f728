"""Synthetic multiple choice, and the task that reads it or any table with the same columns."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cotune.core.errors import Code, CotuneError
from cotune.core.part import resolve
from cotune.core.seeds import Seeds
from cotune.task import KINDS, Choice
from cotune.task.facts import _PLACES, _THINGS, Choices
from cotune.task.infer import inferred
from cotune.task.table import read


def fact(row: Any) -> tuple[str, str]:
    """(place, thing) that a question names, found as a reader would."""
    (thing,) = [word for word in _THINGS if re.search(rf"\b{word}\b", row["question"])]
    (place,) = [word for word in _PLACES if re.search(rf"\b{word}\b", row["question"])]
    return place, thing


def best(rows: Sequence[Mapping[str, Any]]) -> float:
    """The accuracy of a reader who answers with the colour that each fact has most often."""
    seen: dict[tuple[str, str], Counter[str]] = {}
    for row in rows:
        seen.setdefault(fact(row), Counter())[row["choices"][row["answer"]]] += 1
    return sum(counts.most_common(1)[0][1] for counts in seen.values()) / len(rows)


@pytest.mark.parametrize("shuffled", [False, True])
def test_who_knows_every_fact_is_right_but_for_the_noise(shuffled: bool) -> None:
    assert best(read(f"synth:choice?rows=1000&noise=0&shuffled={shuffled}").rows) == 1.0
    table = read(f"synth:choice?rows=6000&noise=0.2&shuffled={shuffled}")
    assert table.facts == {"synthetic": True, "optimum_accuracy": 0.8}
    assert best(table.rows) == pytest.approx(0.8, abs=0.02)


def test_a_place_belongs_to_one_domain_and_colours_and_letters_are_about_even() -> None:
    rows = read("synth:choice?domains=5&rows=4000&shuffled=true").rows
    assert len({row["domain"] for row in rows}) == 5
    assert len({(row["domain"], fact(row)[0]) for row in rows}) == 5
    for counts in (Counter(row["answer"] for row in rows), Counter(row["choices"][row["answer"]] for row in rows)):
        assert len(counts) == 4
        assert max(counts.values()) < 0.3 * len(rows)


def test_unless_shuffled_the_letter_is_told_by_the_fact() -> None:
    rows = read("synth:choice?rows=200").rows
    assert len({tuple(row["choices"]) for row in rows}) == 1


def test_rows_never_change_between_versions_of_the_program() -> None:
    assert Choices(domains=3).row(4) == {
        "question": "Once again: the bench in the bakery is of which colour?",
        "choices": ["black", "green", "red", "white"],
        "answer": 3,
        "domain": "domain-1",
    }


def test_the_option_of_domains_has_one_name() -> None:
    assert "domains=5&" in Choices.defaults()
    with pytest.raises(CotuneError, match=r"no option 'clients'.*options are domains, rows"):
        read("synth:choice?clients=3")


def test_the_columns_say_the_task_and_a_domain_is_a_client() -> None:
    assert inferred("synth:choice")[0] == "choice"
    task = Choice(data="synth:choice?domains=5&rows=200&noise=0")
    corpus = task.load(Seeds())
    assert sorted(corpus.clients) == [f"domain-{i}" for i in range(5)]
    assert (corpus.labels, corpus.chance) == ((), {"accuracy": 0.25})
    assert all(row["options"][row["gold"]] in ("black", "green", "red", "white") for row in corpus.test)
    assert resolve("task", KINDS, json.loads(task.model_dump_json())) == task


def test_a_prompt_is_the_question_with_its_options_and_is_never_cut() -> None:
    task = Choice(data="synth:choice")
    row = {"question": "What?", "options": ("a", "b", "c", "d"), "gold": 2}

    def read_(text: str) -> list[int]:
        return list(text.encode())

    ids = task.prompt(row, read_, 512)
    assert ids is not None
    assert bytes(ids).decode() == "Question: What?\nA) a\nB) b\nC) c\nD) d\nAnswer:"
    assert task.prompt(row, read_, len(ids)) == ids
    assert task.prompt(row, read_, len(ids) - 1) is None
    assert task.model_copy(update={"max_tokens": len(ids) - 1}).prompt(row, read_, 512) is None


def test_a_table_of_ones_own_is_read_and_a_wrong_answer_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    rows = [{"question": f"Which {i}?", "choices": ["w", "x", "y", "z"], "answer": i % 4} for i in range(8)]
    lines = [*rows, {**rows[0], "question": " "}]
    path.write_text("".join(json.dumps(row) + "\n" for row in lines))
    found = Choice(data=str(path))
    parsed = found.parse(read(str(path)))
    assert parsed.skipped == {"whitespace": 1}
    assert [row["gold"] for row in parsed.rows.values()] == [0, 1, 2, 3] * 2
    path.write_text(json.dumps({**rows[0], "answer": 4}) + "\n")
    with pytest.raises(CotuneError) as caught:
        found.parse(read(str(path)))
    assert caught.value.code is Code.LABEL
