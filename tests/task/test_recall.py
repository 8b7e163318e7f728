"""What is told is what was written last, pools of keys are kept apart, and cells are the strata of the test rows."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typed import refused, typing
from words import network, words

import cotune as ct
from cotune import resolve
from cotune.backbone import Backbone
from cotune.backbone.loaded import Loaded
from cotune.core.contracts import Corpus, Row, Split
from cotune.core.errors import CotuneError
from cotune.core.record import RoundRecord
from cotune.core.seeds import Seeds
from cotune.store import Run
from cotune.task import Recall, recall_stream
from cotune.task.recall import TOO_LONG

TASK = Recall(rows=24, held=6, test_rows=6)
SHAPES: tuple[Recall, ...] = (
    TASK,
    Recall(clients=2, pairs=8, overwrites=0, questions=3, gap=5, rows=12, test_gaps=(0, 40), test_rows=5),
    Recall(clients=3, pairs=5, overwrites=9, questions=5, skew=0.4, rows=12, unseen=False, style="values"),
    Recall(clients=3, pairs=2, overwrites=4, questions=1, style="overwrites", rows=12),
)


@cache
def backbone() -> Loaded:
    return Backbone(ref="builtin:tiny-recall").load("causal", 0, 0)


@cache
def corpus_of(task: Recall) -> Corpus:
    return task.load(Seeds())


def trained(corpus: Corpus) -> list[tuple[str, Row]]:
    """(whose, row) of every row that a client has."""
    return [(name, row) for name, split in corpus.clients.items() for row in (*split.train, *split.held)]


def every(corpus: Corpus) -> list[Row]:
    return [*(row for _, row in trained(corpus)), *corpus.test]


def keys(rows: Iterable[Row]) -> set[str]:
    return {word for row in rows for word in row["text"].split() if word.startswith("k")}


def values(row: Row) -> list[str]:
    return [word for word in row["text"].split() if word.startswith("v")]


def recalled(said: Sequence[str], told: Sequence[int]) -> int:
    """How many places a reader with a dictionary fills in, after checking that it would say what stands there."""
    held: dict[str, str] = {}
    answered, at = [], 0
    while at < len(said):
        if said[at].startswith("f"):
            at += 1
        elif said[at + 1] == "?":
            assert said[at + 2] == held[said[at]]
            assert said[at + 3] == ";"
            answered.append(at + 2)
            at += 4
        else:
            assert said[at + 2] == ";"
            assert held.get(said[at]) != said[at + 1], "an overwrite changes something"
            held[said[at]] = said[at + 1]
            at += 3
    assert answered == list(told)
    return len(answered)


@pytest.mark.parametrize("task", SHAPES)
def test_a_reader_with_a_dictionary_answers_every_question(task: Recall) -> None:
    for row in every(corpus_of(task)):
        assert recalled(row["text"].split(), row["told"]) == task.questions


@pytest.mark.parametrize("task", SHAPES)
def test_a_row_is_made_of_writes_overwrites_a_gap_and_questions(task: Recall) -> None:
    for row in every(corpus_of(task)):
        head, fillers, tail = re.fullmatch(r"((?:k\d+ v\d+ ;\s?)+)((?:f\d+\s?)*)(k\d+ \? .*)", row["text"]).groups()  # type: ignore[union-attr]
        written = re.findall(r"k\d+", head)
        assert len({*written[: task.pairs]}) == task.pairs
        assert {*written[task.pairs :]} <= {*written[: task.pairs]}
        assert len(fillers.split()) == row["gap"]
        asked = re.findall(r"k\d+", tail)
        assert len({*asked}) == len(asked) == task.questions
        if task.style != "overwrites":
            assert len(written) == task.pairs + task.overwrites
    gaps = (task.gap, task.gap) if isinstance(task.gap, int) else task.gap
    assert {row["gap"] for _, row in trained(corpus_of(task))} <= {*range(gaps[0], gaps[1] + 1)}
    assert Counter(row["gap"] for row in corpus_of(task).test) == dict.fromkeys(task.test_gaps, task.test_rows)


def test_training_gaps_are_anything_between_the_least_and_the_most() -> None:
    rows = Recall(rows=200, gap=(3, 5), clients=1).load(Seeds()).clients["client-00"].train
    assert {row["gap"] for row in rows} == {3, 4, 5}


def test_keys_of_the_unseen_pool_are_never_in_a_training_row() -> None:
    for task in SHAPES:
        corpus = corpus_of(task)
        seen, tested = keys(row for _, row in trained(corpus)), keys(corpus.test)
        assert tested
        assert (not seen & tested) == task.unseen
    mixed = Recall(unseen=False, rows=60, test_rows=60).load(Seeds())
    assert keys(mixed.test) == keys(row for _, row in trained(mixed)) == {f"k{number}" for number in range(64)}


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0])
def test_skew_is_how_often_a_key_is_of_the_clients_own_pool(skew: float) -> None:
    task = Recall(clients=3, pairs=4, skew=skew, rows=400, unseen=True)
    corpus, shares = task.load(Seeds()), []
    for client, split in enumerate(corpus.clients.values()):
        own = {f"k{number}" for number in range(16 * client, 16 * client + 16)}
        first = [row["text"].split()[0] for row in split.train]  # the first key is drawn as it is; later ones differ
        shares.append(sum(key in own for key in first) / len(first))
    for share in shares:
        assert share == pytest.approx(skew + (1 - skew) / 3, abs=4 * math.sqrt(0.25 / 400))
    pools = [keys([*split.train, *split.held]) for split in corpus.clients.values()]
    assert (not pools[0] & pools[1]) == (skew == 1)


def test_clients_can_differ_in_their_values_or_their_overwrites_too() -> None:
    by_value = Recall(clients=3, style="values", rows=30).load(Seeds())
    pools = [{v for row in split.train for v in values(row)} for split in by_value.clients.values()]
    assert all(pools)
    assert sum(map(len, pools)) == len(set().union(*pools)), "no value is in two pools"
    assert len({v for row in by_value.test for v in values(row)}) > 60, "test rows have any value"
    by_count = Recall(clients=3, pairs=4, overwrites=4, style="overwrites", rows=3).load(Seeds())
    counts = [{row["text"].partition("?")[0].count(";") - 4 for row in s.train} for s in by_count.clients.values()]
    assert counts == [{0}, {4}, {8}]
    assert {row["text"].partition("?")[0].count(";") - 4 for row in by_count.test} == {4}


def test_rows_are_a_function_of_fields_seed_and_index() -> None:
    assert corpus_of(TASK) == TASK.load(Seeds()) == TASK.load(Seeds(seed=7, data=0))
    more = TASK.model_copy(update={"rows": 40}).load(Seeds())
    first: Mapping[str, Split] = corpus_of(TASK).clients
    assert all(list(more.clients[name].train[:24]) == list(split.train) for name, split in first.items())
    for other in (TASK.load(Seeds(seed=1)), TASK.model_copy(update={"seed": 1}).load(Seeds())):
        assert not {row["text"] for row in every(other)} & {row["text"] for row in every(corpus_of(TASK))}
    texts = [row["text"] for row in every(corpus_of(TASK))]
    assert len({*texts}) == len(texts)


def test_what_was_drawn_can_be_checked_later() -> None:
    facts, again = corpus_of(TASK).facts, TASK.load(Seeds(data=0)).facts
    other = TASK.load(Seeds(seed=1)).facts
    assert facts == again
    assert facts["synthetic"] is True
    assert facts["sizes"] == {f"client-{n:02d}": {"train": 24, "held": 6} for n in range(4)}
    assert facts["used"] == facts["rows"] == len(every(corpus_of(TASK)))
    assert facts["duplicates"] == {"within_clients": 0, "between_clients": 0, "test": 0}
    assert facts["test_manifest"] != other["test_manifest"]
    assert all(facts["manifest"][name] != other["manifest"][name] for name in corpus_of(TASK).clients)


@pytest.mark.parametrize("task", SHAPES)
def test_one_word_is_one_token_and_only_told_values_are_supervised(task: Recall) -> None:
    loaded, rows = backbone(), corpus_of(task).test
    for row, example in zip(rows, task.encode(rows, loaded.tokenizer, 128).examples, strict=True):
        assert example["input_ids"] == loaded.tokenizer(row["text"])["input_ids"]
        assert example["supervised"] == list(row["told"])
        assert {loaded.tokenizer.decode(token) for token in example["candidates"][0]} == {*values(row)}


def scored(model: Any, tokenizer: Any, row: Row, front: Sequence[int] = ()) -> tuple[float, float, float]:
    """(loss, accuracy, among) of one row, word by word, from a model's probabilities in float64."""
    pieces = [
        tokenizer(f" {w}" if n else w, add_special_tokens=False)["input_ids"] for n, w in enumerate(row["text"].split())
    ]
    rivals = [tokenizer(f" {value}", add_special_tokens=False)["input_ids"] for value in dict.fromkeys(values(row))]
    ids = [*front, *(token for piece in pieces for token in piece)]
    told = model(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1)
    losses, right, among = [], [], []
    for word in row["told"]:
        start = len(front) + sum(map(len, pieces[:word]))
        whole = likeliest = True
        for step, token in enumerate(pieces[word]):
            p = told[start + step - 1]
            losses.append(-float(p[token]))
            whole &= int(p.argmax()) == token
            near = [one for one in rivals if one[:step] == pieces[word][:step] and len(one) > step]
            likeliest &= max(near, key=lambda one, p=p, step=step: float(p[one[step]]))[step] == token  # type: ignore[misc]
        right.append(whole)
        among.append(likeliest)
    return sum(losses) / len(losses), sum(right) / len(right), sum(among) / len(among)


