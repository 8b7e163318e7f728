"""The table of trained tensors: what it derives, and that its digest sees all of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cotune.core.spec import Entry, Role, Spec
from cotune.core.state import Personal, Theta

A = Entry("m.A", (4, 6), Role.FACTOR_A, "m", scale=2.0)
B = Entry("m.B", (5, 4), Role.FACTOR_B, "m", scale=2.0)
HEAD = Entry("head", (3,), Role.HEAD, "head")
SPEC = Spec((A, B, HEAD))


OTHERS = (
    Spec((B, A, HEAD)),
    Spec((A, B)),
    Spec((replace(A, name="n.A"), B, HEAD)),
    Spec((replace(A, shape=(6, 4)), B, HEAD)),
    Spec((replace(A, role=Role.FULL), B, HEAD)),
    Spec((replace(A, module="n"), B, HEAD)),
    Spec((replace(A, block=1), B, HEAD)),
    Spec((replace(A, scale=2.5), B, HEAD)),
    Spec((replace(A, shared=False), B, HEAD)),
    Spec((replace(A, falls=0.5), B, HEAD)),
)


def test_the_digest_sees_every_field_and_the_order() -> None:
    digests = {spec.digest for spec in (SPEC, *OTHERS)}
    assert len(digests) == 1 + len(OTHERS)
    assert {len(digest) for digest in digests} == {16}


def test_equal_tables_have_equal_digests() -> None:
    assert Spec((replace(A), replace(B), replace(HEAD))).digest == SPEC.digest


def test_entries_are_found_by_name_and_count_their_numbers() -> None:
    assert SPEC["m.B"] is B
    assert "head" in SPEC
    assert "m.C" not in SPEC
    assert [entry.numel for entry in SPEC] == [24, 20, 3]
    assert Entry("x", (), Role.FULL, "").numel == 1
    assert Entry("x", (3, 0), Role.FULL, "").numel == 0


def test_sharing_says_what_travels() -> None:
    own = Spec((A, B, replace(HEAD, shared=False)))
    assert SPEC.sharing("all").shared == SPEC.names
    assert SPEC.sharing("none").shared == ()
    assert SPEC.sharing("none").personal == SPEC.names
    assert SPEC.sharing((Role.FACTOR_A,)).shared == ("m.A",)
    assert SPEC.sharing((Role.FACTOR_A, Role.HEAD)).shared == ("m.A", "head")
    assert own.sharing("all").shared == ("m.A", "m.B")
    assert own.sharing((Role.HEAD,)).shared == ()


def test_what_travels_and_what_stays_are_other_types() -> None:
    own = SPEC.sharing((Role.FACTOR_B,))
    theta, personal = own.divide({entry.name: torch.zeros(entry.shape) for entry in SPEC})
    assert (type(theta), list(theta)) == (Theta, ["m.B"])
    assert (type(personal), list(personal)) == (Personal, ["m.A", "head"])


@given(st.integers(1, 64))
def test_another_rank_keeps_alpha_and_everything_else(rank: int) -> None:
    spec = SPEC.ranked(rank)
    assert spec["m.A"].shape == (rank, 6)
    assert spec["m.B"].shape == (5, rank)
    assert spec["head"] == HEAD
    for name in ("m.A", "m.B"):
        assert spec[name].scale * rank == pytest.approx(2.0 * 4)
    assert spec.names == SPEC.names
    assert (spec.digest == SPEC.digest) == (rank == 4)


@given(st.integers(1, 64))
def test_a_scale_over_the_root_of_the_rank_falls_with_the_root(rank: int) -> None:
    spec = Spec((replace(A, falls=0.5), replace(B, falls=0.5), HEAD)).ranked(rank)
    for name in ("m.A", "m.B"):
        assert spec[name].scale * rank**0.5 == pytest.approx(2.0 * 4**0.5)


def test_pairs_are_the_factors_of_a_module_in_the_order_of_their_product() -> None:
    assert SPEC.pairs == {"m": (B, A)}
    assert Spec((HEAD,)).pairs == {}
