"""Synthetic sentiment: each row follows from the options and its index, and the best possible accuracy is known."""

from __future__ import annotations

from collections import defaultdict

import pytest

from cotune.core.errors import CotuneError
from cotune.core.reference import parse
from cotune.task.synth import _BAD, _GOOD, Sentiment
from cotune.task.table import read


def oracle(text: object) -> int:
    """The class that a reader of the sentence would choose: the polarity of its one polar word, turned by `not`."""
    words = str(text).lower().replace(".", "").replace(",", "").split()
    good, bad = [word for word in words if word in _GOOD], [word for word in words if word in _BAD]
    assert len(good) + len(bad) == 1
    return int(bool(good) != ("not" in words))


def accuracy(table_text: str) -> float:
    rows = read(table_text).rows
    right = [bool(oracle(row["text"]) == row["label"]) for row in rows]
    return sum(right) / len(right)


def test_the_best_reader_scores_exactly_one_without_noise() -> None:
    assert accuracy("synth:sentiment?rows=2000&noise=0.0") == 1.0


@pytest.mark.parametrize("noise", [0.05, 0.2, 0.4])
def test_the_best_reader_scores_one_minus_the_noise(noise: float) -> None:
    table = read(f"synth:sentiment?rows=8000&noise={noise}")
    assert table.facts["optimum_accuracy"] == pytest.approx(1 - noise)
    assert table.facts["synthetic"] is True
    assert accuracy(f"synth:sentiment?rows=8000&noise={noise}") == pytest.approx(1 - noise, abs=0.02)


def test_a_row_does_not_depend_on_how_many_there_are() -> None:
    few, many = read("synth:sentiment?rows=10"), read("synth:sentiment?rows=500")
    assert few.rows == many.rows[:10]
    assert few.rows[7] == Sentiment(rows=2).row(7)


def test_rows_never_change_between_versions_of_the_program() -> None:
    assert Sentiment(clients=3).row(0) == {
        "text": "The band was rather clumsy from start to finish.",
        "label": 0,
        "domain": "domain-0",
    }


def test_another_seed_gives_other_sentences() -> None:
    assert read("synth:sentiment?rows=50").rows != read("synth:sentiment?rows=50&seed=1").rows


def test_classes_are_balanced_and_domains_are_equally_large() -> None:
    table = read("synth:sentiment?rows=6000&clients=6")
    assert sum(row["label"] for row in table.rows) / 6000 == pytest.approx(0.5, abs=0.03)
    assert table.owner == "domain"
    assert [sum(row["domain"] == f"domain-{d}" for row in table.rows) for d in range(6)] == [1000] * 6


def vocabulary(skew: float) -> dict[str, set[str]]:
    words: dict[str, set[str]] = defaultdict(set)
    for row in read(f"synth:sentiment?rows=4000&clients=4&skew={skew}").rows:
        words[row["domain"]] |= set(row["text"].lower().strip(".").replace(",", "").split()) & {*_GOOD, *_BAD}
    return words


def test_skew_one_gives_every_domain_its_own_words_and_skew_zero_all_of_them() -> None:
    assert all(len(words) == 12 for words in vocabulary(1.0).values())
    assert all(len(words) == 48 for words in vocabulary(0.0).values())
    first, second, *_ = vocabulary(1.0).values()
    assert first != second


def test_the_words_of_both_polarities_are_distinct() -> None:
    assert len({*_GOOD, *_BAD}) == len(_GOOD) + len(_BAD) == 48


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("nois=0.1", "no option 'nois'"),
        ("noise=0.5", "option 'noise'"),
        ("noise=nan", "option 'noise'"),
        ("rows=1", "option 'rows'"),
        ("rows=many", "option 'rows'"),
        ("clients=0", "option 'clients'"),
        ("skew=1.5", "option 'skew'"),
    ],
)
def test_an_option_out_of_range_is_refused_with_what_there_is(query: str, said: str) -> None:
    with pytest.raises(CotuneError, match=r"E_CONFIG.*options are clients, rows") as caught:
        Sentiment.table(parse(f"synth:sentiment?{query}"))
    assert said in str(caught.value)
