"""The weighted mean against dense float64: exact for one client, and the same bits whatever came first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cotune.aggregate import Mean
from cotune.core.change import Contribution, Server, Tensors
from cotune.core.inbox import Inbox
from cotune.core.seeds import torch_generator
from cotune.core.spec import Entry, Role, Spec
from cotune.core.state import Theta
from cotune.federation import Federation, Weighting

SPEC = Spec((Entry("a", (2, 3), Role.FULL, "m"), Entry("b", (4,), Role.FULL, "m")))
START = Theta({entry.name: torch.full(entry.shape, 0.3) for entry in SPEC})


def contribution(client: str, weight: float, tensors: dict[str, Tensor]) -> Contribution:
    return Contribution(client, weight, Tensors(Theta(tensors)), SPEC)


def mean(contributions: Sequence[Contribution], up: tuple[str, ...] = SPEC.names, start: Theta = START) -> Theta:
    fold = Mean().init(start, Server(1, 9, SPEC, up))
    for one in contributions:
        fold = Mean().add(fold, one)
    return Mean().finish(fold).theta


def draw(seed: int) -> dict[str, Tensor]:
    generator = torch_generator(seed)
    return {entry.name: torch.randn(entry.shape, generator=generator) for entry in SPEC}


WEIGHTS = st.integers(1, 2**28) | st.sampled_from([2**28, 2**28 - 1, 3, 7, 10**8 + 7])
# Every float32 that a client may send: subnormals, the largest, and both zeros among them.
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0, 2.0**-149, 3.4e38])


@given(WEIGHTS, st.lists(FLOATS, min_size=4, max_size=4))
def test_one_client_is_the_identity_bit_for_bit_for_any_weight(weight: int, values: list[float]) -> None:
    sent = {"a": torch.tensor(values + values[:2]).reshape(2, 3), "b": torch.tensor(values)}
    assert mean([contribution("ada", float(weight), sent)]).sha256() == Theta(sent).sha256()


def test_the_control_float32_sums_are_not_the_identity() -> None:
    values = torch.randn(1000, generator=torch_generator(1))
    assert not torch.equal(values * 7.0 / 7.0, values)
    assert torch.equal((values.double() * 7.0 / 7.0).float(), values)


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 99)), min_size=1, max_size=6))
def test_the_mean_is_the_dense_weighted_mean_rounded_once(plan: list[tuple[int, int]]) -> None:
    got = mean([contribution(f"{i}", float(weight), draw(seed)) for i, (weight, seed) in enumerate(plan)])
    for name in SPEC.names:
        rows = np.stack([draw(seed)[name].double().numpy() for _, seed in plan])
        expected = np.average(rows, axis=0, weights=[weight for weight, _ in plan])
        np.testing.assert_allclose(got[name].numpy(), expected, rtol=1e-7, atol=1e-12)
        assert got[name].dtype is torch.float32


# Sums of these depend on their order, in float64 too: 1e30 + 1 − 1e30 is 0 or 1.
CLIENTS = {"ada": 1e30, "bo": 1.0, "cy": -1e30, "dan": 0.5}


def steep(client: str) -> dict[str, Tensor]:
    return {entry.name: torch.full(entry.shape, CLIENTS[client]) for entry in SPEC}


@pytest.mark.parametrize("order", list(permutations(CLIENTS)))
def test_replies_in_any_order_give_the_same_bits_because_they_are_folded_in_one(order: tuple[str, ...]) -> None:
    taken: list[Contribution] = []
    inbox = Inbox(sorted(CLIENTS), lambda client, _: taken.append(contribution(client, 3.0, steep(client))), None)
    for client in order:
        inbox.put(client, b"")
    expected = mean([contribution(client, 3.0, steep(client)) for client in sorted(CLIENTS)])
    assert mean(taken).sha256() == expected.sha256()


def test_the_control_folded_as_they_come_the_same_replies_give_other_bits() -> None:
    found = {
        mean([contribution(client, 3.0, steep(client)) for client in order]).sha256() for order in permutations(CLIENTS)
    }
    assert len(found) > 1


@pytest.mark.parametrize(("weighting", "expected"), [(Weighting.EXAMPLES, 0.99), (Weighting.UNIFORM, 0.5)])
def test_ten_rows_against_990_count_one_in_a_hundred_unless_all_count_alike(
    weighting: Weighting, expected: float
) -> None:
    federation = Federation(weighting=weighting)
    replies = [
        contribution(client, federation.weight(rows), {n: torch.full_like(t, value) for n, t in START.items()})
        for client, rows, value in (("ada", 10, 0.0), ("bo", 990, 1.0))
    ]
    for tensor in mean(replies).values():
        assert torch.equal(tensor, torch.full_like(tensor, expected))


def test_names_that_do_not_go_up_stay() -> None:
    got = mean([contribution("ada", 2.0, {"b": draw(1)["b"]})], up=("b",))
    assert got["a"] is START["a"]
    assert torch.equal(got["b"], draw(1)["b"])
    assert list(got) == list(START)


def test_the_fold_does_not_grow_with_its_clients_and_leaves_replies_as_they_were() -> None:
    fold = Mean().init(START, Server(1, 9, SPEC, SPEC.names))
    sent = Theta(draw(1))
    before = sent.sha256()
    for _ in range(50):
        fold = Mean().add(fold, Contribution("ada", 2.0, Tensors(sent), SPEC))
    assert sum(tensor.numel() for tensor in fold.total.values()) == 10
    assert fold.weight == 100.0
    assert sent.sha256() == before
    assert Mean().finish(fold).theta.sha256() == before


def test_a_mean_commits_theta_alone() -> None:
    fold = Mean().add(Mean().init(START, Server(1, 9, SPEC, SPEC.names)), contribution("ada", 1.0, draw(1)))
    commit = Mean().finish(fold)
    assert (commit.server, commit.aux, bool(commit.base)) == ({}, {}, False)
