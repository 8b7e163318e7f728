"""What is written as TOML reads back as what it was."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.cli import toml

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
scalars = texts | st.booleans() | numbers
arrays = st.lists(scalars, max_size=3) | st.lists(st.lists(numbers, max_size=2), max_size=2)
tables = st.recursive(
    st.dictionaries(texts, scalars | arrays, max_size=4),
    lambda inner: st.dictionaries(texts, scalars | inner | st.lists(inner, min_size=1, max_size=3), max_size=4),
    max_leaves=12,
)


@given(tables)
def test_a_table_reads_back_as_itself(table: dict[str, Any]) -> None:
    assert tomllib.loads(toml.dump(table)) == table


def test_none_is_left_out() -> None:
    assert toml.dump({"a": None, "b": {"c": None, "d": 1}}) == "[b]\nd = 1\n"


def test_a_mixed_array_has_its_tables_inline() -> None:
    assert tomllib.loads(toml.dump({"a": [1, {"b": None, "c d": True}]})) == {"a": [1, {"c d": True}]}


def test_a_value_that_toml_lacks_is_our_own_bug() -> None:
    with pytest.raises(TypeError):
        toml.dump({"a": object()})