def compared(
    task: Recall, model: Any, tokenizer: Any, rows: Sequence[Row], front: Sequence[int]
) -> dict[str, set[float]]:
    """The scores that were met, after comparing those of several batch sizes and orders with the dumb ones."""
    model.double()
    examples, met = task.encode(rows, tokenizer, 2048).examples, dict[str, set[float]]()
    with torch.no_grad():
        alone = [scored(model, tokenizer, row, front) for row in rows]
        for size in (1, 3, len(rows)):
            order = random.Random(size).sample(range(len(rows)), len(rows))
            for start in range(0, len(rows), size):
                chosen = order[start : start + size]
                batch = task.collate([examples[i] for i in chosen], tokenizer)
                found = task.scores(model, batch)
                torch.testing.assert_close(task.losses(model, batch), found["loss"])
                for place, i in enumerate(chosen):
                    assert float(found["loss"][place]) == pytest.approx(alone[i][0], rel=1e-5, abs=1e-7)
                    assert float(found["accuracy"][place]) == pytest.approx(alone[i][1])
                    assert float(found["among"][place]) == pytest.approx(alone[i][2])
                for name in found:
                    met.setdefault(name, set()).update(found[name].tolist())
    return met


def test_scores_are_those_of_a_word_by_word_reading_in_any_batch_and_any_order() -> None:
    task = Recall(pairs=6, overwrites=10, questions=5, clients=3, test_gaps=(0, 7, 30), test_rows=5, rows=2)
    spoilt = Backbone(ref="builtin:tiny-recall").load("causal", 0, 0)
    with torch.no_grad():  # a model that is right sometimes
        for number, parameter in enumerate(spoilt.model.parameters()):
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
            parameter.add_(0.35 * parameter.std() * noise)
    met = compared(task, spoilt.model, spoilt.tokenizer, task.load(Seeds()).test, ())
    assert len(met["accuracy"]) > 1
    assert len(met["among"]) > 1
    assert met["among"] != met["accuracy"]


