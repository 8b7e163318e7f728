"""Synthetic prose and instructions: each row follows from its index, and their rules hold in every row."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest

from cotune.core.errors import CotuneError
from cotune.task.prose import _ANIMALS, _THINGS, Instructions, Prose
from cotune.task.table import read


def test_a_row_does_not_depend_on_how_many_there_are() -> None:
    for name in ("prose", "instructions"):
        few, many = read(f"synth:{name}?rows=10"), read(f"synth:{name}?rows=300")
        assert few.rows == many.rows[:10]
        assert read(f"synth:{name}?rows=50").rows != read(f"synth:{name}?rows=50&seed=1").rows
        assert many.facts["synthetic"] is True
        assert (many.owner, many.columns[-1]) == ("domain", "domain")


def test_rows_never_change_between_versions_of_the_program() -> None:
    assert Prose(clients=3).row(0) == {
        "text": "The hungry badger climbs by the river in spring.",
        "domain": "domain-0",
    }
    assert Instructions(clients=3).row(0) == {
        "prompt": "Of what is the box made?\n",
        "completion": "The box is made of wood.",
        "domain": "domain-0",
    }


def test_who_it_is_decides_what_it_does_and_where() -> None:
    seen: dict[str, set[str]] = defaultdict(set)
    for row in read("synth:prose?rows=1500").rows:
        for sentence in re.findall(r"[^.]+\.", row["text"]):
            found = re.fullmatch(r"\s?(?:[A-Z][a-z ]+ the|The) \w+ (\w+) (\w+s \w+ the \w+) .+\.", sentence)
            assert found is not None
            seen[found[1]].add(found[2])
    assert set(seen) == set(_ANIMALS)
    assert all(len(deeds) == 1 for deeds in seen.values())


def test_an_answer_follows_from_its_question() -> None:
    answers: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in read("synth:instructions?rows=4000").rows:
        (thing,) = set(re.findall(r"\w+", row["prompt"])) & set(_THINGS)
        topic = (
            "colour" if "colour" in row["prompt"] else "made" if re.search("made|material", row["prompt"]) else "place"
        )
        answers[thing, topic].add(row["completion"])
        assert thing in row["completion"]
    assert len(answers) == 3 * len(_THINGS)
    assert all(len(said) == 1 for said in answers.values())


def test_a_domain_keeps_to_its_own_words_as_far_as_the_skew_says() -> None:
    for skew, count in ((1.0, 6), (0.0, len(_THINGS))):
        things: dict[str, set[str]] = defaultdict(set)
        for row in read(f"synth:instructions?rows=2000&clients=4&skew={skew}").rows:
            things[row["domain"]] |= set(re.findall(r"\w+", row["prompt"])) & set(_THINGS)
        assert {len(own) for own in things.values()} == {count}


@pytest.mark.parametrize(
    "query", ["prose?noise=0.1", "prose?sentences=0", "instructions?skew=2", "instructions?rows=1"]
)
def test_an_option_out_of_range_is_refused_with_what_there_is(query: str) -> None:
    with pytest.raises(CotuneError, match=r"E_CONFIG.*options are clients, rows, seed"):
        read(f"synth:{query}")
