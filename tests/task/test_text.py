"""Every token of a document but its first is predicted exactly once, whatever the windows, the batch or the padding."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional
from words import BOS, EOS, VOCAB, network, words

from cotune.core.contracts import Row
from cotune.core.errors import Code, CotuneError
from cotune.core.part import resolve
from cotune.core.seeds import Seeds
from cotune.task import KINDS, Dirichlet, Iid, Natural, Text
from cotune.task.causal import IGNORED
from cotune.task.text import TOO_SHORT, cut

TASK = Text(data="synth:prose", max_tokens=24)
TEXTS = [
    "plain",
    "😀 emoji",
    "lone \ud800 surrogate",
    "a\0b",
    "é" * 30,
    "x",
    "a much longer text than others " * 4,
    "…",
]
TOKENIZERS = {
    "without BOS": words(),
    "with BOS": words("<bos> $A"),
    "with both": words("<bos> $A <eos>"),
    "pad is EOS": words(pad="<eos>"),
    "no pad": words("<bos> $A", pad=None),
    "spaced": words("<bos> $A", spaced=True),
}


def rows(*texts: str) -> list[Row]:
    return [{"text": text} for text in texts]


def supervised_ends(examples: Sequence[Mapping[str, Any]]) -> int:
    return sum(example["input_ids"][p] == EOS for example in examples for p in example["supervised"])


@given(
    count=st.integers(0, 60),
    size=st.integers(1, 20),
    stride=st.one_of(st.none(), st.integers(1, 25)),
)
def test_each_token_but_the_first_is_supervised_in_exactly_one_window(
    count: int, size: int, stride: int | None
) -> None:
    ids = list(range(1000, 1000 + count))
    windows = list(cut(ids, size, stride))
    learned = [window["input_ids"][place] for window in windows for place in window["supervised"]]
    assert learned == (ids[1:] if size > 1 else [])
    for window in windows:
        start = window["input_ids"][0] - 1000
        assert window["input_ids"] == ids[start : start + size]
        assert min(window["supervised"]) >= 1
    assert all(len(window["input_ids"]) == size for window in windows[:-1])


def test_by_default_windows_share_one_token_of_context() -> None:
    assert [window["input_ids"] for window in cut(list(range(8)), 4)] == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7]]
    assert [list(window["supervised"]) for window in cut(list(range(8)), 4)] == [[1, 2, 3], [1, 2, 3], [1]]
    assert [list(window["supervised"]) for window in cut(list(range(8)), 4, 2)] == [[1, 2, 3], [2, 3], [2, 3]]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_document_ends_in_one_supervised_end_of_text(name: str) -> None:
    examples = TASK.encode(rows(*TEXTS), TOKENIZERS[name], 512).examples
    assert supervised_ends(examples) == len(TEXTS)
    firsts = [example for example in examples if example["supervised"][0] == 1]
    assert len(firsts) == len(examples)
    batch = TASK.collate(examples, TOKENIZERS[name])
    assert int((batch["labels"] == EOS).sum()) == len(TEXTS)


def test_a_document_begins_as_the_tokenizer_begins_a_text() -> None:
    for name, first in (("without BOS", "p"), ("with BOS", BOS), ("with both", BOS)):
        ids = TASK.encode(rows("plain"), TOKENIZERS[name], 512).examples[0]["input_ids"]
        assert ids[0] == (first if isinstance(first, int) else TOKENIZERS[name](first)["input_ids"][0])
        assert ids.count(BOS) == (first == BOS)
        assert ids[-1] == EOS


def test_a_text_that_says_that_it_ends_does_not_end_twice() -> None:
    assert TASK.encode(rows("a<eos>"), words(), 512).examples[0]["input_ids"].count(EOS) == 1


def test_documents_without_a_second_token_are_dropped_and_counted() -> None:
    encoded = TASK.encode(rows("x", "", "xy"), words(eos=None), 512)
    assert (len(encoded.examples), encoded.dropped) == (1, {TOO_SHORT: 2})
    assert TASK.encode(rows("x", "xy"), words(), 512).dropped == {}
    assert TASK.encode([], words(), 512).examples == []
    assert len(TASK.encode(rows("abc"), words(), 1).examples) == 0


def test_the_smaller_of_the_models_and_the_tasks_limit_holds() -> None:
    for limit, most in ((10, 10), (512, 24)):
        examples = TASK.encode(rows("x" * 100), words(), limit).examples
        assert max(len(example["input_ids"]) for example in examples) == most
        batch = TASK.collate(examples, words())
        assert batch["input_ids"].shape[1] <= most


def reference(model: Any, example: Mapping[str, Any]) -> tuple[float, int]:
    """Σ −log p by the plain formula, on one row without padding or batch."""
    ids = torch.tensor([example["input_ids"]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits.float().log_softmax(-1)
    return sum(-float(logits[0, p - 1, ids[0, p]]) for p in example["supervised"]), len(example["supervised"])


def in_batches(task: Any, model: Any, examples: Sequence[Mapping[str, Any]], size: int, tokenizer: Any) -> Any:
    found: dict[str, list[Tensor]] = {}
    with torch.no_grad():
        for start in range(0, len(examples), size):
            batch = task.collate(examples[start : start + size], tokenizer)
            for name, values in task.scores(model, batch).items():
                found.setdefault(name, []).append(values)
    return {name: torch.cat(values) for name, values in found.items()}


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt"])
@pytest.mark.parametrize("tokens", ["with BOS", "pad is EOS", "no pad"])
def test_scores_are_a_rows_own_in_any_batch_and_any_order(name: str, tokens: str) -> None:
    model, tokenizer = network(name), TOKENIZERS[tokens]
    examples = TASK.encode(rows(*TEXTS), tokenizer, 512).examples
    expected = [reference(model, example) for example in examples]
    order = random.Random(3).sample(range(len(examples)), len(examples))
    for size in (1, 2, 7, len(examples)):
        for places in (list(range(len(examples))), order):
            scores = in_batches(TASK, model, [examples[i] for i in places], size, tokenizer)
            nll = torch.tensor([expected[i][0] for i in places])
            torch.testing.assert_close(scores["nll"], nll, rtol=1e-5, atol=1e-4)
            assert scores["tokens"].tolist() == [expected[i][1] for i in places]
            torch.testing.assert_close(scores["loss"], nll / scores["tokens"], rtol=1e-5, atol=1e-5)
            assert {values.dtype for values in scores.values()} == {torch.float32}


def test_losses_are_the_loss_of_the_scores_and_carry_a_gradient() -> None:
    model, tokenizer = network("llama"), words()
    batch = TASK.collate(TASK.encode(rows(*TEXTS), tokenizer, 512).examples, tokenizer)
    losses = TASK.losses(model, batch)
    assert torch.equal(losses, TASK.scores(model, batch)["loss"])
    losses.sum().backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in model.parameters())
    low = network("llama").bfloat16()
    assert TASK.losses(low, batch).dtype is torch.float32


def test_a_model_that_makes_all_logits_scores_the_same() -> None:
    model, tokenizer = network("llama"), words()
    batch = TASK.collate(TASK.encode(rows(*TEXTS), tokenizer, 512).examples, tokenizer)

    def wasteful(*, logits_to_keep: int, **inputs: Tensor) -> Any:
        del logits_to_keep
        return model(**inputs)

    for metric, values in TASK.scores(wasteful, batch).items():
        torch.testing.assert_close(values, TASK.scores(model, batch)[metric])


def test_labels_outside_what_is_supervised_are_ignored_by_position() -> None:
    examples = [
        {"input_ids": [5, EOS, 6, EOS], "supervised": [2, 3], "size": 99},
        {"input_ids": [7, 8, EOS, 9, EOS, 10], "supervised": [5], "size": 99},
    ]
    batch = TASK.collate(examples, words(pad="<eos>"))
    full = functional.pad(batch["labels"], (batch["input_ids"].shape[1] - batch["labels"].shape[1], 0), value=IGNORED)
    kept = {(int(row), int(place)): int(full[row, place]) for row, place in (full != IGNORED).nonzero()}
    assert kept == {(0, 2): 6, (0, 3): EOS, (1, 5): 10}
    assert batch["attention_mask"].sum(1).tolist() == [4, 6]


def test_few_shapes_serve_batches_of_many_lengths() -> None:
    shapes = set()
    for length in range(2, 65):
        examples = [{"input_ids": [5] * length, "supervised": range(1, length), "size": 60}] if length <= 60 else []
        if examples:
            batch = TASK.collate(examples, words())
            shapes.add(tuple(tuple(tensor.shape) for tensor in batch.values()))
            assert length <= batch["input_ids"].shape[1] <= 60
    assert len(shapes) <= 8


def test_guessing_has_the_perplexity_of_the_vocabulary() -> None:
    corpus = TASK.load(Seeds())
    assert TASK.chance(corpus, 263) == {"perplexity": 263.0}
    assert TASK.ratios == {"perplexity": ("nll", "tokens")}
    uniform = type("Flat", (), {"__call__": lambda self, **kw: self.of(**kw), "of": None})()
    uniform.of = lambda input_ids, **_: type("Out", (), {"logits": torch.zeros(*input_ids.shape, VOCAB)})()
    batch = TASK.collate(TASK.encode(rows(*TEXTS), words(), 512).examples, words())
    scores = TASK.scores(uniform, batch)
    assert float(torch.exp(scores["nll"].sum() / scores["tokens"].sum())) == pytest.approx(VOCAB, rel=1e-5)


def written(folder: Path, name: str, values: Sequence[object]) -> str:
    (folder / name).write_text("".join(json.dumps(value) + "\n" for value in values))
    return str(folder / name)


def test_data_is_divided_by_file_by_client_id_or_by_a_partition(tmp_path: Path) -> None:
    texts = [{"text": f"text {i}", "client_id": f"ward-{i % 3}", "genre": "ab"[i % 2]} for i in range(30)]
    path = written(tmp_path, "rows.jsonl", texts)
    assert set(Text(data=path).load(Seeds()).clients) == {"ward-0", "ward-1", "ward-2"}
    assert len(Text(data=path, partition=Iid(clients=4)).load(Seeds()).clients) == 4
    by_genre = Text(data=path, partition=Dirichlet(clients=2, alpha=0.01, by="genre")).load(Seeds())
    assert by_genre.facts["partition"]["by"] == "genre"
    assert set(Text(data="synth:prose?clients=5&rows=50").load(Seeds()).clients) == {f"domain-{i}" for i in range(5)}
    (tmp_path / "wards").mkdir()
    for name in ("north", "south"):
        written(tmp_path / "wards", f"{name}.jsonl", [{"text": f"{name} {i}"} for i in range(5)])
    corpus = Text(data=str(tmp_path / "wards"), test=0).load(Seeds())
    assert set(corpus.clients) == {"north", "south"}
    assert (corpus.head, corpus.labels) == ("causal", ())
    assert "labels" not in corpus.facts
    with pytest.raises(CotuneError, match=r"E_CONFIG.*task.partition.by") as caught:
        Text(data=path, partition=Dirichlet(clients=2, alpha=0.5)).load(Seeds())
    assert caught.value.code is Code.CONFIG


def test_rows_without_a_text_are_skipped_and_counted(tmp_path: Path) -> None:
    path = written(
        tmp_path, "a.jsonl", [*({"text": f"t {i}"} for i in range(20)), {"text": " "}, {"text": 3}, {"x": 1}]
    )
    facts = Text(data=path, partition=Iid(clients=2)).load(Seeds()).facts
    assert facts["skipped"] == {"missing": 1, "not text": 1, "whitespace": 1}
    with pytest.raises(CotuneError, match="no column 'body'"):
        Text(data=path, text="body").load(Seeds())


def test_a_task_is_equal_to_the_table_that_makes_it() -> None:
    task = Text(data="pkg:kjv", partition=Natural(key="book", clients=4), group="book", stride=8, max_tokens=16)
    assert resolve("task", KINDS, json.loads(task.model_dump_json())) == task


@pytest.mark.real_model
def test_the_bible_has_one_client_a_book() -> None:
    corpus = Text(data="pkg:kjv").load(Seeds())
    assert len(corpus.clients) == 66
    assert {"Genesis", "Revelation"} <= set(corpus.clients)
    every = [row["text"] for split in corpus.clients.values() for row in [*split.train, *split.held]] + [
        row["text"] for row in corpus.test
    ]
    assert len(every) == 8689
    assert sum(400 <= len(text) <= 800 for text in every) > 8600
    assert not any(mark in text for text in every for mark in "[]0123456789\n")
