"""Numbers about low-rank pairs against dense products in float64, and as a real round records them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cotune.core.change import Base
from cotune.core.record import LayerSubspace
from cotune.core.spec import Entry, Role, Spec
from cotune.core.state import Theta
from cotune.diagnose import subspace
from cotune.diagnose.subspace import Found, Subspace

SPEC = Spec(
    (
        Entry("a1", (3, 9), Role.FACTOR_A, "wide", scale=2.0),
        Entry("b1", (12, 3), Role.FACTOR_B, "wide", scale=2.0),
        Entry("a2", (3, 7), Role.FACTOR_A, "low", scale=2.0),
        Entry("b2", (7, 3), Role.FACTOR_B, "low", scale=2.0),
        Entry("w", (2, 3), Role.HEAD, "w"),
    )
)
WEIGHTS = [3.0, 1.0, 5.0, 2.0]
FLOORED = ("basis_overlap", "basis_overlap_squared", "client_global_cosine", "cancellation", "cancellation_increments")
PLAIN = ("pairwise_cosine", "aggregation_gap", "truncation_tail", "norm_a", "norm_b", "norm_products", "norm_effective")
NAMES = {*FLOORED, *(f"{name}_floor" for name in FLOORED), *PLAIN, "clients_subspace"}


def drawn(seed: int, size: float = 1.0, spec: Spec = SPEC) -> Theta:
    generator = torch.Generator().manual_seed(seed)
    return Theta({entry.name: size * torch.randn(entry.shape, generator=generator) for entry in spec})


def moved(start: Theta, by: Theta) -> Theta:
    return Theta({name: tensor + by[name] for name, tensor in start.items()})


def clients(start: Theta, count: int = 4, size: float = 0.3) -> list[Theta]:
    return [moved(start, drawn(seed, size)) for seed in range(1, count + 1)]


def folded(
    start: Theta,
    replies: Sequence[Theta],
    weights: Sequence[float],
    after: Theta,
    *,
    specs: Sequence[Spec] = (),
    base: Base | None = None,
) -> Found:
    fold = Subspace(start, SPEC, SPEC.shared)
    for k, (reply, weight) in enumerate(zip(replies, weights, strict=True)):
        fold.add(f"client-{k}", reply, weight, specs[k] if specs else SPEC)
    return fold.finish(after, base or Base())


def product(theta: Mapping[str, Tensor], module: str, spec: Spec = SPEC) -> Tensor:
    b, a = spec.pairs[module]
    return b.scale * theta[b.name].double() @ theta[a.name].double()


def span(matrix: Tensor) -> Tensor:
    q: Tensor = torch.linalg.qr(matrix.double()).Q
    return q


def ratio(changes: Sequence[Tensor], shares: Sequence[float]) -> tuple[float, float]:
    """Cancellation and its floor, of flat changes."""
    total = sum((p * c for p, c in zip(shares, changes, strict=True)), torch.zeros_like(changes[0]))
    lengths = [p * float(c.norm()) for p, c in zip(shares, changes, strict=True)]
    return float(total.norm()) / sum(lengths), math.hypot(*lengths) / sum(lengths)


def dense(
    start: Theta, replies: Sequence[Theta], weights: Sequence[float], after: Theta, spec: Spec
) -> dict[str, float]:
    """The whole table from products that are formed, for clients of one rank."""
    shares = [weight / sum(weights) for weight in weights]
    modules = list(spec.pairs)
    flat = [torch.cat([product(reply, m, spec).reshape(-1) for m in modules]) for reply in replies]
    before, now = (torch.cat([product(theta, m, spec).reshape(-1) for m in modules]) for theta in (start, after))
    total = sum((p * change for p, change in zip(shares, flat, strict=True)), torch.zeros_like(before))
    found: dict[str, float] = {}
    cells: dict[str, list[float]] = {"basis_overlap": [], "basis_overlap_squared": []}
    floors: dict[str, list[float]] = {"basis_overlap": [], "basis_overlap_squared": []}
    missed, lost, size_a, size_b = 0.0, 0.0, 0.0, 0.0
    for module, (b, a) in spec.pairs.items():
        d_out, rank = b.shape
        mean = sum((p * product(r, module, spec) for p, r in zip(shares, replies, strict=True)), torch.zeros(1))
        left, sigma, _ = torch.linalg.svd(mean)
        lost += float(sigma[rank:].square().sum())
        mean_b, mean_a = (
            sum((p * r[e.name].double() for p, r in zip(shares, replies, strict=True)), torch.zeros(1)) for e in (b, a)
        )
        missed += float((b.scale * mean_b @ mean_a - mean).square().sum())
        size_b += float(after[b.name].double().square().sum())
        size_a += float(after[a.name].double().square().sum())
        for reply in replies:
            own = span(reply[b.name])
            cells["basis_overlap"].append(float((span(after[b.name]).mT @ own).norm()) / math.sqrt(rank))
            cells["basis_overlap_squared"].append(float((left[:, :rank].mT @ own).square().sum()) / rank)
            floors["basis_overlap"].append(math.sqrt(rank / d_out))
            floors["basis_overlap_squared"].append(rank / d_out)
    for name, values in cells.items():
        found[name], found[f"{name}_floor"] = sum(values) / len(values), sum(floors[name]) / len(values)
    lengths = [p * float(change.norm()) for p, change in zip(shares, flat, strict=True)]
    found["client_global_cosine"] = sum(float(torch.cosine_similarity(c, total, dim=0)) for c in flat) / len(flat)
    found["client_global_cosine_floor"] = sum(lengths) / math.hypot(*lengths) / len(flat)
    pairs = [float(torch.cosine_similarity(one, other, dim=0)) for one, other in combinations(flat, 2)]
    found["pairwise_cosine"] = sum(pairs) / len(pairs)
    found["cancellation"], found["cancellation_floor"] = ratio(flat, shares)
    found["cancellation_increments"], found["cancellation_increments_floor"] = ratio([c - before for c in flat], shares)
    found["aggregation_gap"] = math.sqrt(missed) / float(total.norm())
    found["truncation_tail"] = lost / float(total.square().sum())
    found |= {"norm_a": math.sqrt(size_a), "norm_b": math.sqrt(size_b), "norm_products": sum(lengths)}
    found["norm_effective"] = float((now - before).norm())
    return {**found, "clients_subspace": float(len(replies))}


@pytest.mark.parametrize("size", [1.0, 0.1, 1e-3])
def test_every_number_is_its_dense_formula(size: float) -> None:
    start, after = drawn(0), drawn(9)
    replies = clients(start, size=size)
    found = folded(start, replies, WEIGHTS, after).numbers
    expected = dense(start, replies, WEIGHTS, after, SPEC)
    assert set(found) == set(expected) == NAMES
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-13)


def test_by_layer_and_client_it_is_the_dense_formula_in_six_digits() -> None:
    start, after = drawn(0), drawn(9)
    replies, shares = clients(start), [weight / sum(WEIGHTS) for weight in WEIGHTS]
    told = folded(start, replies, WEIGHTS, after).record
    assert told is not None
    assert told.clients == ("client-0", "client-1", "client-2", "client-3")
    assert [layer.layer for layer in told.layers] == ["wide", "low"]
    for layer in told.layers:
        products = [product(reply, layer.layer) for reply in replies]
        mean = sum((p * one for p, one in zip(shares, products, strict=True)), torch.zeros(1))
        sigma = torch.linalg.svdvals(mean)
        b = SPEC.pairs[layer.layer][0].name
        overlap = [float((span(after[b]).mT @ span(reply[b])).norm()) / math.sqrt(3) for reply in replies]
        cosine = [float((one * mean).sum() / (one.norm() * mean.norm())) for one in products]
        means = [
            sum((p * r[e.name].double() for p, r in zip(shares, replies, strict=True)), torch.zeros(1))
            for e in SPEC.pairs[layer.layer]
        ]
        assert layer.overlap == pytest.approx(overlap, rel=1e-5)
        assert layer.cosine == pytest.approx(cosine, rel=1e-5)
        assert layer.spectrum == pytest.approx(sigma[:3].tolist(), rel=1e-5)
        assert layer.tail == pytest.approx(float(sigma[3:].square().sum() / sigma.square().sum()), rel=1e-5)
        assert layer.cancellation == pytest.approx(ratio([one.reshape(-1) for one in products], shares)[0], rel=1e-5)
        assert layer.gap == pytest.approx(float((2.0 * means[0] @ means[1] - mean).norm() / mean.norm()), rel=1e-5)


def test_identical_clients_agree_in_everything() -> None:
    start, one = drawn(0), moved(drawn(0), drawn(1, 0.1))
    found = folded(start, [one] * 4, WEIGHTS, one).numbers
    for name in (*FLOORED, "pairwise_cosine"):
        assert found[name] == pytest.approx(1.0, abs=1e-12), name
    assert found["aggregation_gap"] == pytest.approx(0.0, abs=1e-12)
    assert found["truncation_tail"] == pytest.approx(0.0, abs=1e-12)


def test_clients_at_right_angles_are_at_the_floors() -> None:
    start = Theta({name: torch.zeros_like(tensor) for name, tensor in drawn(0).items()})
    replies = []
    for k in range(3):  # each client has directions of its own on both sides
        b, a = torch.zeros(12, 3), torch.zeros(3, 9)
        b[4 * k : 4 * k + 3], a[:, 3 * k : 3 * k + 3] = torch.eye(3), torch.eye(3)
        replies.append(start.replace({"b1": b, "a1": a}))
    found = folded(start, replies, [1.0, 2.0, 4.0], replies[0]).numbers
    for name in ("client_global_cosine", "cancellation", "cancellation_increments"):
        assert found[name] == pytest.approx(found[f"{name}_floor"], abs=1e-12)
    assert found["pairwise_cosine"] == pytest.approx(0.0, abs=1e-12)
    assert found["basis_overlap"] == pytest.approx(1 / 3), "the new B is the first client's alone"
    equal = folded(start, replies, [1.0] * 3, replies[0]).numbers
    assert equal["cancellation"] == equal["client_global_cosine"] == pytest.approx(1 / math.sqrt(3))


def test_opposite_clients_cancel() -> None:
    start, one = drawn(0), drawn(1)
    other = one.replace({"b1": -one["b1"], "b2": -one["b2"]})
    found = folded(start, [one, other], [1.0, 1.0], start).numbers
    assert found["cancellation"] == 0.0
    assert found["pairwise_cosine"] == pytest.approx(-1.0)
    relative_to_nothing = {"client_global_cosine", "aggregation_gap", "truncation_tail"}
    assert not relative_to_nothing & set(found)


@pytest.mark.parametrize("count", [4, 40])
def test_the_longest_finite_replies_are_measured_without_an_overflow(count: int) -> None:
    start = drawn(0)
    replies = [drawn(seed, 1e37) for seed in range(1, count + 1)]
    found = folded(start, replies, [1.0] * count, drawn(9, 1e37))
    assert set(found.numbers) == NAMES
    assert all(math.isfinite(value) for value in found.numbers.values())
    small = folded(start, [drawn(seed) for seed in range(1, count + 1)], [1.0] * count, drawn(9)).numbers
    for name in ("basis_overlap", "pairwise_cosine", "cancellation", "aggregation_gap", "truncation_tail"):
        assert found.numbers[name] == pytest.approx(small[name], rel=1e-4), name


@given(st.integers(0, 2**16))
def test_how_a_client_splits_its_product_moves_nothing_but_the_gap(seed: int) -> None:
    start, after = drawn(0), drawn(9)
    replies = clients(start)
    generator = torch.Generator().manual_seed(seed)
    turned = []
    for reply in replies:
        fresh = {}
        for b, a in SPEC.pairs.values():
            mix = torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64)).Q * 1.5
            fresh[b.name] = (reply[b.name].double() @ mix).float()
            fresh[a.name] = (torch.linalg.inv(mix) @ reply[a.name].double()).float()
        turned.append(reply.replace(fresh))
    found, other = (folded(start, each, WEIGHTS, after).numbers for each in (replies, turned))
    for name in NAMES - {"aggregation_gap"}:
        assert other[name] == pytest.approx(found[name], rel=1e-5), name
    assert abs(other["aggregation_gap"] - found["aggregation_gap"]) > 1e-3


def test_a_client_of_smaller_rank_counts_with_its_own_scale_and_rank() -> None:
    small = SPEC.ranked(2)
    start, after = drawn(0), drawn(9)
    replies, specs = [*clients(start, 2), drawn(5, spec=small)], [SPEC, SPEC, small]
    found = folded(start, replies, [1.0, 2.0, 3.0], after, specs=specs).numbers
    shares, filled = [1 / 6, 2 / 6, 3 / 6], [*replies[:2]]
    wider: dict[str, Tensor] = {}
    for (b, a), (own_b, own_a) in zip(SPEC.pairs.values(), small.pairs.values(), strict=True):
        tall, wide = torch.zeros(b.shape), torch.zeros(a.shape)
        tall[:, :2], wide[:2] = replies[2][own_b.name] * (own_b.scale / b.scale), replies[2][own_a.name]
        wider |= {b.name: tall, a.name: wide}
    filled.append(drawn(5).replace(wider))
    expected = dense(start, filled, [1.0, 2.0, 3.0], after, SPEC)
    for name in NAMES:
        if not name.startswith("basis_overlap"):
            assert found[name] == pytest.approx(expected[name], rel=1e-7), name  # the filled B is rounded
    cells = [
        (torch.linalg.norm(span(after[b.name]).mT @ span(reply[b.name])) / math.sqrt(rank), max(3, rank) / b.shape[0])
        for b, _ in SPEC.pairs.values()
        for reply, rank in zip(replies, (3, 3, 2), strict=True)
    ]
    assert found["basis_overlap"] == pytest.approx(sum(float(one) for one, _ in cells) / 6)
    assert found["basis_overlap_squared_floor"] == pytest.approx(sum(floor for _, floor in cells) / 6)
    assert found["norm_products"] == pytest.approx(
        sum(
            p * float(torch.cat([product(r, m).reshape(-1) for m in SPEC.pairs]).norm())
            for p, r in zip(shares, filled, strict=True)
        )
    )


def test_a_factor_that_stayed_is_where_the_round_started() -> None:
    start, after = drawn(0), drawn(9)
    replies = [reply.replace({"a1": start["a1"], "a2": start["a2"]}) for reply in clients(start)]
    fold = Subspace(start, SPEC, ("b1", "b2", "w"))
    for k, reply in enumerate(replies):
        fold.add(f"client-{k}", reply.select(("b1", "b2", "w")), WEIGHTS[k], SPEC)
    found = fold.finish(after, Base()).numbers
    assert found == folded(start, replies, WEIGHTS, after).numbers
    assert found["aggregation_gap"] < 1e-15, "common A: the mean of factors is exact"
    assert found["truncation_tail"] < 1e-12


def test_a_small_client_whose_factor_stayed_starts_from_as_many_directions_as_it_holds() -> None:
    small = SPEC.ranked(2)
    start = drawn(0)
    fold = Subspace(start, SPEC, ("a1", "a2"))
    fold.add("one", Theta({"a1": start["a1"][:2], "a2": start["a2"][:2]}), 1.0, small)
    found = fold.finish(start, Base()).numbers
    held = {b.name: start[b.name][:, :2] for b, _ in SPEC.pairs.values()}
    cut = [2.0 * held[b.name].double() @ start[a.name][:2].double() for b, a in SPEC.pairs.values()]
    assert found["norm_products"] == pytest.approx(math.hypot(*(float(one.norm()) for one in cut)))


def test_clients_that_did_not_move_have_no_increment_and_a_zero_product_no_direction() -> None:
    start = drawn(0)
    still = folded(start, [start] * 3, [1.0, 2.0, 3.0], start).numbers
    assert not any(name.startswith("cancellation_increments") for name in still)
    assert (still["norm_effective"], still["aggregation_gap"]) == (0.0, 0.0)
    empty = start.replace({"b1": torch.zeros(12, 3), "b2": torch.zeros(7, 3)})
    found = folded(empty, [empty] * 3, [1.0, 2.0, 3.0], empty)
    assert set(found.numbers) == {"norm_a", "norm_b", "norm_products", "norm_effective", "clients_subspace"}
    assert found.record is not None
    nothing = LayerSubspace(layer="wide", overlap=(None,) * 3, cosine=(None,) * 3, spectrum=(0.0,) * 3)
    assert found.record.layers[0] == nothing
    mixed = folded(empty, [empty, moved(empty, drawn(1)), moved(empty, drawn(2))], [1.0] * 3, start).numbers
    without = folded(empty, [moved(empty, drawn(1)), moved(empty, drawn(2))], [1.0] * 2, start).numbers
    for name in ("pairwise_cosine", "client_global_cosine", "cancellation", "basis_overlap"):
        assert mixed[name] == pytest.approx(without[name]), name


def test_one_client_alone_is_the_mean() -> None:
    start, one = drawn(0), drawn(1)
    found = folded(start, [one], [7.0], one).numbers
    assert "pairwise_cosine" not in found
    for name in ("client_global_cosine", "cancellation", "basis_overlap", "basis_overlap_squared"):
        assert found[name] == pytest.approx(1.0)


@pytest.mark.parametrize("whole", [False, True])
def test_what_goes_beside_the_backbone_counts_as_a_change_of_the_weights(whole: bool) -> None:
    start, after = drawn(0), drawn(9)
    tall, wide = torch.randn(12, 5, generator=torch.Generator().manual_seed(3)), drawn(4)["a1"][:1].expand(5, 9)
    pair = (tall @ wide, torch.empty(0, 9)) if whole else (tall, wide)
    found = folded(start, clients(start), WEIGHTS, after, base=Base({"wide": pair})).numbers
    change = [product(after, m) - product(start, m) for m in SPEC.pairs]
    change[0] = change[0] + (tall @ wide).double()
    expected = math.hypot(*(float(one.norm()) for one in change))
    assert found["norm_effective"] == pytest.approx(expected, rel=1e-6)


def test_the_order_of_replies_changes_no_bit() -> None:
    start, after = drawn(0), drawn(9)
    results = []
    for order in ((0, 1, 2, 3), (3, 1, 0, 2)):
        fold = Subspace(start, SPEC, SPEC.shared)
        for k in order:
            fold.add(f"client-{k}", clients(start)[k], WEIGHTS[k], SPEC)
        results.append(fold.finish(after, Base()))
    assert results[0] == results[1]


@pytest.mark.parametrize("limit", ["MOST", "ROOM"])
def test_of_many_clients_some_are_kept_whatever_the_order(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = sum(entry.numel for pair in SPEC.pairs.values() for entry in pair)
    monkeypatch.setattr(subspace, limit, 5 if limit == "MOST" else 6 * 4 * numbers - 1)
    start, after = drawn(0), drawn(9)
    replies = {f"client-{k}": moved(start, drawn(k + 1, 0.1)) for k in range(12)}
    results = []
    for order in (list(replies), list(reversed(replies))):
        fold = Subspace(start, SPEC, SPEC.shared)
        for client in order:
            fold.add(client, replies[client], 2.0, SPEC)
            assert len(fold._kept) <= 5
        results.append(fold.finish(after, Base()))
    assert results[0] == results[1]
    told = results[0].record
    assert told is not None
    assert len(told.clients) == results[0].numbers["clients_subspace"] == 5
    assert list(told.clients) != sorted(replies)[:5], "not those whose names come first"
    alone = folded(start, [replies[client] for client in told.clients], [2.0] * 5, after).numbers
    assert results[0].numbers == alone


def test_nothing_is_written_to_and_nothing_but_factors_is_kept() -> None:
    start, reply = drawn(0), drawn(1)
    before = start.sha256(), reply.sha256()
    fold = Subspace(start, SPEC, SPEC.shared)
    fold.add("one", reply, 1.0, SPEC)
    fold.finish(start, Base())
    assert (start.sha256(), reply.sha256()) == before
    kept = fold._kept["one"].factors
    assert set(kept) == {"a1", "b1", "a2", "b2"}
    assert all(kept[name] is reply[name] for name in kept), "no copy"
