"""Needles of eight kinds stand where they are said to, fill their length, and are right where values are written."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from typed import typing
from words import EOS, VOCAB, network, words

import cotune as ct
from cotune import resolve
from cotune.core.contracts import Corpus, Row
from cotune.core.errors import Code, CotuneError
from cotune.core.seeds import Seeds
from cotune.task import KINDS, Ruler
from cotune.task.forms.contained import share
from cotune.task.letters import TOO_LONG
from cotune.task.needles import SUITE, hay
from cotune.task.needles.suite import DEPTHS, NOISE

BYTES = words("<bos> $A")
PAIRS = words(merges=(("t", "h"), ("th", "e"), ("Ġ", "the"), ("e", "c"), ("r", "e"), ("ec", "re")))
LENGTHS = (900, 1300)
TASK = Ruler(lengths=LENGTHS, rows=12, test_rows=4)
CORPUS = TASK.load(Seeds())
EVENT = re.compile(r"The secret (number|uuid) of (\S+) is (\S+)\.")
NUMBER, UUID = r"[1-9]\d{6}", r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"


def read(text: str) -> list[int]:
    ids: list[int] = BYTES(text)["input_ids"]
    return ids


def asked(row: Row, task: Ruler = TASK) -> tuple[str, tuple[str, ...]]:
    question = task.question(row, read, 4096)
    assert question is not None
    return question.prompt, question.options


def parts(row: Row) -> tuple[str, str, str]:
    """What a prompt says before the haystack, the haystack, and what it asks."""
    about, *lines, question, opening = asked(row)[0].split("\n")
    return about, "\n".join(lines), f"{question}\n{opening}"


# name -> haystack, key, value, keys, values of each, keys asked for; from the paper's table of its tasks
EIGHT = {
    "single-1": ("noise", "words", "numbers", 1, 1, 1),
    "single-2": ("essay", "words", "numbers", 1, 1, 1),
    "single-3": ("essay", "words", "uuids", 1, 1, 1),
    "multikey-1": ("essay", "words", "numbers", 4, 1, 1),
    "multikey-2": ("needle", "words", "numbers", 1, 1, 1),
    "multikey-3": ("needle", "uuids", "uuids", 1, 1, 1),
    "multivalue": ("essay", "words", "numbers", 1, 4, 1),
    "multiquery": ("essay", "words", "numbers", 4, 1, 4),
}


def test_there_are_the_eight_tasks_and_each_is_a_client() -> None:
    found = {n: (s.hay, s.key, s.value, s.keys, s.values, s.asked) for n, s in SUITE.items()}
    assert found == EIGHT
    assert [*Ruler().clients] == [*EIGHT] == [*CORPUS.clients]
    assert [row["task"] for row in CORPUS.test[:8]] == [*EIGHT], "the first rows are of all tasks"
    assert (Ruler().answer_tokens, Ruler().way.most) == (128, 128)
    for split in CORPUS.clients.values():
        assert (len(split.train), len(split.held)) == (12, 1)
    assert len(CORPUS.test) == 8 * 2 * 4


def test_a_reader_with_a_regular_expression_finds_every_value_that_is_asked_for() -> None:
    for row in CORPUS.test:
        hay_, key, value, keys, values, many = EIGHT[row["task"]]
        about, text, question = parts(row)
        found = EVENT.findall(text)
        names = re.findall(r"[a-z0-9-]+-[a-z0-9-]+", question.partition("\n")[0])
        right = [said for name in names for _, other, said in found if other == name]
        assert tuple(right) == asked(row)[1]
        assert len(right) == values * many
        assert len(names) == len({*names}) == many
        assert re.findall(r"[a-z0-9-]+-[a-z0-9-]+", question.partition("\n")[2]) == names
        assert len(found) == keys * values if hay_ != "needle" else len(found) > 3
        assert len({said for _, _, said in found}) == len(found), "no value stands there twice"
        assert len({name for _, name, _ in found}) == len(found) // values
        for kind, name, said in found:
            assert f"{kind}s" == value
            assert re.fullmatch(NUMBER if value == "numbers" else UUID, said)
            assert re.fullmatch(r"[a-z]+-[a-z]+" if key == "words" else UUID, name)
        plural = len(right) > 1
        assert ("secret numbers" in question) == plural == ("secret numbers" in about)
        assert not any(said in question or said in about for said in right)


def around(row: Row) -> tuple[list[str], list[int]]:
    """The haystack's sentences or lines, and the places of the needles among them."""
    _, text, _ = parts(row)
    essay = EIGHT[row["task"]][0] == "essay"
    units = re.split(r"(?<=\.) ", text) if essay else text.split("\n")
    return units, [place for place, unit in enumerate(units) if unit in row["needles"].events]


