"""Test rows and held-back rows are drawn by seed, in the sizes asked for, and groups stay whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.core.contracts import Row
from cotune.core.errors import CotuneError
from cotune.task.divide import held_back, held_out, manifest, row_hash, subset


@given(rows=st.integers(0, 40), share=st.floats(0, 0.999), seed=st.integers(0, 3))
def test_a_client_holds_back_one_row_of_two_and_none_of_one(rows: int, share: float, seed: int) -> None:
    mine: list[Row] = [{"text": str(row)} for row in range(rows)]
    split = held_back(mine, share, seed)
    assert sorted([*split.train, *split.held], key=lambda row: int(row["text"])) == mine
    if share == 0 or rows < 2:
        assert not split.held
    else:
        assert 1 <= len(split.held) < rows
        assert abs(len(split.held) - share * rows) <= 1


@given(
    groups=st.lists(st.sampled_from("abcde"), min_size=2, max_size=40),
    test=st.floats(0.01, 0.9),
    seed=st.integers(0, 5),
)
def test_no_group_is_on_both_sides_of_the_test_split(groups: list[str], test: float, seed: int) -> None:
    if len(set(groups)) < 2 or max(1, round(test * len(groups))) >= len(groups):
        with pytest.raises(CotuneError, match="E_DATA"):
            held_out(len(groups), test, seed, groups)
        return
    mine, out = held_out(len(groups), test, seed, groups)
    assert mine
    assert out
    assert sorted([*mine, *out]) == list(range(len(groups)))
    assert not {groups[row] for row in mine} & {groups[row] for row in out}


def test_a_subset_is_drawn_by_seed_and_keeps_the_order() -> None:
    assert subset(5, None, 0) == subset(5, 9, 0) == [0, 1, 2, 3, 4]
    assert subset(100, 10, 0) == sorted(subset(100, 10, 0)) != subset(100, 10, 1)


def test_a_hash_depends_on_text_and_label_and_a_manifest_on_the_order() -> None:
    assert len({row_hash("a"), row_hash("b"), row_hash("a", 1), row_hash("a", 2), row_hash("\ud800")}) == 5
    rows: list[Row] = [{"text": "a", "label": 0}, {"text": "b", "label": 1}]
    assert manifest(rows) == manifest([dict(row) for row in rows]) != manifest(rows[::-1])
    assert len(manifest([])) == 64
