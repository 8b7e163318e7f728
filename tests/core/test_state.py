"""Named tensors are values with a digest, and session memory stays where it is."""

from __future__ import annotations

import copy
import io
import json
import pickle
from collections.abc import Callable, Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cotune.core.errors import Code, CotuneError
from cotune.core.state import Named, Personal, Private, Session, Theta, apart, digest, raw

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.bool]
# Names out of few characters meet; `|` is what the digest separates fields by.
NAMES = st.text("a|(),", max_size=4) | st.sampled_from(["a|torch.float32|(0,)|b", "a|torch.float32|(1,)|"])


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.sampled_from([(), (0,), (1,), (2,), (1, 2), (2, 1), (0, 2)]))
    values = draw(st.lists(st.integers(0, 1), min_size=2, max_size=2))
    count = torch.empty(shape).numel()
    return torch.tensor(values[:count], dtype=draw(st.sampled_from(DTYPES))).reshape(shape)


def content(named: Mapping[str, Tensor]) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    """All that a digest should depend on, as plain values."""
    rows = []
    for name in sorted(named):
        tensor = named[name]
        wide = tensor.double() if tensor.is_floating_point() else tensor.long()
        rows.append((name, str(tensor.dtype), tuple(tensor.shape), bytes(str(wide.tolist()), "ascii")))
    return rows


@given(st.dictionaries(NAMES, tensors(), max_size=3), st.dictionaries(NAMES, tensors(), max_size=3))
def test_digests_are_equal_exactly_when_names_dtypes_shapes_and_values_are(
    one: dict[str, Tensor], two: dict[str, Tensor]
) -> None:
    assert (digest(one) == digest(two)) == (content(one) == content(two))


def test_where_a_name_ends_is_never_in_doubt() -> None:
    number = torch.ones(1)
    two = {"a": torch.empty(0), "b": number}
    assert digest(two) != digest({"a|torch.float32|(0,)|b": number})


@pytest.mark.parametrize(
    "other",
    [
        {"b": torch.ones(2)},
        {"a": torch.ones(2, dtype=torch.float64)},
        {"a": torch.ones(2, 1)},
        {"a": torch.ones(1)},
        {"a": torch.tensor([1.0, -1.0])},
        {"a": torch.tensor([1.0, 1.0 + 2**-23])},
        {"a": torch.ones(2), "b": torch.empty(0)},
        {},
    ],
)
def test_a_digest_sees_every_difference(other: dict[str, Tensor]) -> None:
    assert digest(other) != digest({"a": torch.ones(2)})


def test_a_digest_tells_zero_from_negative_zero() -> None:
    assert digest({"a": torch.tensor(0.0)}) != digest({"a": torch.tensor(-0.0)})


@given(st.permutations([(name, torch.full((2,), float(i))) for i, name in enumerate("abcd")]))
def test_a_digest_does_not_see_the_order(pairs: list[tuple[str, Tensor]]) -> None:
    assert Theta(pairs).sha256() == digest(dict(sorted(pairs)))


def test_a_digest_reads_values_not_memory() -> None:
    table = torch.arange(6.0).reshape(2, 3)
    assert digest({"a": table.T}) == digest({"a": table.T.contiguous()})
    assert digest({"a": table.T}) != digest({"a": table.reshape(3, 2)})


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int16, torch.int32, torch.uint8])
def test_the_bytes_of_a_tensor_give_it_back(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(dtype).T
    data = raw(tensor)
    assert len(data) == tensor.numel() * tensor.element_size()
    again = torch.frombuffer(bytearray(data), dtype=dtype).reshape(tensor.shape)
    assert torch.equal(again, tensor)
    assert raw(torch.empty(0, dtype=dtype)) == b""


def test_named_tensors_are_an_immutable_value() -> None:
    made_from = {"a": torch.zeros(2)}
    theta = Theta(made_from)
    made_from["b"] = torch.ones(1)
    assert list(theta) == ["a"]
    with pytest.raises(TypeError):
        theta["a"] = torch.ones(2)  # type: ignore[index]
    with pytest.raises(TypeError):
        del theta["a"]  # type: ignore[attr-defined]


def test_replacing_makes_another_value_of_the_same_type_and_order() -> None:
    old = Personal({"b": torch.zeros(1), "a": torch.zeros(2)})
    new = old.replace({"a": torch.ones(2)})
    assert type(new) is Personal
    assert list(new) == ["b", "a"]
    assert (float(old["a"].sum()), float(new["a"].sum())) == (0.0, 2.0)
    assert new["b"] is old["b"]
    with pytest.raises(KeyError, match="no tensor named c"):
        old.replace({"c": torch.ones(1)})


def test_a_selection_has_the_names_in_the_order_asked_for() -> None:
    theta = Theta({name: torch.zeros(1) for name in "abc"})
    assert list(theta.select(("c", "a"))) == ["c", "a"]
    with pytest.raises(KeyError):
        theta.select(("d",))


@pytest.mark.parametrize("kind", [Theta, Personal, Private])
def test_the_text_of_named_tensors_counts_and_shows_no_value(kind: type[Named]) -> None:
    assert repr(kind({"a": torch.full((2, 3), 0.777)})) == f"{kind.__name__}(1 tensors, 6 numbers)"


def test_tensors_apart_are_equal_and_share_no_memory() -> None:
    table = torch.arange(6.0, requires_grad=True)
    named = {"whole": table, "same": table, "part": table[2:4], "turned": table.reshape(2, 3).T, "none": table[:0]}
    packed = apart(named)
    assert list(packed) == list(named)
    for name, tensor in packed.items():
        assert torch.equal(tensor, named[name].detach())
        assert tensor.is_contiguous()
        assert not tensor.requires_grad
    memory = [tensor.untyped_storage().data_ptr() for tensor in packed.values() if tensor.numel()]
    assert len(set(memory)) == len(memory)


class Memory(Session):
    """A session that holds a number nobody may see."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = torch.full((2,), 0.7734375)


class Plain:
    """The same without the promise."""

    def __init__(self) -> None:
        self.state = torch.full((2,), 0.7734375)


COPIES: list[Callable[[object], object]] = [
    *(lambda value, protocol=protocol: pickle.dumps(value, protocol) for protocol in range(6)),
    lambda value: pickle.dumps({"deep": [value]}),
    lambda value: torch.save({"deep": value}, io.BytesIO()),
    copy.copy,
    copy.deepcopy,
    lambda value: copy.deepcopy([value]),
]


@pytest.mark.parametrize("way", COPIES)
def test_session_memory_is_neither_pickled_nor_copied(way: Callable[[object], object]) -> None:
    way(Plain())
    with pytest.raises(CotuneError, match="never leaves its process") as caught:
        way(Memory())
    assert caught.value.code is Code.CONFLICT


def test_session_memory_is_no_json() -> None:
    with pytest.raises(TypeError):
        json.dumps(Memory())


def test_the_text_of_session_memory_shows_no_value() -> None:
    memory = Memory()
    assert repr(memory) == str(memory) == f"{memory}" == "<Memory>"