def test_needles_stand_behind_the_whole_sentences_or_lines_of_their_depth() -> None:
    for row in CORPUS.test:
        units, places = around(row)
        assert [units[place] for place in places] == [*row["needles"].events]
        others = len(units) - len(places)
        assert others > 3
        for number, (place, depth) in enumerate(zip(places, row["needles"].places, strict=True)):
            behind = place - number  # sentences or lines of the haystack before it
            assert behind == (depth.numerator * others) // depth.denominator
        if EIGHT[row["task"]][0] == "essay":
            assert len({*row["needles"].places}) == len(places)
            assert {*row["needles"].places} <= {*DEPTHS}
        else:
            assert places[0] < others, "a line of the haystack always follows"


def test_depths_of_an_essay_are_forty_whole_percents_and_all_of_them_are_drawn() -> None:
    assert [int(100 * depth) for depth in DEPTHS] == np.linspace(0, 100, 40).round().astype(int).tolist()
    corpus = Ruler(clients=("single-2", "single-1"), rows=400, held=0, test_rows=0).load(Seeds())
    essays, lines = ([row["needles"].depth for row in corpus.clients[name].train] for name in ("single-2", "single-1"))
    assert {*essays} == {*DEPTHS}
    counts = [sum(depth * 8 // 1 == eighth for depth in lines) for eighth in range(8)]
    assert sum((count - 50) ** 2 / 50 for count in counts) < 24.3, "chi squared, 7 degrees, p = 0.001"
    assert not {*lines} <= {*DEPTHS}


def test_each_haystack_is_of_its_kind() -> None:
    for row in CORPUS.test:
        units, places = around(row)
        rest = [unit for place, unit in enumerate(units) if place not in places]
        match EIGHT[row["task"]][0]:
            case "noise":
                assert {*rest} == {NOISE}
                assert NOISE.count(". ") == 4
            case "needle":
                assert all(EVENT.fullmatch(unit) for unit in rest)
                assert not any(name in unit for unit in rest for name in row["needles"].names)
            case _:
                assert rest == [*islice(row["filler"].sentences(row["seed"]), len(rest))]


def test_a_haystack_of_needles_goes_on_where_all_words_have_been() -> None:
    (row,) = Ruler(clients="multikey-2", rows=1, held=0, test_rows=0).load(Seeds()).clients["multikey-2"].train
    lines = [*islice(hay(SUITE["multikey-2"], row["seed"], row["needles"], row["filler"]), 2 * 64 * 64)]
    found = [match.groups() for line in lines if (match := EVENT.fullmatch(line))]
    assert len(found) == len(lines)
    assert len({name for _, name, _ in found}) == 64 * 64 - 1
    assert len({value for _, _, value in found} | {*row["needles"].values}) == len(found) + 1
    assert row["needles"].names[0] not in {name for _, name, _ in found}


@pytest.mark.parametrize("tokenizer", [BYTES, PAIRS], ids=["a byte a token", "pairs"])
def test_prompt_and_answer_fill_the_length_and_one_more_sentence_or_line_would_not_fit(tokenizer: Any) -> None:
    def ids(text: str) -> list[int]:
        made: list[int] = tokenizer(text)["input_ids"]
        return made

    examples = TASK.encode(CORPUS.test, tokenizer, 4096).examples
    for row, example in zip(CORPUS.test, examples, strict=True):
        question = TASK.question(row, ids, 4096)
        assert question is not None
        assert [*example["asks"]] == ids(question.prompt)
        assert len(example["asks"]) + 128 <= row["length"]
        hidden, sought = row["needles"], SUITE[row["task"]]
        text = question.prompt.removeprefix(f"{hidden.about}\n").removesuffix(f"\n{hidden.question}")
        joint = " " if sought.hay == "essay" else "\n"
        count = len(re.split(r"(?<=\.) ", text) if joint == " " else text.split("\n")) - len(hidden.events)
        units = [*islice(hay(sought, row["seed"], hidden, row["filler"]), count + 1)]
        longer = joint.join([*hidden.events, *units])  # where the needles stand changes no length of these tokenizers
        assert len(ids(f"{hidden.about}\n{longer}\n{hidden.question}")) + 128 > row["length"]
        shorter = joint.join([*hidden.events, *units[:-1]])
        assert len(ids(f"{hidden.about}\n{shorter}\n{hidden.question}")) == len(example["asks"])


def test_rows_are_a_function_of_fields_seed_and_index_whoever_else_takes_part() -> None:
    def plain(corpus: Corpus) -> dict[str, list[str]]:
        held = {name: [*map(str, (*split.train, *split.held))] for name, split in corpus.clients.items()}
        return {**held, "test": sorted(map(str, corpus.test))}

    few, turned = (
        Ruler(lengths=LENGTHS, rows=5, test_rows=1, clients=clients)
        for clients in (("single-1", "multikey-3"), ("multikey-3", "single-1"))
    )
    first = plain(few.load(Seeds()))
    assert first == plain(turned.load(Seeds())) == plain(few.load(Seeds(seed=9, data=0)))
    assert [*map(str, CORPUS.clients["single-1"].train[:5])] == first["single-1"][:5]
    for other in (few.load(Seeds(seed=1)), few.model_copy(update={"seed": 1}).load(Seeds())):
        assert all(plain(other)[name] != first[name] for name in first)
    facts = [few.load(Seeds(seed=seed)).facts for seed in (0, 0, 1)]
    assert facts[0] == facts[1] != facts[2]
    assert CORPUS.facts["duplicates"] == {"within_clients": 0, "between_clients": 0, "test": 0}
    assert TASK.encode(CORPUS.test, BYTES, 4096).examples == TASK.encode(CORPUS.test, BYTES, 4096).examples


def test_cells_are_tasks_lengths_and_quarters_of_depth() -> None:
    for row in CORPUS.test:
        task, length, where = TASK.cell(row).split(" · ")
        assert (task, length) == (row["task"], f"length {row['length']}")
        if task in ("multivalue", "multiquery"):
            assert where == "every depth"
            continue
        (place,) = (
            depth
            for event, depth in zip(row["needles"].events, row["needles"].places, strict=True)
            if row["needles"].values[0] in event
        )
        low, high = map(float, where.removeprefix("depth ").split(" to "))
        assert high - low == 0.25
        assert low <= place < high or place == high == 1


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (" 1234567, 89ab.", 1.0),
        ("\nfirst 89AB\nthen\n1234567", 1.0),
        ("x1234567y89aB", 1.0),
        (" 1234567 and 89ac", 0.5),
        (" 123456, 89a", 0.0),
        ("", 0.0),
    ],
)
def test_the_score_is_the_share_of_the_right_values_that_stand_in_the_text(text: str, right: float) -> None:
    assert share(("1234567", "89Ab"), text) == right
    assert share(("1234567", "89ab", "1234567", "zz"), "1234567") == 0.5


