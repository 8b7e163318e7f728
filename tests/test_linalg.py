"""Low-rank algebra against dense float64 matrices: in value, in gradient, and where float32 would cancel."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from cotune import linalg
from cotune.core.errors import Code, CotuneError
from cotune.core.seeds import torch_generator
from cotune.linalg import Factors, Split

SPLITS: tuple[Split, ...] = ("balanced", "orthonormal-a", "orthonormal-b")
SIDES = st.integers(1, 9)


def pair(d_out: int, d_in: int, rank: int, seed: int, dtype: torch.dtype = torch.float64) -> Factors:
    generator = torch_generator(seed)
    b = torch.randn(d_out, rank, generator=generator, dtype=torch.float64).to(dtype)
    return b, torch.randn(rank, d_in, generator=generator, dtype=torch.float64).to(dtype)


def dense(factors: Factors) -> Tensor:
    return factors[0].double() @ factors[1].double()


def total(pairs: list[Factors], weights: list[float]) -> Tensor:
    return torch.stack([weight * dense(one) for weight, one in zip(weights, pairs, strict=True)]).sum(0)


def best(matrix: Tensor, rank: int) -> Tensor:
    u, sigma, v = torch.linalg.svd(matrix, full_matrices=False)
    found: Tensor = u[:, :rank] * sigma[:rank] @ v[:rank]
    return found


def gap(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes how many numbers the largest tensor has that anything computes."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [one for one in (out if isinstance(out, tuple | list) else [out]) if isinstance(one, Tensor)]
        self.numbers = max([self.numbers, *(one.numel() for one in tensors)])
        return out


# Distances.


@given(SIDES, SIDES, SIDES, SIDES, st.integers(0, 99))
def test_the_distance_is_the_dense_one_in_value_and_gradient_for_any_two_ranks(
    d_out: int, d_in: int, rank: int, other: int, seed: int
) -> None:
    left, right = pair(d_out, d_in, rank, seed), pair(d_out, d_in, other, seed + 100)
    leaves = [tensor.requires_grad_() for tensor in (*left, *right)]
    expected = (left[0] @ left[1] - right[0] @ right[1]).square().sum()
    got = linalg.squared_distance(left, right)
    assert got.shape == ()
    torch.testing.assert_close(got, expected)
    for ours, theirs in zip(
        torch.autograd.grad(got, leaves, retain_graph=True), torch.autograd.grad(expected, leaves), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def three_traces(left: Factors, right: Factors) -> Tensor:
    def trace(one: Factors, two: Factors) -> Tensor:
        return ((one[0].mT @ two[0]) * (one[1] @ two[1].mT)).sum()

    return trace(left, left) - 2 * trace(left, right) + trace(right, right)


def apart(distance: Callable[[Factors, Factors], Tensor], size: float) -> float:
    """The relative error in float32 of a distance between pairs that differ by `size`."""
    server, step = pair(64, 48, 4, 0, torch.float32), pair(64, 48, 4, 1, torch.float32)
    client = server[0] + size * step[0], server[1] + size * step[1]
    exact = (dense(client) - dense(server)).square().sum()
    return abs(float(distance(client, server).double() / exact) - 1)


@pytest.mark.parametrize("size", [1.0, 1e-2, 1e-4, 1e-6])
def test_float32_keeps_its_digits_however_near_the_pairs_are(size: float) -> None:
    assert apart(linalg.squared_distance, size) < 1e-5


def test_the_control_expanding_the_square_loses_them() -> None:
    assert apart(three_traces, 1e-4) > 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_pairs_are_exactly_at_0_and_pull_nowhere(dtype: torch.dtype) -> None:
    reference = pair(7, 5, 3, 1, dtype)
    leaves = [tensor.clone().requires_grad_() for tensor in reference]
    value = linalg.squared_distance((leaves[0], leaves[1]), reference)
    assert float(value.detach()) == 0.0
    assert not any(bool(slope.any()) for slope in torch.autograd.grad(value, leaves))


def test_its_gradient_is_that_of_finite_differences_alone_and_under_functional_transforms() -> None:
    inputs = [tensor.requires_grad_() for tensor in (*pair(4, 5, 2, 1), *pair(4, 5, 3, 2))]

    def value(b: Tensor, a: Tensor, b_ref: Tensor, a_ref: Tensor) -> Tensor:
        return linalg.squared_distance((b, a), (b_ref, a_ref))

    assert torch.autograd.gradcheck(value, inputs)
    expected = torch.autograd.grad(value(*inputs), inputs)
    torch.testing.assert_close(torch.func.grad(value, argnums=(0, 1, 2, 3))(*inputs), expected)


def test_clients_as_a_leading_axis_give_what_one_after_another_give() -> None:
    reference, clients = pair(7, 5, 3, 1), [pair(7, 5, 3, seed) for seed in (2, 3)]
    b, a = torch.stack([one[0] for one in clients]), torch.stack([one[1] for one in clients])
    together = torch.func.vmap(lambda b, a: linalg.squared_distance((b, a), reference))(b, a)
    torch.testing.assert_close(together, torch.stack([linalg.squared_distance(one, reference) for one in clients]))


# Gram matrices.


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(0, 99))
def test_the_gram_matrix_holds_the_dense_inner_products_for_mixed_ranks(ranks: list[int], seed: int) -> None:
    pairs = [pair(6, 8, rank, seed + i) for i, rank in enumerate(ranks)]
    flat = torch.stack([dense(one).reshape(-1) for one in pairs])
    torch.testing.assert_close(linalg.gram(pairs), flat @ flat.mT)
    weights = [float(i) - 1.5 for i in range(len(pairs))]
    assert linalg.weighted_norm(pairs, weights) == pytest.approx(float(total(pairs, weights).norm()), rel=1e-9)


def test_inner_products_norms_and_cosines_are_the_dense_ones_in_float64_whatever_comes_in() -> None:
    left, right = pair(6, 8, 3, 1, torch.float32), pair(6, 8, 2, 2, torch.float32)
    inner = (dense(left) * dense(right)).sum()
    torch.testing.assert_close(linalg.inner(left, right), inner)
    torch.testing.assert_close(linalg.norm(left), dense(left).norm())
    torch.testing.assert_close(linalg.cosine(left, right), inner / dense(left).norm() / dense(right).norm())
    assert float(linalg.cosine(left, left)) == pytest.approx(1, abs=1e-12)
    assert float(linalg.cosine(left, (0 * right[0], right[1]))) == 0.0


# Truncated sums.


@given(SIDES, SIDES, st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 6), st.integers(0, 99))
def test_a_truncated_sum_is_the_best_of_its_rank_in_every_split(
    d_out: int, d_in: int, ranks: list[int], rank: int, seed: int
) -> None:
    pairs = [pair(d_out, d_in, own, seed + i) for i, own in enumerate(ranks)]
    weights = [0.5 + i for i in range(len(pairs))]
    expected = best(total(pairs, weights), rank)
    for split in SPLITS:
        b, a = linalg.truncate(pairs, weights, rank, split)
        assert (b.shape, a.shape) == ((d_out, rank), (rank, d_in))
        torch.testing.assert_close(b @ a, expected)


def test_each_split_puts_the_singular_values_where_it_says() -> None:
    pairs, weights = [pair(9, 7, 2, seed) for seed in range(3)], [0.2, 0.3, 0.5]
    sigma = torch.linalg.svdvals(total(pairs, weights))[:4]
    eye = torch.eye(4, dtype=torch.float64)
    grams = {split: linalg.truncate(pairs, weights, 4, split) for split in SPLITS}
    expected = {"balanced": (sigma.diag(), sigma.diag()), "orthonormal-a": (sigma.square().diag(), eye)}
    expected["orthonormal-b"] = (eye, sigma.square().diag())
    for split, (b, a) in grams.items():
        torch.testing.assert_close(b.mT @ b, expected[split][0])
        torch.testing.assert_close(a @ a.mT, expected[split][1])


@pytest.mark.parametrize("weights", [[1.0, -1.0], [0.5, 0.5]])
def test_two_adapters_mix_as_their_products_do_where_mixing_factors_is_as_wrong_as_the_truth_is_large(
    weights: list[float],
) -> None:  # peft pull 3013
    pairs = [pair(20, 16, 3, seed, torch.float32) for seed in (1, 2)]
    truth = total(pairs, weights)
    assert gap(dense(linalg.truncate(pairs, weights, 6)), truth) < 1e-6
    mixed = [sum(w * one[side] for w, one in zip(weights, pairs, strict=True)) for side in (0, 1)]
    assert gap(torch.as_tensor(mixed[0]).double() @ torch.as_tensor(mixed[1]).double(), truth) > 0.5


@pytest.mark.parametrize("split", SPLITS)
def test_directions_that_a_sum_does_not_have_add_nothing_and_can_still_train(split: Split) -> None:
    one = pair(9, 7, 2, 1, torch.float32)
    for pairs in ([one], [(0 * one[0], one[1])]):
        b, a = linalg.truncate(pairs, [1.0], 5, split)
        assert (b.double() @ a.double() - dense(pairs[0])).norm() <= 1e-6 * dense(one).norm()
        assert bool(((b.norm(dim=0) > 0.1) | (a.norm(dim=1) > 0.1)).all()), "a direction with both factors 0 is dead"
    b, a = linalg.truncate([one], [1.0], 5, split)
    unit = {"orthonormal-a": a @ a.mT, "orthonormal-b": b.mT @ b, "balanced": torch.eye(5)}[split]
    torch.testing.assert_close(unit, torch.eye(5), atol=1e-6, rtol=0)


def test_a_rank_beyond_the_sides_of_a_layer_is_filled_with_zeros() -> None:
    one = pair(3, 2, 2, 1)
    for split in SPLITS:
        b, a = linalg.truncate([one], [1.0], 6, split)
        assert (b.shape, a.shape) == ((3, 6), (6, 2))
        torch.testing.assert_close(b @ a, dense(one))


def test_a_cap_shortens_and_restoring_makes_up_for_the_tail_in_both_factors_alike() -> None:
    pairs, weights = [pair(9, 7, 2, seed) for seed in range(3)], [0.2, 0.3, 0.5]
    whole = total(pairs, weights)
    plain = linalg.truncate(pairs, weights, 2, "orthonormal-b")
    lost = math.sqrt(float(whole.norm() / dense(plain).norm()))
    assert lost > 1.01
    b, a = linalg.truncate(pairs, weights, 2, "orthonormal-b", restore=True)
    torch.testing.assert_close((b, a), (lost * plain[0], lost * plain[1]))
    torch.testing.assert_close(dense((b, a)).norm(), whole.norm())
    capped = linalg.truncate(pairs, weights, 2, "orthonormal-b", restore=True, cap=0.5)
    torch.testing.assert_close(dense(capped).norm(), torch.tensor(0.5, dtype=torch.float64))
    torch.testing.assert_close(
        dense(capped) / dense(plain), torch.full((9, 7), 0.5, dtype=torch.float64) / dense(plain).norm()
    )
    far = linalg.truncate(pairs, weights, 2, "orthonormal-b", cap=1e9)
    torch.testing.assert_close(far, plain, rtol=0, atol=0)


# Many clients: iterating on the factors.


def many(kind: str, clients: int = 40, side: int = 64) -> list[Factors]:
    base = pair(side, side, 4, 1)
    size = {"independent": 0.0, "drift": 1.0, "alike": 1.0}[kind]
    noise = {"independent": 1.0, "drift": 0.5, "alike": 0.0}[kind]
    steps = [pair(side, side, 4, 10 + i) for i in range(clients)]
    return [(size * base[0] + noise * b, size * base[1] + noise * a) for b, a in steps]


@pytest.mark.parametrize("kind", ["independent", "drift", "alike"])
@pytest.mark.parametrize("warm", [False, True])
def test_beyond_the_exact_core_the_error_is_the_best_to_1_percent(kind: str, warm: bool) -> None:
    pairs, weights = many(kind), [1 / 40] * 40
    assert sum(a.shape[0] for _, a in pairs) > linalg.STACKED
    whole = total(pairs, weights)
    least = (whole - best(whole, 4)).norm()
    start = linalg.truncate(many(kind), [0.9, *weights[1:]], 4)[1].mT if warm else None
    found = dense(linalg.truncate(pairs, weights, 4, start=start))
    assert (whole - found).norm() <= 1.01 * least + 1e-9 * whole.norm()


@pytest.mark.parametrize("clients", [3, 60])
def test_nothing_as_large_as_the_product_is_ever_made(clients: int) -> None:
    pairs = [pair(700, 900, 2, seed, torch.float32) for seed in range(clients)]
    with Largest() as seen:  # type: ignore[no-untyped-call]
        linalg.truncate(pairs, [1 / clients] * clients, 2, restore=True, cap=1.0)
        linalg.sketched(pairs, [1 / clients] * clients, 2)
        linalg.gram(pairs)
        linalg.squared_distance(pairs[0], pairs[1])
    assert 0 < seen.numbers < 700 * 900 / 4


def test_the_same_factors_give_the_same_bits_whoever_drew_before() -> None:
    pairs, weights = many("drift"), [1 / 40] * 40
    first = linalg.truncate(pairs, weights, 4)
    torch.rand(3)
    torch.testing.assert_close(linalg.truncate(pairs, weights, 4), first, rtol=0, atol=0)


# The summable form.


@pytest.mark.parametrize("kind", ["drift", "alike"])
def test_the_sketch_from_last_rounds_basis_is_the_best_to_1_percent(kind: str) -> None:
    pairs, weights = many(kind), [1 / 40] * 40
    whole = total(pairs, weights)
    start = linalg.truncate(many(kind), [0.9, *weights[1:]], 4)[1].mT
    for split in SPLITS:
        found = dense(linalg.sketched(pairs, weights, 4, split, start=start))
        assert (whole - found).norm() <= 1.01 * (whole - best(whole, 4)).norm() + 1e-9 * whole.norm()


def test_a_sum_whose_rank_the_sketch_spans_comes_back_exactly() -> None:
    pairs, weights = [pair(30, 20, 3, seed) for seed in range(3)], [0.2, 0.3, 0.5]
    assert gap(dense(linalg.sketched(pairs, weights, 9)), total(pairs, weights)) < 1e-9


def test_both_sums_of_the_sketch_are_plain_sums_over_clients_of_no_more_than_a_rank_of_numbers() -> None:
    pairs, weights = [pair(30, 20, 3, seed) for seed in range(3)], [0.2, 0.3, 0.5]
    whole, omega = total(pairs, weights), linalg.probe(20, 4)
    y = torch.stack([w * linalg.range_term(one, omega) for w, one in zip(weights, pairs, strict=True)]).sum(0)
    torch.testing.assert_close(y, whole @ omega)
    q = linalg.range_basis(y)
    z = torch.stack([w * linalg.core_term(one, q) for w, one in zip(weights, pairs, strict=True)]).sum(0)
    torch.testing.assert_close(z, whole.mT @ q)
    assert (y.shape, z.shape) == ((30, 4 + linalg.OVERSAMPLE), (20, 4 + linalg.OVERSAMPLE))
    u, sigma, v = linalg.spectrum(q, z, 4)
    torch.testing.assert_close(linalg.factors_of(u, sigma, v, "balanced"), linalg.sketched(pairs, weights, 4))


# Rotations.


def rotation(rank: int, seed: int) -> Tensor:
    q: Tensor = torch.linalg.qr(pair(rank, rank, rank, seed)[0]).Q
    return q


@given(st.integers(1, 5), st.integers(0, 99))
def test_the_rotation_that_was_applied_is_found_and_undone(rank: int, seed: int) -> None:
    reference, turned = pair(9, 9, rank, seed)[0], rotation(rank, seed + 1)
    found = linalg.procrustes(reference @ turned, reference)
    torch.testing.assert_close(found, turned.mT, atol=1e-6, rtol=0)


def test_no_other_rotation_comes_nearer() -> None:
    moving, reference = pair(9, 9, 3, 1)[0], pair(9, 9, 3, 2)[0]
    nearest = (moving @ linalg.procrustes(moving, reference) - reference).norm()
    assert all((moving @ rotation(3, seed) - reference).norm() >= nearest for seed in range(50))


def test_a_smaller_rank_is_rotated_into_the_larger_and_a_reference_of_0_turns_nothing() -> None:
    small, large = pair(9, 9, 2, 1)[0], pair(9, 9, 4, 2)[0]
    found = linalg.procrustes(small, large)
    assert found.shape == (2, 4)
    torch.testing.assert_close(found @ found.mT, torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(linalg.procrustes(small, 0 * small), torch.eye(2, dtype=torch.float64))


def test_factors_that_do_not_go_together_and_splits_that_do_not_exist_are_refused() -> None:
    with pytest.raises(CotuneError) as caught:
        linalg.truncate([pair(4, 5, 2, 1), pair(5, 4, 2, 1)], [0.5, 0.5], 2)
    assert caught.value.code is Code.SHAPE
    with pytest.raises(CotuneError) as caught:
        linalg.truncate([pair(4, 5, 2, 1)], [1.0], 2, "half")  # type: ignore[arg-type]
    assert caught.value.code is Code.CONFIG