def test_any_other_tokenizer_does_value_by_value() -> None:
    tokenizer = words("<bos> $A")
    task = Recall(pairs=2, overwrites=2, questions=2, gap=0, clients=2, test_gaps=(0, 3), test_rows=3, rows=2)
    compared(task, network("llama"), tokenizer, task.load(Seeds()).test, tokenizer("")["input_ids"])


def test_a_tokenizer_that_does_not_tell_values_apart_is_refused() -> None:
    def mute(text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [0] * len(text.split())}

    with pytest.raises(CotuneError, match="the values are not different tokens"):
        TASK.encode(corpus_of(TASK).test, mute, 128)


def test_rows_longer_than_the_model_takes_are_dropped_and_counted() -> None:
    task = Recall(test_gaps=(0, 200, 8), test_rows=2, rows=2, gap=300)
    corpus, loaded = task.load(Seeds()), backbone()
    encoded = task.encode(corpus.test, loaded.tokenizer, loaded.limit)
    assert encoded.dropped == {TOO_LONG: 2}
    assert encoded.sources is not None
    assert [corpus.test[number]["gap"] for number in encoded.sources] == [0, 8, 0, 8]
    assert len(task.encode(corpus.test, loaded.tokenizer, 300).examples) == 6
    assert task.encode(corpus.clients["client-00"].train, loaded.tokenizer, 128).examples == []


