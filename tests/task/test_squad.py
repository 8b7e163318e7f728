"""F1 and exact match of SQuAD, computed by hand."""

from __future__ import annotations

import pytest

from cotune.task.squad import counted, exact, f1


@pytest.mark.parametrize(
    ("told", "answer", "same", "overlap"),
    [
        ("the Normans", "Normans", 1.0, 1.0),
        ("A cat, an owl!", "cat owl", 1.0, 1.0),
        ("in 1066", "1066", 0.0, 2 * 1 * 0.5 / 1.5),
        ("William the Conqueror", "Conqueror William", 0.0, 1.0),
        ("red red blue", "red blue blue", 0.0, 2 / 3),
        ("Theatre", "atre", 0.0, 0.0),
        ("", "1066", 0.0, 0.0),
        ("the", "a", 1.0, 1.0),
        ("U.S.", "us", 1.0, 1.0),
        ("café  au\tlait", "Café au lait.", 1.0, 1.0),
    ],
)
def test_words_in_common(told: str, answer: str, same: float, overlap: float) -> None:
    assert exact(told, answer) == exact(answer, told) == same
    assert f1(told, answer) == pytest.approx(overlap)
    assert f1(answer, told) == pytest.approx(overlap)


def test_what_counts_is_lower_case_without_punctuation_and_articles() -> None:
    assert counted('The "Another" theory — an A-frame.') == ["another", "theory", "—", "aframe"]
