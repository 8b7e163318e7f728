"""Of every task one row as a model reads it, to the letter; and scores that no batch, padding side or order moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from published import SCHEMAS, hellaswag, mmlu, prompted
from transformers import LlamaConfig, LlamaForSequenceClassification
from words import PAD, VOCAB, network, words

from cotune import resolve
from cotune.backbone.bind import bind
from cotune.core.contracts import Row, Task
from cotune.core.seeds import Seeds
from cotune.objective import score
from cotune.task import MMLU, SFT, Choice, Classify, HellaSwag, Needle, Prompted, Recall, Text
from cotune.task.rows import Table
from cotune.task.templates import DATASETS

LETTERED = tuple(("Ġ", letter) for letter in "ABCD")
COLOURS = ("black", "green", "red", "white")


def parsed(task: Any, *rows: Mapping[str, Any]) -> list[Row]:
    """Rows of published columns as the task has them."""
    table = Table(tuple(rows[0]), rows, [("rows.jsonl, line", number + 1) for number in range(len(rows))])
    return [*task.parse(task.prepared(table) if hasattr(task, "prepared") else table).rows.values()]


def asked(number: int) -> Row:
    return {"question": f"What colour is gate {number}{'?' * (number % 5 + 1)}", "options": COLOURS, "gold": number % 4}


NEEDLE = Needle(lengths=(500,), rows=1, test_rows=1, clients=("passkey",))
PROMPTED = {name: Prompted.model_validate({"dataset": name}) for name in DATASETS}
ROWS: dict[str, tuple[Task, Row]] = {
    "mmlu": (MMLU(), parsed(MMLU(), mmlu(7, "anatomy", 2))[0]),
    "choice": (Choice(data="synth:choice"), asked(1)),
    "needle": (NEEDLE, NEEDLE.load(Seeds()).test[0]),
    "hellaswag": (HellaSwag(), parsed(HellaSwag(), hellaswag(1))[0]),
    **{name: (task, parsed(task, prompted(DATASETS[name].data, 1))[0]) for name, task in PROMPTED.items()},
    "sft": (SFT(data="./x.jsonl"), {"prompt": "Ask: ", "completion": "told.", "place": "x.jsonl, line 1"}),
    "classify": (Classify(data="synth:sentiment"), {"text": "It was bright.", "label": 1}),
    "text": (Text(data="synth:prose"), {"text": "It was bright."}),
    "recall": (Recall(), {"text": "k1 v2 k3 v4 k1 v2", "told": (5,)}),
}
GOLDEN = {
    "mmlu": "<bos>Question: What is 7 plus 7?\nA. 14\nB. 15\nC. 16\nD. 17\nAnswer:",
    "choice": "<bos>Question: What colour is gate 1??\nA) black\nB) green\nC) red\nD) white\nAnswer:",
    "needle": (
        "<bos>The security passkey of Officer Pascal is 6460941. The shy heron jumps in the meadow in autumn. "
        "The security passkey of Officer Castell is 5634194. Soon the shy falcon drinks in the barn in spring. "
        "The security passkey of Officer Adler is 8991468. The security passkey of Officer Weller is 1058519. "
        "After that the tired seal swims on the hill at noon.\n\nQuestion: What is the security passkey of Officer "
        "Pascal?\nA) 6460941\nB) 1058519\nC) 5634194\nD) 8991468\nAnswer:",
        "",
    ),
    "hellaswag": (
        "<bos>Sailing: A person. stands at gate 1. Then the person walks down the hill 1 steps.",
        " walks down the hill 1 steps.",
    ),
    "sst2": ("<bos>sentence 1 is here It was great", " great"),
    "rte": (
        '<bos>premise 1 is here\nDoes this mean that "hypothesis 1 is here" is true? Yes or No?\nNo',
        "No",
    ),
    "wic": (
        '<bos>Does the word "word 1 is here" have the same meaning in these two sentences? Yes, No?\n'
        "sentence1 1 is here\nsentence2 1 is here\nYes",
        "Yes",
    ),
    "multirc": (
        "<bos>paragraph 1 is here\nQuestion: question 1 is here\n"
        'I found this answer "answer 1 is here". Is that correct? Yes or No?\nYes',
        "Yes",
    ),
    "boolq": ("<bos>passage 1 is here Question 1 is here?\nNo", "No"),
    "squad": (
        "<bos>Title: title 1 is here\nContext: context 1 is here\nQuestion: question 1 is here\nAnswer: gate 1\n",
        " gate 1\n",
    ),
    "sft": ("<bos>Ask: told.<eos>", "told.<eos>"),
    "classify": "<bos>It was bright.",
    "text": ("<bos>It was bright.<eos>", "It was bright.<eos>"),
    "recall": ("<bos>k1 v2 k3 v4 k1 v2", " v2"),
}


def whole(example: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """The ids of an example, of options the right one, and those of them that are learned or scored."""
    ids = list(example["input_ids"])
    if "ends" not in example:
        return ids, [ids[place] for place in example.get("supervised", ())]
    start, end = example["ends"][example["gold"]], example["ends"][example["gold"] + 1]
    return ids[start:end], ids[start:end][example["begins"][example["gold"]] :]


@pytest.mark.parametrize("name", ROWS)
def test_what_a_model_reads_of_a_row(name: str) -> None:
    task, row = ROWS[name]
    tokenizer = words("<bos> $A", merges=LETTERED)
    (example,) = task.encode([row], tokenizer, 1024).examples
    read, learned = (tokenizer.decode(ids) for ids in whole(example))
    expected = GOLDEN[name]
    text, told = (expected, "") if isinstance(expected, str) else expected
    assert read == text
    assert learned == told


def test_every_published_data_set_has_its_row_here() -> None:
    assert {*GOLDEN} == {*ROWS}
    assert len({*SCHEMAS} - {DATASETS[name].data for name in DATASETS}) == 2, "HellaSwag and MMLU are the others"


@pytest.mark.parametrize("name", ["mmlu", "choice", "needle"])
@pytest.mark.parametrize("merges", [(), LETTERED], ids=["bytes", "a letter and its blank"])
def test_a_model_that_always_answers_c_is_right_where_c_is(name: str, merges: tuple[tuple[str, str], ...]) -> None:
    task, row = ROWS[name]
    tokenizer = words("<bos> $A", merges=merges)
    (example,) = task.encode([{**row, "gold": 2}], tokenizer, 1024).examples
    (letter,) = tokenizer.convert_tokens_to_ids(["ĠC" if merges else "C"])

    def answers_c(input_ids: torch.Tensor, **_: Any) -> SimpleNamespace:
        logits = torch.zeros(*input_ids.shape, VOCAB)
        logits[..., letter] = 20.0
        return SimpleNamespace(logits=logits)

    found = task.scores(answers_c, task.collate([example], tokenizer))
    assert found["accuracy"].tolist() == [1.0]
    assert found["letter_mass"].item() > 0.99
    (other,) = task.encode([{**row, "gold": 1}], tokenizer, 1024).examples
    assert task.scores(answers_c, task.collate([other], tokenizer))["accuracy"].tolist() == [0.0]


def classifier() -> Any:
    torch.manual_seed(3)
    sizes: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_labels": 2}
    made: Any = LlamaForSequenceClassification
    return made(LlamaConfig(vocab_size=VOCAB, pad_token_id=PAD, intermediate_size=32, **sizes)).eval()


TEXTS = [f"{'very ' * (number % 4)}{word} {number}" for number, word in enumerate(["good", "bad", "é", "so so"] * 3)]
SCORED: dict[str, tuple[Task, Sequence[Row]]] = {
    "choice": (Choice(data="synth:choice"), [asked(number) for number in range(12)]),
    "needle": (NEEDLE, Needle(lengths=(500, 560), rows=1, test_rows=2).load(Seeds()).test[:7]),
    "classify": (Classify(data="synth:sentiment"), [{"text": text, "label": n % 2} for n, text in enumerate(TEXTS)]),
    "text": (Text(data="synth:prose", max_tokens=8), [{"text": text} for text in TEXTS]),
    "sft": (
        SFT(data="./x.jsonl"),
        [{"prompt": "? " * (n % 3), "completion": text, "place": ""} for n, text in enumerate(TEXTS)],
    ),
    "recall": (
        Recall(),
        [{"text": f"k1 v{n % 7} k2 v9 {'f1 ' * (n % 4)}k1 v{n % 7} k2 v9", "told": (5 + n % 4,)} for n in range(12)],
    ),
}


@pytest.mark.parametrize("name", SCORED)
def test_scores_are_the_same_for_any_batch_size_padding_side_and_order(name: str) -> None:
    task, rows = SCORED[name]
    model = classifier() if task.head == "classification" else network("llama")
    tokenizer = words("<bos> $A", merges=LETTERED)
    once: dict[str, list[float]] = {}
    for side in ("right", "left"):
        tokenizer.padding_side = tokenizer.truncation_side = side
        examples = task.encode(rows, tokenizer, 600).examples
        assert len({len(example["input_ids"]) for example in examples}) > 1, "there is something to pad"
        for size in (1, 2, 7, 64):
            order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(size)).tolist()
            found = {metric: [0.0] * len(examples) for metric in task.metrics}
            with torch.no_grad():
                for start in range(0, len(order), size):
                    chosen = order[start : start + size]
                    batch = task.collate([examples[i] for i in chosen], tokenizer)
                    for metric, values in task.scores(model, batch).items():
                        for i, value in zip(chosen, values.tolist(), strict=True):
                            found[metric][i] = value
            once = once or found
            for metric, scores in found.items():
                if metric in ("accuracy", "among", "tokens"):
                    assert scores == once[metric]
                else:
                    assert scores == pytest.approx(once[metric], abs=2e-5, rel=2e-5)
    assert len({*once.get("accuracy", (0, 1))}) > 1 or name == "recall", (
        "the model is neither right nor wrong by default"
    )


def test_a_memory_never_carries_over_from_row_to_row() -> None:
    experiment = resolve.load("fednl", task="recall?rows=2&held=0&test_rows=3&clients=2", sets=["backbone.window=6"])
    setup = experiment.blueprint().build()
    draw = torch.Generator().manual_seed(5)
    opened = {name: tensor + 0.3 * torch.randn(tensor.shape, generator=draw) for name, tensor in setup.start.items()}
    rows = setup.test.examples
    with bind(setup.backbone.model, setup.start, setup.spec) as bound:
        shut = score(bound, dict(setup.start), setup, rows)["loss"]
    with bind(setup.backbone.model, opened, setup.spec) as bound:
        once = score(bound, opened, setup, rows)
        assert not torch.allclose(once["loss"], shut, atol=1e-2), "memories are read"
        again = score(bound, opened, setup, [*rows, *rows[::-1]])
        alone = [score(bound, opened, setup, [row]) for row in rows]
    for metric, values in once.items():
        torch.testing.assert_close(again[metric], torch.cat([values, values.flip(0)]), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(torch.cat([one[metric] for one in alone]), values, atol=1e-5, rtol=1e-5)