def remembering(examples: Sequence[Mapping[str, Any]], says: Sequence[str]) -> Callable[..., Any]:
    """A model that has memorised what to write behind each prompt, and then the end of text."""
    known = {
        tuple(example["asks"]): [*BYTES(said, add_special_tokens=False)["input_ids"], EOS]
        for example, said in zip(examples, says, strict=True)
    }
    lengths = sorted({len(prompt) for prompt in known})

    def model(
        input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int | torch.Tensor
    ) -> SimpleNamespace:
        length = input_ids.shape[1]
        kept = range(length - logits_to_keep, length) if isinstance(logits_to_keep, int) else logits_to_keep.tolist()
        logits = torch.zeros(len(input_ids), len(kept), VOCAB)
        for row, (ids, mask) in enumerate(zip(input_ids.tolist(), attention_mask.sum(1).tolist(), strict=True)):
            (told,) = ((n, known[tuple(ids[:n])]) for n in lengths if n <= mask and tuple(ids[:n]) in known)
            for column, place in enumerate(kept):
                said = place - told[0] + 1
                if said >= 0:
                    logits[row, column, told[1][said] if said < len(told[1]) else EOS] = 30.0
        return SimpleNamespace(logits=logits)

    return model


def test_a_model_that_has_memorised_the_answers_is_right_and_has_no_loss_left() -> None:
    examples = TASK.encode(CORPUS.test[:8], BYTES, 4096).examples
    says = [f" {', '.join(row['needles'].values)}" for row in CORPUS.test[:8]]
    for example, said in zip(examples, says, strict=True):
        learned = [example["input_ids"][place] for place in example["supervised"]]
        assert (BYTES.decode(learned[:-1]), learned[-1]) == (said, EOS)
        assert [*example["input_ids"]] == [*example["asks"], *learned]
    found = TASK.judged(remembering(examples, says), TASK.collate(examples, BYTES), examples, BYTES)
    assert found.keys() == {*TASK.metrics}
    assert found["accuracy"].tolist() == [1.0] * 8
    assert found["cut_short"].tolist() == [0.0] * 8
    assert float(found["loss"].max()) < 1e-6


