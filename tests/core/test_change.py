"""What replies add up to: theta's weighted sum, and factors beside frozen weights, against dense float64."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cotune.core.change import Base, Tensors, origin
from cotune.core.seeds import torch_generator
from cotune.core.state import Theta, digest

SHAPES = {"tall": (9, 4), "wide": (3, 8), "square": (6, 6)}


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch_generator(seed))


def increment(seed: int, rank: int, modules: tuple[str, ...]) -> Base:
    return Base(
        {module: (draw(seed, SHAPES[module][0], rank), draw(seed + 1, rank, SHAPES[module][1])) for module in modules}
    )


def dense(rounds: list[Base], module: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Σ B A over the rounds that touch a module."""
    total = np.zeros(SHAPES[module])
    for base in rounds:
        if module in base.factors:
            b, a = (tensor.double().numpy() for tensor in base.factors[module])
            total += b @ a
    return total


ROUNDS = st.lists(
    st.tuples(st.integers(1, 4), st.sets(st.sampled_from(sorted(SHAPES)), min_size=1)), min_size=1, max_size=5
)


@given(ROUNDS)
def test_increments_add_up_to_the_dense_sum_of_their_products(plan: list[tuple[int, set[str]]]) -> None:
    rounds = [increment(10 * i, rank, tuple(sorted(modules))) for i, (rank, modules) in enumerate(plan)]
    total = Base()
    for base in rounds:
        total = total.plus(base)
    assert set(total) == {module for _, modules in plan for module in modules}
    for module in total:
        expected = dense(rounds, module)
        error = np.linalg.norm(total.delta(module).double().numpy() - expected)
        assert error <= 1e-5 * max(1.0, float(np.linalg.norm(expected)))


@given(ROUNDS)
def test_factors_are_kept_up_to_half_the_full_rank_and_one_dense_matrix_past_it(
    plan: list[tuple[int, set[str]]],
) -> None:
    total, ranks = Base(), dict.fromkeys(SHAPES, 0)
    for i, (rank, modules) in enumerate(plan):
        total = total.plus(increment(10 * i, rank, tuple(sorted(modules))))
        for module in modules:
            ranks[module] += rank
    for module, (b, a) in total.factors.items():
        d_out, d_in = SHAPES[module]
        if 2 * ranks[module] > min(d_out, d_in):
            assert (tuple(b.shape), tuple(a.shape)) == ((d_out, d_in), (0, d_in))
        else:
            assert (tuple(b.shape), tuple(a.shape)) == ((d_out, ranks[module]), (ranks[module], d_in))


def test_a_dense_increment_joins_factors_and_factors_join_it() -> None:
    thin, full = increment(1, 1, ("tall",)), Base({"tall": (draw(7, 9, 4), torch.empty(0, 4))})
    expected = thin.delta("tall").double() + full.delta("tall").double()
    for total in (thin.plus(full), full.plus(thin)):
        assert total.factors["tall"][1].numel() == 0
        torch.testing.assert_close(total.delta("tall").double(), expected, rtol=1e-6, atol=1e-6)
    twice = full.plus(full).delta("tall")
    assert torch.equal(twice, full.delta("tall") * 2)


def test_adding_leaves_both_terms_as_they_were() -> None:
    one, two = increment(1, 1, ("tall",)), increment(3, 1, ("tall",))
    before = digest(one.tensors()), digest(two.tensors())
    one.plus(two)
    assert (digest(one.tensors()), digest(two.tensors())) == before


@given(ROUNDS)
def test_a_base_is_the_same_after_being_named_tensors(plan: list[tuple[int, set[str]]]) -> None:
    base = Base()
    for i, (rank, modules) in enumerate(plan):
        base = base.plus(increment(10 * i, rank, tuple(sorted(modules))))
    again = Base.from_tensors(base.tensors())
    assert digest(again.tensors()) == digest(base.tensors())
    assert set(again) == set(base)


def test_module_names_may_contain_the_separator() -> None:
    base = Base({"a/b": (torch.ones(2, 1), torch.ones(1, 2)), "a": (torch.ones(3, 1), torch.ones(1, 3))})
    again = Base.from_tensors(base.tensors())
    assert digest(again.tensors()) == digest(base.tensors())


def test_nothing_added_is_false_and_has_no_tensors() -> None:
    assert not Base()
    assert Base().tensors() == {}
    assert not Base.from_tensors({})
    assert increment(1, 1, ("tall",))


WEIGHTS = st.integers(1, 2**28) | st.sampled_from([2**28 - 1, 2**28, 3, 10**8 + 7])
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(WEIGHTS, st.lists(FLOATS, min_size=1, max_size=8))
def test_weight_times_theta_is_exact_in_the_sum(weight: int, values: list[float]) -> None:
    theta = Theta({"w": torch.tensor(values)})
    total = {"w": torch.zeros(len(values), dtype=torch.float64)}
    Tensors(theta).add_to(total, float(weight))
    for value, got in zip(values, total["w"].tolist(), strict=True):
        assert Fraction(got) == weight * Fraction(value)


def test_a_float32_difference_would_not_reconstruct_theta() -> None:
    before, after = torch.tensor([1e8]), torch.tensor([0.3])
    assert not torch.equal(before + (after - before), after), "the control: differences lose bits"
    assert torch.equal(Tensors(Theta({"w": after})).dense()["w"], after)


def test_a_change_adds_only_the_names_it_carries_and_needs_no_replay() -> None:
    total = {name: torch.ones(2, dtype=torch.float64) for name in ("a", "b")}
    change = Tensors(Theta({"a": torch.full((2,), 3.0)}))
    change.add_to(total, 2.0)
    assert total["a"].tolist() == [7.0, 7.0]
    assert total["b"].tolist() == [1.0, 1.0]
    assert change.scalars() == {}


def test_the_origin_of_a_round_is_theta_and_what_is_added_to_the_backbone() -> None:
    theta, base = Theta({"w": torch.ones(2)}), Base({"m": (torch.ones(2, 1), torch.ones(1, 2))})
    other = Base({"m": (torch.ones(2, 1), torch.zeros(1, 2))})
    starts = [origin(theta, Base()), origin(theta, base), origin(theta, other), origin(Theta(), base)]
    starts += [origin(Theta({"w": torch.zeros(2)}), base), origin(Theta({"v": torch.ones(2)}), base)]
    assert all(one != two for one, two in itertools.combinations(starts, 2))
    assert origin(Theta({"w": torch.ones(2)}), Base.from_tensors(base.tensors())) == starts[1]
    assert all(len(start) == 64 for start in starts)


@pytest.mark.parametrize("name", ["theta/w", "base/m/A"])
def test_theta_cannot_pass_for_what_is_added_to_the_backbone(name: str) -> None:
    factors = {"m": (torch.ones(2, 1), torch.ones(1, 2))}
    assert origin(Theta({name: torch.ones(1)}), Base()) != origin(Theta(), Base(factors))
