"""Needles stand where they say, can be found by reading, and are never longer than they may be."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from typed import refused, typing
from words import network, words

import cotune as ct
from cotune import resolve
from cotune.backbone import Backbone
from cotune.core.contracts import Corpus, Row
from cotune.core.errors import Code, CotuneError
from cotune.core.seeds import Seeds
from cotune.task import KINDS, Needle
from cotune.task.letters import TOO_LONG, asked
from cotune.task.needle import Name
from cotune.task.needles import TEMPLATES, haystack

LETTERED = tuple(("Ġ", letter) for letter in "ABCD")
BYTES = words("<bos> $A", merges=LETTERED)  # a token a byte but for letters, so that what was encoded can be read
LENGTHS = (900, 1300)
TASK = Needle(lengths=LENGTHS, rows=24, test_rows=5)
CORPUS = TASK.load(Seeds())
ENCODED = TASK.encode(CORPUS.test, BYTES, 4096)
TEXTS = [BYTES.decode(list(example["input_ids"]), skip_special_tokens=True) for example in ENCODED.examples]


def template(row: Row) -> str:
    name: str = row["place"].split(",")[0]
    return name


def by_pattern(event: str, question: str) -> Callable[[str, str], str]:
    """A reader that knows one sentence: the value beside the name that the question has."""

    def read(text: str, said: str) -> str:
        (name,) = re.findall(question, said)
        (value,) = (value for key, value in re.findall(event, text) if key == name)
        return str(value)

    return read


def counted(text: str, _: str) -> str:
    (base,) = re.findall(r"The counter starts at (\d+)\.", text)
    changes = re.findall(r"The counter goes (up|down) by (\d+)\.", text)
    assert len(changes) == 7
    return str((int(base) + sum(int(n) if way == "up" else -int(n) for way, n in changes)) % 8)


READERS: Mapping[str, Callable[[str, str], str]] = {
    "passkey": by_pattern(r"passkey of Officer (\w+) is (\d{7})\.", r"passkey of Officer (\w+)\?"),
    "uuid": by_pattern(r"code of device (\S+) is (\w{4}-\w{4}-\w{4})\.", r"code of device (\S+)\?"),
    "name-date": by_pattern(r"Officer (\w+) filed the report on (\d+ \w+ \d{4})\.", r"did Officer (\w+) file"),
    "phrase": by_pattern(r"codeword of mission (\w+ \w+) is (\S+)\.", r"codeword of mission (\w+ \w+)\?"),
    "counter": counted,
    "multi-key": by_pattern(r"secret of key (\w+) is (\d{4})\.", r"secret of key (\w+)\?"),
    "multi-value": by_pattern(r"Codeword (\d): (\w+)\.", r"is Codeword (\d)\?"),
}


def answered(text: str, name: str) -> int:
    """The number of the option that a reader of the text chooses."""
    hay, _, question = text.rpartition("\n\nQuestion: ")
    said, *options, end = question.split("\n")
    assert end == "Answer:"
    assert [option[:3] for option in options] == ["A) ", "B) ", "C) ", "D) "]
    values = [option[3:] for option in options]
    assert len({*values}) == 4
    return values.index(READERS[name](hay, said))


def test_a_reader_with_regular_expressions_answers_every_question() -> None:
    assert {*READERS} == {*TEMPLATES} == {*get_args(Name)} == {*CORPUS.clients} == {*map(template, CORPUS.test)}
    for row, example, text in zip(CORPUS.test, ENCODED.examples, TEXTS, strict=True):
        assert answered(text, template(row)) == row["gold"] == example["gold"]


def test_the_wrong_options_are_the_other_values_in_the_text_or_other_residues() -> None:
    for row, text in zip(CORPUS.test, TEXTS, strict=True):
        hay = text.partition("\n\nQuestion: ")[0]
        if template(row) == "counter":
            assert {*row["options"]} < {str(residue) for residue in range(8)}
        else:
            assert all(re.search(rf"\b{re.escape(option)}\.", hay) for option in row["options"])


def test_events_stand_at_their_depth_in_the_filler_to_a_sentence() -> None:
    for row, text in zip(CORPUS.test, TEXTS, strict=True):
        said = re.split(r"(?<=\.) ", text.partition("\n\n")[0])
        assert [one for one in said if one in row["events"]] == list(row["events"])
        places = [place for place, one in enumerate(said) if one in row["events"]]
        filler = len(said) - len(places)
        depths = [(n + 0.5) / 8 for n in range(8)] if template(row) == "counter" else [0.1, 0.3, 0.5, 0.7]
        assert filler > 5
        for number, (place, depth) in enumerate(zip(places, depths, strict=True)):
            assert abs(place - number - depth * filler) <= 1


def test_the_cell_names_the_depth_of_the_event_that_is_asked_for() -> None:
    for row, text in zip(CORPUS.test, TEXTS, strict=True):
        if template(row) == "counter":
            assert TASK.cell(row) == f"every depth · length {row['length']}"
            continue
        values = [event for event in row["events"] if row["options"][row["gold"]] in event]
        (place,) = (row["events"].index(event) for event in values)
        assert TASK.cell(row) == f"depth {(0.1, 0.3, 0.5, 0.7)[place]} · length {row['length']}"
        assert text.count(values[0]) == 1


def test_a_prompt_is_never_longer_than_its_length_and_one_more_sentence_would_be() -> None:
    for tokenizer in (BYTES, words(merges=(("t", "h"), ("th", "e"), ("Ġ", "the")))):
        for row, example in zip(CORPUS.test, TASK.encode(CORPUS.test, tokenizer, 4096).examples, strict=True):
            ids = list(example["input_ids"])
            hay = tokenizer.decode(ids, skip_special_tokens=True).partition("\n\n")[0]
            count = len(re.split(r"(?<=\.) ", hay)) - len(row["events"])
            more = list(islice(row["filler"].sentences(row["seed"]), count + 1))
            ask = asked(row["question"], row["options"])
            assert haystack(row["events"], row["places"], more[:count], ask).startswith(hay)
            longer = haystack(row["events"], row["places"], more, ask) + " A"
            assert len(ids) <= row["length"] < len(tokenizer(longer)["input_ids"]) - 1


def test_lengths_and_depths_are_met_equally_often() -> None:
    plain = [row for row in CORPUS.test if template(row) != "counter"]
    assert {*Counter((template(row), row["length"]) for row in CORPUS.test).values()} == {5}
    for length in LENGTHS:
        cells = Counter(TASK.cell(row) for row in plain if row["length"] == length)
        assert len(cells) == 4
        assert max(cells.values()) - min(cells.values()) <= 1
    assert {*map(template, CORPUS.test[:7])} == {*TEMPLATES}, "the first rows are of all templates"
    for split in CORPUS.clients.values():
        assert (len(split.train), len(split.held)) == (24, 1)
        assert {*Counter(row["length"] for row in split.train).values()} == {12}


def test_the_right_letter_is_any_of_four_equally_often() -> None:
    corpus = Needle(rows=572, held=0, test_rows=0).load(Seeds())
    rows = [row for split in corpus.clients.values() for row in split.train]
    found, each = Counter(row["gold"] for row in rows), len(rows) / 4
    assert len(rows) == 4004
    assert sum((found[gold] - each) ** 2 / each for gold in range(4)) < 16.27, "chi squared, 3 degrees, p = 0.001"


def plain(corpus: Corpus) -> dict[str, Any]:
    """Every row as text, by whose it is."""
    held = {name: ([*map(str, split.train)], [*map(str, split.held)]) for name, split in corpus.clients.items()}
    return {**held, "test": sorted(map(str, corpus.test))}


def test_rows_are_a_function_of_fields_seed_and_index_whoever_else_takes_part() -> None:
    few = Needle(lengths=LENGTHS, rows=10, test_rows=1, clients=("uuid", "passkey"))
    turned = Needle(lengths=LENGTHS, rows=10, test_rows=1, clients=("passkey", "uuid"))
    assert plain(few.load(Seeds())) == plain(turned.load(Seeds())) == plain(few.load(Seeds(seed=9, data=0)))
    assert [str(row) for row in CORPUS.clients["uuid"].train[:10]] == plain(few.load(Seeds()))["uuid"][0]
    first = plain(few.load(Seeds()))
    for other in (few.load(Seeds(seed=1)), few.model_copy(update={"seed": 1}).load(Seeds())):
        assert all(plain(other)[name] != first[name] for name in first)
    rows = [str(row) for split in CORPUS.clients.values() for row in (*split.train, *split.held)]
    rows += map(str, CORPUS.test)
    assert len({*rows}) == len(rows)
    drawn, facts = few.load(Seeds(seed=1)).facts, few.load(Seeds()).facts
    assert facts == few.load(Seeds()).facts
    assert facts["test_manifest"] != drawn["test_manifest"]
    assert all(facts["manifest"][name] != drawn["manifest"][name] for name in few.clients)
    assert CORPUS.facts["duplicates"] == {"within_clients": 0, "between_clients": 0, "test": 0}


def test_a_left_out_template_is_tested_and_never_trained_on() -> None:
    corpus = Needle(lengths=LENGTHS, rows=8, test_rows=4, leave_out="phrase").load(Seeds())
    assert {*corpus.clients} == {*TEMPLATES} - {"phrase"}
    assert {*map(template, corpus.test)} == {"phrase"}
    seen = [event for s in corpus.clients.values() for row in (*s.train, *s.held) for event in row["events"]]
    assert seen
    assert not any("codeword of mission" in event for event in seen)
    with pytest.raises(CotuneError, match="the only client is left out"):
        Needle(clients=("uuid",), leave_out="uuid").load(Seeds())


def test_long_rows_are_test_rows_alone_and_what_the_model_does_not_take_is_counted() -> None:
    task = Needle(lengths=(700,), long=(5000,), rows=4, test_rows=2, clients=("multi-key", "counter"))
    corpus = task.load(Seeds())
    assert {row["length"] for split in corpus.clients.values() for row in split.train} == {700}
    encoded = task.encode(corpus.test, BYTES, 4096)
    assert encoded.dropped == {TOO_LONG: 4}
    assert encoded.sources is not None
    assert {task.cell(corpus.test[number]).partition("length ")[2] for number in encoded.sources} == {"700"}
    assert task.model_copy(update={"lengths": (64,)}).load(Seeds()).clients["counter"].train[0]["length"] == 64
    short = Needle(lengths=(64,), rows=2, test_rows=1, clients=("counter",))
    assert short.encode(short.load(Seeds()).test, BYTES, 4096).dropped == {TOO_LONG: 1}, "the events alone are longer"


def test_filler_can_be_the_text_of_a_file(tmp_path: Path) -> None:
    sentences = [f"Number {number} walks alone." for number in range(40)]
    file = tmp_path / "tales.jsonl"
    pairs = zip(sentences[::2], sentences[1::2], strict=True)
    file.write_text("\n".join(json.dumps({"text": f" {first}\n{second} "}) for first, second in pairs))
    task = Needle(lengths=(900,), rows=1, test_rows=1, filler=str(file))
    corpus = task.load(Seeds())
    for row, example in zip(corpus.test, task.encode(corpus.test, BYTES, 4096).examples, strict=True):
        text = BYTES.decode(list(example["input_ids"]), skip_special_tokens=True)
        numbers = [int(number) for number in re.findall(r"Number (\d+) walks alone\.", text)]
        assert numbers == [(numbers[0] + step) % 40 for step in range(len(numbers))], "in their order, and round again"
        assert answered(text, template(row)) == row["gold"]
    assert corpus.facts["data"] == f"synthetic events in {file}"
    file.write_text(json.dumps({"text": "  "}))
    with pytest.raises(CotuneError) as caught:
        task.load(Seeds())
    assert caught.value.code is Code.DATA


def test_scores_do_not_depend_on_the_batch() -> None:
    task = Needle(lengths=(700, 800), rows=1, test_rows=1)
    corpus, model = task.load(Seeds()), network("llama")
    examples = task.encode(corpus.test, BYTES, 1024).examples[:6]
    with torch.no_grad():
        together = task.scores(model, task.collate(examples, BYTES))
        turned = task.scores(model, task.collate(examples[::-1], BYTES))
        alone = [task.scores(model, task.collate([example], BYTES)) for example in examples]
    for metric in task.metrics:
        torch.testing.assert_close(together[metric], turned[metric].flip(0), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(together[metric], torch.cat([one[metric] for one in alone]), atol=1e-5, rtol=1e-5)


def test_cells_are_those_of_the_rows_that_fit(tmp_path: Path) -> None:
    asking = "needle?clients=uuid,counter&lengths=180,256&rows=4&test_rows=4"
    sets = ("method.budget={steps=1, batch=2}", "evaluation.rows=13")
    experiment = resolve.load("lora-fedavg", backbone="builtin:tiny-llama", task=asking, rounds=1, sets=sets)
    run = ct.run(experiment, out=tmp_path)
    task, tokenizer = experiment.task, Backbone(ref="builtin:tiny-llama").load("causal", 0, 0).tokenizer
    rows = task.load(experiment.seeds).test[:13]
    fits = [row for row in rows if task.encode([row], tokenizer, 256).examples]
    assert 0 < len(fits) < len(rows)
    record = run.rounds[-1]
    assert {cell: m.n for cell, m in record.cells["accuracy"].items()} == Counter(map(task.cell, fits))
    assert {*record.cells} == {"accuracy"}
    right = json.loads((run.folder / "scores" / "round-00001.json").read_text())["accuracy"]
    for cell, metric in record.cells["accuracy"].items():
        inside = [value for value, row in zip(right, fits, strict=True) if task.cell(row) == cell]
        assert metric.value == sum(inside) / len(inside)
        assert metric.chance == 0.25


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("needle", {}),
        ("needle?rows=3", {"rows": 3}),
        ("needle?clients=uuid,passkey&lengths=512,1024", {"clients": ("uuid", "passkey"), "lengths": (512, 1024)}),
        ("needle?clients=uuid&lengths=512&held=0.5", {"clients": ("uuid",), "lengths": (512,), "held": 0.5}),
        ('needle?clients=["uuid"]&leave_out="phrase"', {"clients": ("uuid",), "leave_out": "phrase"}),
        ("needle?filler=pkg:kjv", {"filler": "pkg:kjv"}),
    ],
)
def test_a_task_without_data_is_named_by_its_kind_and_its_fields(text: str, fields: dict[str, Any]) -> None:
    task = resolve.task(text)
    assert task == Needle(**fields)
    assert resolve.load("lora-fedavg", backbone="builtin:tiny-llama", task=text).task == task
    assert KINDS["needle"].model_validate({k: v for k, v in task.model_dump().items() if k != "kind"}) == task


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("needle?lenths=3", "unknown key 'lenths'.*did you mean 'lengths'"),
        ("needle?clients=foo", "input should be 'passkey'"),
        ("needle?x", "cannot read an assignment"),
        ("needle?", "cannot read an assignment"),
        ("needle?clients=uuid,,x", "cannot read a value"),
        ("needle:./a.jsonl", "unknown key 'data'"),
    ],
)
def test_mistakes_are_one_line(text: str, says: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert re.search(says, refused(typing(capfd)("data", "show", text), "E_CONFIG", 2))


def test_who_holds_what_can_be_shown(capfd: pytest.CaptureFixture[str]) -> None:
    said = typing(capfd)("data", "show", "needle?rows=40&held=0.1")
    assert said.status == 0
    assert "data synthetic · 7 clients · 413 rows · 105 of them for testing" in said.out
    assert all(re.search(rf"^{name} +40 \+ 4 ", said.out, re.MULTILINE) for name in TEMPLATES)


def test_a_model_that_takes_no_row_is_told_so(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    ask = ("run", "lora-fedavg", "--backbone", "builtin:tiny-llama", "--out", str(tmp_path), "--quiet")
    line = refused(typing(capfd)(*ask, "--task", "needle?rows=2&test_rows=1"), "E_DATA", 3)
    assert "no row to train on is left" in line
    assert f"14 {TOO_LONG}" in line
    assert "takes 256 tokens" in line
