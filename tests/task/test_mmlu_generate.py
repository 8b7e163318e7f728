"""MMLU by what a model writes: the first character that is no blank is its answer, whatever tokens make it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from published import many, mmlu, on_disk
from words import EOS, VOCAB, network, words

import cotune as ct
from cotune import resolve
from cotune.core.contracts import Row
from cotune.core.part import resolve as part
from cotune.task import KINDS, MMLU
from cotune.task.letters import LETTERS, TOO_LONG
from cotune.task.mmlu import BLANK
from cotune.task.rows import Table

WRITES = MMLU(scoring="generate")
RANKS = MMLU()
TOKENIZERS = {
    "bytes": words("<bos> $A"),
    "a letter with its blank": words(merges=tuple(("Ġ", letter) for letter in LETTERS)),
}


def rows(count: int, answer: int | None = None) -> list[Row]:
    table = [mmlu(number, "anatomy", answer) for number in range(count)]
    read = Table(tuple(table[0]), table, [("rows.jsonl, line", number + 1) for number in range(count)])
    return [*RANKS.parse(RANKS.prepared(read)).rows.values()]


def saying(tokens: Sequence[int], prompt: int) -> Callable[..., Any]:
    """A model that writes these tokens behind a prompt of so many, then the end of text."""

    def model(input_ids: torch.Tensor, **_: Any) -> SimpleNamespace:
        logits = torch.zeros(*input_ids.shape, VOCAB)
        for place in range(prompt - 1, input_ids.shape[1]):
            said = place - prompt + 1
            logits[:, place, tokens[said] if said < len(tokens) else EOS] = 20.0
        return SimpleNamespace(logits=logits)

    return model


def judged(tokenizer: Any, said: str | Sequence[int], task: MMLU = WRITES) -> dict[str, float]:
    """The scores of a row whose answer is C, of a model that says a text, or tokens."""
    (example,) = task.encode(rows(1, 2), tokenizer, 300).examples
    tokens = tokenizer(said, add_special_tokens=False)["input_ids"] if isinstance(said, str) else said
    model = saying(tokens, len(example["input_ids"]))
    found = task.judged(model, task.collate([example], tokenizer), [example], tokenizer)
    assert found.keys() == {*task.metrics}
    return {name: float(values) for name, values in found.items()}


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize(
    ("said", "accuracy", "answered"),
    [
        ("C", 1, 1),
        (" C", 1, 1),
        (" C. Because", 1, 1),
        ("\n\n C", 1, 1),
        ("\t \nC", 1, 1),
        ("Cat", 1, 1),
        (" A, or C", 0, 1),
        ("\nD", 0, 1),
        ("c", 0, 0),
        ("(C)", 0, 0),
        (" the answer is C", 0, 0),
        ("E", 0, 0),
        ("é", 0, 0),
        ("", 0, 0),
        (" \n", 0, 0),
        ("\n" * (BLANK - 1) + "C", 1, 1),
        ("\n" * BLANK + "C", 0, 0),
    ],
)
def test_the_first_character_that_is_no_blank_is_the_answer(
    name: str, said: str, accuracy: float, answered: float
) -> None:
    found = judged(TOKENIZERS[name], said)
    assert (found["accuracy"], found["answered"]) == (accuracy, answered)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_likeliest_first_token_is_not_always_what_is_written_first(name: str) -> None:
    """`generated` asks for the very token of the training; what is written may spell the letter otherwise."""
    tokenizer = TOKENIZERS[name]
    (example,) = WRITES.encode(rows(1, 2), tokenizer, 300).examples
    letter = example["letters"][2]
    assert judged(tokenizer, [letter])["generated"] == judged(tokenizer, [letter])["accuracy"] == 1
    other = judged(tokenizer, "\nC")
    assert (other["generated"], other["accuracy"]) == (0, 1)
    bare = tokenizer.convert_tokens_to_ids("C")
    said = judged(tokenizer, [bare])
    assert said["accuracy"] == 1
    assert said["generated"] == (1 if name == "bytes" else 0), "behind a blank the letter has a token of its own"


def test_where_letters_are_ranked_nothing_is_written() -> None:
    tokenizer = TOKENIZERS["bytes"]
    (example,) = RANKS.encode(rows(1, 2), tokenizer, 300).examples
    found, written = judged(tokenizer, [9], RANKS), judged(tokenizer, [9])
    assert "answered" not in found
    assert written.keys() - found.keys() == {"answered"}
    told = [*example["letters"]][2]
    assert judged(tokenizer, [told], RANKS)["accuracy"] == 1
    same = ("loss", "letter_mass", "generated", "tied")
    assert {name: found[name] for name in same} == {name: written[name] for name in same}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_answers_are_the_same_for_any_batch_size_padding_side_and_order(name: str) -> None:
    model, asked, tokenizer = network("llama").requires_grad_(False).double(), rows(12), TOKENIZERS[name]
    for weight in model.parameters():
        weight.mul_(20.0)  # so that what it says follows from what it reads
    some = [*WRITES.encode(asked[:1], tokenizer, 300).examples[0]["letters"]]
    some += [tokenizer.convert_tokens_to_ids(token) for token in ("Ġ", "Ċ", "ĉ", *"uz")]

    def tells(**given: Any) -> SimpleNamespace:
        logits = torch.full_like(made := model(**given).logits, -30.0)
        logits[..., some] = made[..., some]  # letters, blanks and others alone, so that each of them is written
        return SimpleNamespace(logits=logits)

    once: Mapping[str, list[float]] = {}
    for side in ("right", "left"):
        tokenizer.padding_side = side
        examples = WRITES.encode(asked, tokenizer, 300).examples
        for size in (1, 2, 7, 64):
            order = random.Random(size).sample(range(len(asked)), len(asked))
            found = {metric: [0.0] * len(asked) for metric in ("accuracy", "answered")}
            for start in range(0, len(order), size):
                chosen = order[start : start + size]
                batch = [examples[i] for i in chosen]
                scores = WRITES.judged(tells, WRITES.collate(batch, tokenizer), batch, tokenizer)
                for metric, values in found.items():
                    for i, value in zip(chosen, scores[metric].tolist(), strict=True):
                        values[i] = value
            once = once or found
            assert found == once
    tokenizer.padding_side = "right"
    assert 0 < sum(once["accuracy"]) < sum(once["answered"]) < len(asked)


def test_a_prompt_leaves_room_for_the_blanks_that_a_model_may_write() -> None:
    tokenizer, asked = TOKENIZERS["bytes"], rows(1)
    length = len(RANKS.encode(asked, tokenizer, 300).examples[0]["input_ids"])
    assert RANKS.encode(asked, tokenizer, length).sources == [0]
    assert WRITES.encode(asked, tokenizer, length + BLANK - 1).sources == [0]
    assert WRITES.encode(asked, tokenizer, length + BLANK - 2).dropped == {TOO_LONG: 1}


def test_experiments_from_before_there_was_this_scoring_keep_their_hash() -> None:
    assert "scoring" not in RANKS.model_dump()
    assert WRITES.model_dump() == {**RANKS.model_dump(), "scoring": "generate"}
    for task in (RANKS, WRITES):
        assert part("task", KINDS, task.model_dump(mode="json")) == task
    assert MMLU(scoring="letters") == RANKS
    asked = [
        resolve.load("lora-fedavg", backbone="builtin:tiny-llama", task=text)
        for text in ("mmlu", "mmlu?scoring=letters", "mmlu?scoring=generate")
    ]
    assert asked[0].hash == asked[1].hash != asked[2].hash
    assert [experiment.task for experiment in asked] == [RANKS, RANKS, WRITES]


def test_a_run_writes_its_answers(tmp_path: Path) -> None:
    folder = on_disk(tmp_path, "cais/mmlu:all", {"test": many(mmlu, 5), "validation": many(mmlu, 6)})
    sets = ("method.budget={steps=1, batch=2}", "task.scoring=generate", "evaluation.every=1")
    backbone = "random:llama?layers=1&hidden=16&heads=2&positions=256"
    run = ct.run(
        resolve.load("lora-fedavg", task=f"mmlu:{folder}", backbone=backbone, rounds=1, sets=sets), out=tmp_path
    )
    found = run.rounds[-1].global_metrics
    assert found["accuracy"].n == found["answered"].n == 5
    assert (found["accuracy"].chance, found["accuracy"].value <= found["answered"].value) == (0.25, True)