def test_a_model_that_is_trained_to_the_end_writes_what_it_learned() -> None:
    task = Ruler(clients="single-1", lengths=(310,), rows=1, held=0, test_rows=2, answer_tokens=15)
    examples, model = task.encode(task.load(Seeds()).test, BYTES, 1024).examples, network("llama")
    batch, optimizer = task.collate(examples, BYTES), torch.optim.AdamW(model.parameters(), lr=0.02)
    for _ in range(80):
        optimizer.zero_grad()
        task.losses(model, batch).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        found = task.judged(model, batch, examples, BYTES)
    assert found["accuracy"].tolist() == [1.0, 1.0]
    assert float(found["loss"].max()) < 0.1


def test_what_counts_is_all_that_is_written_up_to_the_end_of_text_or_128_tokens() -> None:
    (example,) = TASK.encode([row for row in CORPUS.test if row["task"] == "multiquery"][:1], BYTES, 4096).examples
    first, second, third, fourth = example["answers"]

    def told(said: str) -> tuple[float, float]:
        model = remembering([example], [said])
        found = TASK.judged(model, TASK.collate([example], BYTES), [example], BYTES)
        return float(found["accuracy"]), float(found["cut_short"])

    assert told(f"\n{fourth}\n\n{third} {second}. {first}") == (1.0, 0.0)
    assert told(f" {first} and {third}") == (0.5, 0.0)
    assert told("") == (0.0, 0.0)
    assert told("." * (128 - 7) + first) == (0.25, 1.0)
    assert told("." * (128 - 6) + first) == (0.0, 1.0)
    assert told(f"{first}{second}{third}{fourth}" + "." * 400) == (1.0, 0.0), "it need not go on"


def test_answers_are_the_same_for_any_batch_size_padding_side_and_order() -> None:
    task, draw = Ruler(lengths=(600, 680), rows=1, test_rows=1, answer_tokens=60), random.Random(1)
    rows = task.load(Seeds()).test
    says = []
    for row in rows:
        some = draw.sample(row["needles"].values, draw.randint(0, len(row["needles"].values)))
        says.append("\n".join(draw.choice((str.upper, str.lower))(value) for value in some))
    once: Mapping[str, list[float]] = {}
    for side in ("right", "left"):
        tokenizer = words("<bos> $A")
        tokenizer.padding_side = tokenizer.truncation_side = side
        examples = task.encode(rows, tokenizer, 4096).examples
        model = remembering(examples, says)
        for size in (1, 2, 7, 64):
            order = random.Random(size).sample(range(len(rows)), len(rows))
            found = {metric: [0.0] * len(rows) for metric in ("accuracy", "cut_short")}
            for start in range(0, len(order), size):
                some = order[start : start + size]
                batch = [examples[i] for i in some]
                scores = task.judged(model, task.collate(batch, tokenizer), batch, tokenizer)
                for metric, values in found.items():
                    for i, value in zip(some, scores[metric].tolist(), strict=True):
                        values[i] = value
            once = once or found
            assert found == once
    assert 2 < sum(once["accuracy"]) < len(rows) - 2


