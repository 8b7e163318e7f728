"""MMLU: 57 subjects, five clients, the papers' counts, and letters that a planted model gets right."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from published import many, mmlu, on_disk
from words import VOCAB, network, words

from cotune.core.contracts import Row
from cotune.core.errors import Code, CotuneError
from cotune.core.seeds import Seeds
from cotune.task import MMLU, Iid
from cotune.task import mmlu_dev as carried
from cotune.task.letters import LETTERS, TOO_LONG
from cotune.task.mmlu import DOMAINS
from cotune.task.rows import Table
from cotune.task.table import read

SEEDS = Seeds(seed=3)
SUBJECTS = [subject for subjects in DOMAINS.values() for subject in subjects]
BLANKS = tuple(("Ġ", letter) for letter in LETTERS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    def rows(each: int, subjects: list[str]) -> list[dict[str, Any]]:
        return [mmlu(number, subject) for subject in subjects for number in range(each)]

    unnamed = [mmlu(number, "") for number in range(6)]
    splits = {"test": rows(6, SUBJECTS), "validation": rows(2, SUBJECTS), "dev": rows(1, SUBJECTS)}
    return on_disk(tmp_path, "cais/mmlu:all", {**splits, "auxiliary_train": unnamed})


def test_there_are_57_subjects_each_in_one_of_five_domains() -> None:
    assert len(SUBJECTS) == len({*SUBJECTS}) == 57
    assert {name: len(subjects) for name, subjects in DOMAINS.items()} == {
        "law-ethics": 8,
        "humanities": 20,
        "stem": 11,
        "math-cs": 8,
        "medical-psychology": 10,
    }


def test_the_prompt_of_a_row_is_the_papers() -> None:
    seen: list[str] = []
    row = MMLU().parse(MMLU().prepared(_table(mmlu(7, "anatomy", 2)))).rows[0]

    def read(prompt: str) -> list[int]:
        seen.append(prompt)
        return [1]

    MMLU().prompt(row, read, 99)
    assert seen == ["Question: What is 7 plus 7?\nA. 14\nB. 15\nC. 16\nD. 17\nAnswer:"]
    assert (row["gold"], MMLU().cell(row), row["subject"]) == (2, "stem", "anatomy")


def _table(*rows: dict[str, Any]) -> Table:
    return Table(tuple(rows[0]), rows, [("rows.jsonl, line", number + 1) for number in range(len(rows))])


def test_clients_are_domains_and_each_row_is_with_the_client_of_its_subject(folder: Path) -> None:
    corpus = MMLU(data=str(folder)).load(SEEDS)
    assert {*corpus.clients} == {*DOMAINS}
    for name, split in corpus.clients.items():
        assert {row["subject"] for row in [*split.train, *split.held]} == {*DOMAINS[name]}
        assert corpus.facts["topics"][name] == dict.fromkeys(DOMAINS[name], 3)
    assert {MMLU().cell(row) for row in corpus.test} == {*DOMAINS}


def test_the_clean_protocol_tests_on_the_test_and_the_papers_trains_on_it(folder: Path) -> None:
    clean, paper = (MMLU(data=str(folder), protocol=protocol).load(SEEDS) for protocol in ("clean", "paper"))
    assert clean.facts["splits"] == {"clients": ["validation", "dev"], "test": ["test"]}
    assert paper.facts["splits"] == {"clients": ["test"], "test": ["validation", "dev"]}
    sizes = {name: (len(split.train), len(split.held)) for name, split in paper.clients.items()}
    assert sizes == {name: (6 * len(s) - len(s), len(s)) for name, s in DOMAINS.items()}
    assert (len(clean.test), len(paper.test)) == (6 * 57, 3 * 57)
    assert MMLU().protocol == "clean"


def test_the_papers_protocol_on_the_published_sizes_gives_the_papers_counts() -> None:
    """A sixth of the test split is held back, at most 200; at most 2,000 train."""
    published = {"law-ethics": 3393, "humanities": 4703, "stem": 2055, "math-cs": 1098, "medical-psychology": 2793}
    found = {}
    for name, count in published.items():
        rows: list[Row] = [{"number": number} for number in range(count)]
        split = MMLU(protocol="paper").divided(rows, seed=5)
        found[name] = (len(split.train), len(split.held))
        both = [row["number"] for row in [*split.train, *split.held]]
        assert len({*both}) == len(both)
    assert found == {
        "law-ethics": (2000, 200),
        "humanities": (2000, 200),
        "stem": (1713, 200),  # the paper's 2,000 do not fit beside 200 into the 2,055 rows of its subjects
        "math-cs": (915, 183),
        "medical-psychology": (2000, 200),
    }
    assert sum(held for _, held in found.values()) == 983


def test_another_partition_divides_rows_of_all_domains(folder: Path) -> None:
    corpus = MMLU(data=str(folder), partition=Iid(clients=3), train_rows=10, held_rows=2).load(SEEDS)
    assert [(len(s.train), len(s.held)) for s in corpus.clients.values()] == [(10, 2)] * 3


def test_a_subject_of_no_domain_is_counted_and_an_answer_that_is_none_is_refused() -> None:
    task = MMLU()
    found = task.parse(task.prepared(_table(mmlu(0), mmlu(1, "alchemy"), mmlu(2, ""), {**mmlu(3), "question": " "})))
    assert ([*found.rows], found.skipped) == ([0], {"of a subject in no domain": 2, "whitespace": 1})
    for answer in (4, -1, None, "A", ""):
        with pytest.raises(CotuneError, match=r"rows.jsonl, line 1") as caught:
            task.parse(task.prepared(_table({**mmlu(0), "answer": answer})))
        assert caught.value.code is Code.LABEL
    with pytest.raises(CotuneError, match="no column 'choices'"):
        task.parse(task.prepared(_table({"question": "?", "subject": "anatomy", "answer": 0})))


@pytest.mark.parametrize(
    "tokenizer", [words("<bos> $A"), words(merges=BLANKS)], ids=["bytes", "a letter and its blank"]
)
def test_a_model_that_always_answers_c_is_right_on_rows_whose_answer_is_c(tokenizer: Any) -> None:
    task = MMLU()
    rows = [*task.parse(task.prepared(_table(*(mmlu(number, "anatomy", 2) for number in (1, 20, 300))))).rows.values()]
    examples = task.encode(rows, tokenizer, 200).examples
    batch = task.collate(examples, tokenizer)

    def answers_c(input_ids: torch.Tensor, **_: Any) -> SimpleNamespace:
        logits = torch.zeros(*input_ids.shape, VOCAB)
        logits[..., examples[0]["letters"][2]] = 20.0
        return SimpleNamespace(logits=logits)

    found = {name: values.tolist() for name, values in task.scores(answers_c, batch).items()}
    assert found["accuracy"] == found["generated"] == [1.0] * 3
    assert found["tied"] == [0.0] * 3
    assert min(found["letter_mass"]) > 0.99
    assert found.keys() == {*task.metrics}
    wrong = task.encode([{**row, "gold": 0} for row in rows], tokenizer, 200).examples
    assert task.scores(answers_c, task.collate(wrong, tokenizer))["accuracy"].tolist() == [0.0] * 3


def test_a_letter_may_be_the_best_of_four_and_not_what_would_be_written() -> None:
    task, tokenizer = MMLU(), words()
    row = task.parse(task.prepared(_table(mmlu(1, "anatomy", 1)))).rows[0]
    (example,) = task.encode([row], tokenizer, 200).examples
    letters = example["letters"]

    def says(input_ids: torch.Tensor, **_: Any) -> SimpleNamespace:
        logits = torch.zeros(*input_ids.shape, VOCAB)
        logits[..., letters[1]], logits[..., letters[2]], logits[..., 9] = 1.0, 1.0 - 5e-6, 4.0
        return SimpleNamespace(logits=logits)

    found = task.scores(says, task.collate([example], tokenizer))
    assert {name: found[name].item() for name in ("accuracy", "generated", "tied")} == {
        "accuracy": 1.0,
        "generated": 0.0,
        "tied": 1.0,
    }
    assert found["letter_mass"].item() < 0.1


@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_predictions_are_the_same_for_any_batch_size_padding_side_and_order(size: int) -> None:
    task, model = MMLU(), network("llama").requires_grad_(False)
    rows = [*task.parse(task.prepared(_table(*many(mmlu, 12)))).rows.values()]
    once: list[float] = []
    for side in ("right", "left"):
        tokenizer = words("<bos> $A")
        tokenizer.padding_side = side
        examples = task.encode(rows, tokenizer, 160).examples
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(size)).tolist()
        found = [0.0] * len(rows)
        for start in range(0, len(rows), size):
            chosen = order[start : start + size]
            scores = task.scores(model, task.collate([examples[i] for i in chosen], tokenizer))
            assert not scores["tied"].any()
            for i, value in zip(chosen, scores["accuracy"].tolist(), strict=True):
                found[i] = value
        alone = [float(task.scores(model, task.collate([one], tokenizer))["accuracy"]) for one in examples]
        assert found == alone
        assert once in ([], found)
        once = found
    assert 0 < sum(once) < len(once)


def test_questions_that_are_too_long_are_dropped_and_counted() -> None:
    task = MMLU(max_tokens=50)
    rows = [*task.parse(task.prepared(_table(mmlu(1), {**mmlu(2), "question": "?" * 90}))).rows.values()]
    assert task.encode(rows, words(), 400).dropped == {TOO_LONG: 2}
    assert MMLU(max_tokens=70).encode(rows, words(), 400).sources == [0]


def test_the_development_questions_of_a_package_are_read_as_the_hubs_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Synthetic questions in the form of the file that the package has."""
    first = (
        "Q: What is (x)\nthen?\n(A) one (B) two\n(C) three (D) four\nA: Let's think step by step. The answer is (C)."
    )
    second = "Q: And now? (A) (1) (B) (2) (C) (3) (D) (4)\nA: It is so. The answer is (E)."
    told = {"anatomy": f"These are questions.\n\n{first}\n\n{second}", "virology": f"More.\n\n{first}\n\n"}
    path = tmp_path / "told.json"
    path.write_text(json.dumps(told))
    monkeypatch.setattr(carried, "members", lambda *_, **__: {carried.ARGUED: path})
    table = read("pkg:mmlu-dev")
    assert table.columns == ("question", "subject", "choices", "answer")
    assert [row["subject"] for row in table.rows] == ["anatomy", "virology"]
    assert table.rows[0] == {
        "question": "What is (x)\nthen?",
        "subject": "anatomy",
        "choices": ["one", "two", "three", "four"],
        "answer": 2,
    }
    assert (table.place(1), table.skipped) == ("mmlu-dev, question 3", {"without an answer among its options": 1})
    for wrong in ("not JSON", json.dumps([1]), json.dumps({"anatomy": 3})):
        path.write_text(wrong)
        with pytest.raises(CotuneError, match="not the file that it should be"):
            read("pkg:mmlu-dev")


@pytest.mark.real_model
def test_the_package_has_281_questions_of_all_subjects() -> None:
    try:
        corpus = MMLU(data="pkg:mmlu-dev").load(SEEDS)
    except CotuneError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    rows = [row for split in corpus.clients.values() for row in [*split.train, *split.held]] + [*corpus.test]
    assert (len(rows), corpus.facts["skipped"]) == (281, {"without an answer among its options": 1})
    assert {row["subject"] for row in rows} == {*SUBJECTS}
    assert [sum(row["gold"] == letter for row in rows) for letter in range(4)] == [66, 70, 68, 77]
    assert all(option for row in rows for option in row["options"])
