"""A label is one of the classes, or an error that names its row and what is allowed; never silently class 0."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.core.errors import Code, CotuneError
from cotune.task.labels import numbered


def place(row: int) -> str:
    return f"a.csv, row {row + 1}"


@pytest.mark.parametrize(
    ("cells", "numbers", "names"),
    [
        ([1, 0, 2], [1, 0, 2], ("0", "1", "2")),
        (["1", "0", " 2"], [1, 0, 2], ("0", "1", "2")),
        ([1.0, 0.0, 1], [1, 0, 1], ("0", "1")),
        (["1.0", "0"], [1, 0], ("0", "1")),
        (["10", *"0123456789"], [10, *range(10)], tuple(map(str, range(11)))),
        ([True, False], [1, 0], ("False", "True")),
        (["True", "False"], [1, 0], ("False", "True")),
        (["sad", "glad", "sad"], [1, 0, 1], ("glad", "sad")),
        (["nan", "x", "y"], [0, 1, 2], ("nan", "x", "y")),
        (["é", "z", "a"], [2, 1, 0], ("a", "z", "é")),
    ],
)
def test_integers_flags_and_names_become_numbers(cells: list[Any], numbers: list[int], names: tuple[str, ...]) -> None:
    assert numbered(cells, place) == (numbers, names)


@pytest.mark.parametrize("bad", [-1, 2, 99, 0.5, math.nan, math.inf, None, "", " ", "secret", [0], {"a": 1}, True])
def test_a_label_outside_the_classes_is_refused_with_its_row_and_the_range(bad: object) -> None:
    with pytest.raises(CotuneError) as caught:
        numbered([0, 1, 0, bad, 1], place, ("no", "yes"))
    assert caught.value.code is Code.LABEL
    assert "a.csv, row 4" in str(caught.value)
    assert "0..1" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("bad", ["-1", "0.5", "nan", "inf", "", "secret", "1e400", None])
def test_the_same_holds_for_labels_read_as_text(bad: object) -> None:
    with pytest.raises(CotuneError, match=r"E_LABEL.*row 4.*0\.\.1") as caught:
        numbered(["0", "1", "0", bad, "1"], place)
    assert "secret" not in str(caught.value)


def test_the_number_of_classes_is_what_occurs_unless_it_is_said() -> None:
    with pytest.raises(CotuneError, match=r"E_LABEL.*row 3.*got 7, expected an integer in 0\.\.2.*count from 0"):
        numbered([0, 1, 7], place)
    assert numbered([0, 1, 7], place, classes=8)[1] == tuple(map(str, range(8)))
    with pytest.raises(CotuneError, match=r"E_LABEL.*row 2.*got 2, expected an integer in 0\.\.1"):
        numbered([1, 2], place)
    with pytest.raises(CotuneError, match=r"E_LABEL.*got 2"):
        numbered([0, 1, 2], place, classes=2)


@pytest.mark.parametrize("cells", [[0, 0], [3, 3], ["a", "a"], [True, True], []])
def test_a_single_class_is_no_classification(cells: list[object]) -> None:
    with pytest.raises(CotuneError, match=r"E_DATA.*only one class"):
        numbered(cells, place)


def test_a_missing_name_is_refused_among_names() -> None:
    for bad in (None, "", "  ", 3, math.nan, ["glad"]):
        with pytest.raises(CotuneError, match=r"E_LABEL.*row 3") as caught:
            numbered(["glad", "sad", bad], place)
        assert "glad" not in str(caught.value)


def test_names_must_be_those_that_are_declared_or_counted() -> None:
    assert numbered(["b", "a"], place, ("b", "a", "c")) == ([0, 1], ("b", "a", "c"))
    with pytest.raises(CotuneError, match=r"E_LABEL.*row 2"):
        numbered(["b", "x"], place, ("b", "a"))
    with pytest.raises(CotuneError, match=r"E_LABEL.*got 2 names, expected 3 classes"):
        numbered(["b", "x"], place, classes=3)


def test_a_column_of_free_texts_is_not_taken_for_labels() -> None:
    with pytest.raises(CotuneError, match=r"E_LABEL.*1001.*label column") as caught:
        numbered([f"secret {number}" for number in range(1001)], place)
    assert "secret" not in str(caught.value)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40))
def test_however_labels_are_written_they_mean_the_same(values: list[int]) -> None:
    values = [*range(5), *values]
    ways: Sequence[list[Any]] = [values, [str(v) for v in values], [float(v) for v in values]]
    assert all(numbered(way, place)[0] == values for way in ways)
    assert numbered([f"class {v}" for v in values], place)[0] == values