def test_chance_is_one_of_all_values_and_one_of_those_in_a_row() -> None:
    for task in SHAPES:
        corpus = corpus_of(task)
        shown = [1 / len({*values(row)}) for row in corpus.test]
        assert corpus.chance == {"accuracy": 1 / 64, "among": pytest.approx(sum(shown) / len(shown))}
        assert task.chance(corpus, 999) == corpus.chance
    assert Recall(overwrites=0, pairs=4, rows=2).load(Seeds()).chance["among"] == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"questions": 5}, "asked for once"),
        ({"pairs": 40, "questions": 1}, "of a pool of 12 keys"),
        ({"gap": (5, 2)}, "a gap from 5 to 2"),
        ({"clients": 40, "pairs": 2, "questions": 1}, "of a pool of 1 keys"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Recall(**fields)


@given(seed=st.integers(0, 2**40), length=st.integers(1, 400), pool=st.integers(1, 64), gap=st.integers(0, 9))
def test_a_stream_tells_latest_values_and_is_a_function_of_its_seed(
    seed: int, length: int, pool: int, gap: int
) -> None:
    said, told = recall_stream(seed, length, pool, gap)
    assert (said, told) == recall_stream(seed, length, pool, gap)
    assert length <= len(said) < length + 4 + 2 * gap
    assert recalled(said, told) == len(told)
    assert len({word for word in said if word.startswith("k")}) <= pool


def test_a_stream_asks_about_recent_and_old_keys() -> None:
    said, told = recall_stream(3, 20000, 12, 4)
    written: dict[str, int] = {}
    ages = []
    for at, word in enumerate(said):
        if word.startswith("k") and said[at + 1] != "?":
            written[word] = at
        elif word.startswith("k"):
            ages.append(at - written[word])
    assert len(ages) == len(told) > 500
    assert sum(age < 16 for age in ages) / len(ages) > 0.3
    assert sum(age > 60 for age in ages) / len(ages) > 0.2
    fillers = sum(word.startswith("f") for word in said) / sum(word == ";" for word in said)
    assert fillers == pytest.approx(4, abs=0.3)


def one_round(task: Recall, out: Path) -> Run:
    recipe = resolve.load("lora-fedavg", backbone="builtin:tiny-recall", task="recall", rounds=1)
    experiment = ct.Experiment.model_validate(
        {
            **dict(recipe),
            "task": task,
            "method": resolve.recipe("lora-fedavg", steps=2, batch=4),
        }
    )
    return ct.run(experiment, out=out)


def test_the_server_records_shares_by_cell_and_nothing_else_changes(tmp_path: Path) -> None:
    task = Recall(clients=2, rows=8, held=2, test_gaps=(0, 30, 200), test_rows=5)
    run = one_round(task, tmp_path)
    record = run.rounds[-1]
    assert {*record.global_metrics} == {"loss", "accuracy", "among"}
    assert {*record.cells} == {"accuracy", "among"}, "a loss is no share"
    for name, cells in record.cells.items():
        assert list(cells) == ["gap 0", "gap 30"], "no row of 200 fillers fits in a window of 128"
        assert {metric.n for metric in cells.values()} == {5}
        whole = record.global_metrics[name]
        assert sum(metric.value * metric.n for metric in cells.values()) / whole.n == pytest.approx(whole.value)
        assert {metric.chance for metric in cells.values()} == {whole.chance}
        assert all(m.low is not None and m.high is not None and m.low <= m.value <= m.high for m in cells.values())
    assert "Synthetic rows, generated by the task `recall`." in (run.folder / "adapter" / "README.md").read_text()
    assert RoundRecord.model_validate_json(record.model_dump_json()) == record


def test_a_task_without_cells_records_none(tmp_path: Path) -> None:
    class Bare(Recall):
        def cell(self, row: Row) -> str:
            del row
            return ""

    record = one_round(Bare(clients=2, rows=8, held=2, test_rows=3), tmp_path).rounds[-1]
    assert record.cells == {}
    assert record.global_metrics["accuracy"].n == 12


def test_who_holds_what_can_be_shown(capfd: pytest.CaptureFixture[str]) -> None:
    said = typing(capfd)("data", "show", "recall?clients=3&rows=20&held=5&test_gaps=64&skew=0.5")
    assert said.status == 0
    assert "data synthetic · 3 clients · 139 rows · 64 of them for testing" in said.out
    assert "partition kind=keys skew=0.5 style=same unseen=True" in said.out
    assert "guessing scores accuracy 0.01562" in said.out
    refused(typing(capfd)("data", "show", "recall?gap=[5,2]"), "E_CONFIG", 2)
