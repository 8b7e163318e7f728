"""Derived randomness: coordinates never meet, purposes do not disturb each other, and nothing global is drawn from."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from cotune.core.seeds import Purpose, Seeds, derive, numpy_generator, torch_generator

PATHS = st.lists(st.integers(-2, 2) | st.text("a/:intsr1", max_size=6), max_size=4)


def test_a_derived_seed_is_the_same_on_every_machine() -> None:
    assert derive(0) == 4766721411179326420
    assert derive(7, "batches", 3, "client-1") == 3278551786660579949
    assert derive(2**63 - 1, -1, "größe/\ud800") == 7103053065546614349


def test_purposes_rounds_and_clients_never_collide() -> None:
    seeds = Seeds(seed=5)
    drawn = {
        seeds.of(purpose, round_, f"client-{client}", *step)
        for purpose in Purpose
        for round_ in range(20)
        for client in range(20)
        for step in ((), (0,), (1,))
    }
    assert len(drawn) == 5 * 20 * 20 * 3
    assert all(0 <= seed < 2**63 for seed in drawn)


@pytest.mark.parametrize(
    ("one", "two"),
    [((1,), ("1",)), (("a", "b"), ("a/b",)), (("a", "b"), ("a/str:b",)), (("a", 1), ("a/int:1",)), ((), ("",))],
)
def test_a_client_cannot_be_named_into_the_seed_of_another(one: Sequence[int | str], two: Sequence[int | str]) -> None:
    assert derive(3, *one) != derive(3, *two)


@given(PATHS, PATHS, st.integers(0, 2), st.integers(0, 2))
def test_different_seeds_or_coordinates_derive_different_seeds(
    one: list[int | str], two: list[int | str], first: int, second: int
) -> None:
    assume((first, one) != (second, two))
    assert derive(first, *one) != derive(second, *two)


@pytest.mark.parametrize("changed", list(Purpose))
def test_changing_one_purpose_changes_no_other(changed: Purpose) -> None:
    before, after = Seeds(seed=1), Seeds.model_validate({"seed": 1, changed.value: 2})
    for purpose in Purpose:
        assert (before.of(purpose, 4, "c") == after.of(purpose, 4, "c")) == (purpose is not changed)


@pytest.mark.parametrize("purpose", list(Purpose))
def test_a_purpose_that_is_not_given_follows_the_seed(purpose: Purpose) -> None:
    assert Seeds(seed=3).of(purpose) == Seeds.model_validate({"seed": 9, purpose.value: 3}).of(purpose)
    assert Seeds.model_validate({"seed": 9, purpose.value: 0}).of(purpose) == Seeds(seed=0).of(purpose)


def test_resolved_seeds_draw_the_same_with_every_purpose_written_out() -> None:
    seeds = Seeds(seed=4, data=0, batches=2)
    full = seeds.resolved()
    assert full.model_dump() == {"seed": 4, "data": 0, "init": 4, "sampling": 4, "batches": 2, "directions": 4}
    assert [full.of(purpose, 1) for purpose in Purpose] == [seeds.of(purpose, 1) for purpose in Purpose]


@pytest.mark.parametrize("value", [-1, 2**63, 1.5, "x"])
def test_what_is_no_63_bit_count_is_no_seed(value: object) -> None:
    with pytest.raises(ValidationError):
        Seeds.model_validate({"seed": value})


def test_seeds_do_not_depend_on_the_process_or_its_hash_seed() -> None:
    code = (
        "from cotune.core.seeds import *; s = Seeds(seed=11)\n"
        "print(hash('client'), [s.of(p, 2, 'client') for p in Purpose], numpy_generator(5).permutation(9).tolist())"
    )
    said = []
    for hash_seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        said.append(run.stdout.strip().split(" ", 1))
    assert said[0][0] != said[1][0], "the control: Python's own hash differs"
    seeds = Seeds(seed=11)
    ours = [seeds.of(purpose, 2, "client") for purpose in Purpose], numpy_generator(5).permutation(9).tolist()
    assert said[0][1] == said[1][1] == f"{ours[0]} {ours[1]}"


def global_states() -> tuple[object, ...]:
    _, key, *rest = np.random.get_state()  # noqa: NPY002
    words = np.asarray(key).tolist()
    return torch.get_rng_state().tolist(), words, rest, random.getstate()


def test_generators_start_at_their_seed_and_leave_the_global_ones_alone() -> None:
    before = global_states()
    first = torch.randn(4, generator=torch_generator(8)), numpy_generator(8).random(4)
    second = torch.randn(4, generator=torch_generator(8)), numpy_generator(8).random(4)
    Seeds().of(Purpose.DATA, 1)
    assert torch.equal(first[0], second[0])
    assert first[1].tolist() == second[1].tolist()
    assert first[1].tolist() != numpy_generator(9).random(4).tolist()
    assert global_states() == before
    torch.rand(1)
    assert global_states() != before, "the control: a draw shows"