def test_rows_longer_than_the_model_or_shorter_than_their_needles_are_dropped_and_counted() -> None:
    task = Ruler(clients=("single-1", "multiquery"), lengths=(128, 560, 5000), rows=3, held=0, test_rows=1)
    corpus = task.load(Seeds())
    assert [row["length"] for row in corpus.clients["single-1"].train] == [128, 560, 5000]
    encoded = task.encode(corpus.test, BYTES, 4096)
    assert encoded.sources is not None
    assert [(corpus.test[number]["task"], corpus.test[number]["length"]) for number in encoded.sources] == [
        ("single-1", 560)
    ], "128 tokens leave no room for a prompt, and four needles with their question are more than 432"
    assert encoded.dropped == {TOO_LONG: 5}
    long = task.model_copy(update={"long": (700,), "lengths": (640,)}).load(Seeds())
    assert {row["length"] for split in long.clients.values() for row in split.train} == {640}
    assert {row["length"] for row in long.test} == {640, 700}


def test_essays_can_be_the_text_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tales.jsonl"
    file.write_text("\n".join(json.dumps({"text": f"Number {n} walks. Then {n} sits."}) for n in range(30)))
    task = Ruler(clients=("single-3", "multikey-2"), lengths=(900,), rows=1, test_rows=1, filler=str(file))
    corpus = task.load(Seeds())
    essay, needle = (asked(row, task)[0] for row in corpus.test)
    assert len(re.findall(r"Number \d+ walks\. Then \d+ sits\.", essay)) > 8
    assert "walks" not in needle
    assert corpus.facts["data"] == f"synthetic needles in {file}"
    file.write_text(json.dumps({"text": "  "}))
    with pytest.raises(CotuneError) as caught:
        task.load(Seeds())
    assert caught.value.code is Code.DATA


def test_a_run_trains_writes_and_is_scored_by_task_length_and_depth(tmp_path: Path) -> None:
    asking = "ruler?clients=single-1,multivalue&lengths=360,600&rows=3&held=0.4&test_rows=2&answer_tokens=12"
    sets = ("method.budget={steps=1, batch=2}", "evaluation.every=1")
    backbone = "random:llama?layers=1&hidden=16&heads=2&positions=600"
    experiment = resolve.load("lora-fedavg", backbone=backbone, task=asking, rounds=1, sets=sets)
    run = ct.run(experiment, out=tmp_path)
    (record,) = run.rounds
    rows, task = experiment.task.load(experiment.seeds).test, experiment.task
    fits = [row for row in rows if (row["task"], row["length"]) != ("multivalue", 360)]
    assert {cell: metric.n for cell, metric in record.cells["accuracy"].items()} == {
        cell: sum(task.cell(row) == cell for row in fits) for cell in map(task.cell, fits)
    }
    assert record.global_metrics["accuracy"].chance == 0
    assert (record.global_metrics["accuracy"].n, record.global_metrics["cut_short"].value) == (len(fits), 1.0)
    assert {*record.cohort.accepted} == {"multivalue", "single-1"}
    assert record.client_metrics["single-1"]["accuracy"].n == 1


def test_it_is_named_shown_and_listed(capfd: pytest.CaptureFixture[str]) -> None:
    type_ = typing(capfd)
    said = type_("data", "show", "ruler?rows=40&held=0.1").out
    assert "data synthetic · 8 clients · 472 rows · 120 of them for testing" in said
    assert all(re.search(rf"^{name} +40 \+ 4 ", said, re.MULTILINE) for name in EIGHT)
    said = type_("show", "lora-fedavg", "--backbone", "random:llama?layers=1&hidden=16", "--task", "ruler?rows=4").out
    assert 'kind = "ruler"' in said
    assert "8 clients, all a round: 32 rows to train on" in said
    assert "Needles in the structure of RULER" in type_("list", "task").out
    task = resolve.task("ruler?clients=single-1&lengths=512&seed=3")
    assert (
        task
        == Ruler(clients=("single-1",), lengths=(512,), seed=3)
        == ct.task.Ruler.model_validate({name: value for name, value in task.model_dump().items() if name != "kind"})
    )
    assert KINDS["ruler"] is Ruler
