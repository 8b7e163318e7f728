"""Aggregators of products against dense float64: what they commit, what they are blind to, and what they refuse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cotune.aggregate import Mean, ProductSVD, Residual, Rotation, Stack
from cotune.core.change import Base, Commit, Contribution, Server, Tensors
from cotune.core.contracts import Aggregator
from cotune.core.errors import Code, CotuneError
from cotune.core.seeds import torch_generator
from cotune.core.spec import Entry, Role, Spec
from cotune.core.state import Theta
from cotune.trainable import LoRA

RANK, ALPHA = 4, 8.0
SIDES = {"square": (12, 12), "tall": (15, 10), "wide": (10, 15)}
SVD = [ProductSVD(split=split) for split in ("balanced", "orthonormal-a", "orthonormal-b")]
PRODUCTS: list[Aggregator] = [*SVD, Stack(), Residual()]
ALL: list[Aggregator] = [*PRODUCTS, Rotation(), Rotation(reference="B"), Rotation(reference="both")]
Tensored = dict[str, Tensor]


def table(rank: int = RANK, falls: float = 1.0) -> Spec:
    scale = ALPHA / rank**falls
    rows = []
    for name, (d_out, d_in) in SIDES.items():
        rows.append(Entry(f"{name}.A", (rank, d_in), Role.FACTOR_A, name, scale=scale, falls=falls))
        rows.append(Entry(f"{name}.B", (d_out, rank), Role.FACTOR_B, name, scale=scale, falls=falls))
    return Spec(
        (
            *rows,
            Entry("rule", (3,), Role.RULE, "m"),
            Entry("w", (2, 2), Role.FULL, "w"),
            Entry("h", (2,), Role.HEAD, "h"),
        )
    )


SPEC = table()


def draw(seed: int, spec: Spec = SPEC) -> Tensored:
    generator = torch_generator(seed)
    return {entry.name: torch.randn(entry.shape, generator=generator) for entry in spec}


def start(seed: int = 99) -> Theta:
    """As LoRA starts: A at random, B = 0."""
    drawn = draw(seed)
    return Theta({n: torch.zeros_like(t) if SPEC[n].role is Role.FACTOR_B else t for n, t in drawn.items()})


def reply(client: str, weight: float, tensors: Mapping[str, Tensor], spec: Spec = SPEC) -> Contribution:
    return Contribution(client, weight, Tensors(Theta(tensors)), spec)


def commit(
    part: Aggregator, replies: Sequence[Contribution], theta: Theta | None = None, up: tuple[str, ...] = SPEC.names
) -> Commit:
    fold = part.init(theta or start(), Server(1, 9, SPEC, up))
    for one in replies:
        fold = part.add(fold, one)
    return part.finish(fold)


def effective(tensors: Mapping[str, Tensor], spec: Spec = SPEC, base: Base | None = None) -> Tensored:
    """Module -> s · B A + base, in float64."""
    found = {}
    for name in SIDES:
        product = spec[f"{name}.B"].scale * tensors[f"{name}.B"].double() @ tensors[f"{name}.A"].double()
        found[name] = product + (base.delta(name).double() if base else 0.0)
    return found


def wanted(replies: Sequence[Contribution]) -> Tensored:
    """Module -> Σ p_k s_k B_k A_k, p renormalised over those that replied."""
    whole = sum(one.weight for one in replies)
    each = [(one.weight / whole, effective(one.change.dense(), one.spec)) for one in replies]
    return {name: torch.stack([share * products[name] for share, products in each]).sum(0) for name in SIDES}


def best(matrix: Tensor, rank: int = RANK) -> Tensor:
    u, sigma, v = torch.linalg.svd(matrix, full_matrices=False)
    found: Tensor = u[:, :rank] * sigma[:rank] @ v[:rank]
    return found


def near(got: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float = 1e-6) -> None:
    for name, tensor in expected.items():
        assert float((got[name] - tensor).norm()) <= tolerance * float(tensor.norm()), name


REPLIES = [reply("ada", 5.0, draw(1)), reply("bo", 1.0, draw(2)), reply("cy", 3.0, draw(3))]


@pytest.mark.parametrize("part", ALL, ids=repr)
def test_one_client_comes_back_to_1e_6_and_everything_but_pairs_bit_for_bit(part: Aggregator) -> None:
    sent = draw(1)
    done = commit(part, [reply("ada", 7.0, sent)])
    near(effective(done.theta, base=done.base), effective(sent))
    assert {n: done.theta[n].tolist() for n in ("rule", "w", "h")} == {n: sent[n].tolist() for n in ("rule", "w", "h")}


def test_the_mean_of_factors_under_a_residual_is_that_of_mean_bit_for_bit() -> None:
    assert commit(Residual(), REPLIES).theta.sha256() == commit(Mean(), REPLIES).theta.sha256()


@pytest.mark.parametrize("part", ALL, ids=repr)
def test_rules_heads_and_whole_weights_are_averaged_as_mean_does(part: Aggregator) -> None:
    ours, means = commit(part, REPLIES).theta, commit(Mean(), REPLIES).theta
    assert all(torch.equal(ours[name], means[name]) for name in ("rule", "w", "h"))


@pytest.mark.parametrize("part", [Stack(), Residual()], ids=repr)
def test_flora_and_fedex_both_arrive_at_the_sum_of_products(part: Aggregator) -> None:
    done = commit(part, REPLIES)
    near(effective(done.theta, base=done.base), wanted(REPLIES))


@pytest.mark.parametrize("part", SVD, ids=repr)
def test_a_split_sum_is_the_best_of_its_rank(part: ProductSVD) -> None:
    near(effective(commit(part, REPLIES).theta), {n: best(matrix) for n, matrix in wanted(REPLIES).items()})


@pytest.mark.parametrize("part", SVD, ids=repr)
def test_where_the_rank_suffices_it_is_exact(part: ProductSVD) -> None:
    low = table(2)
    two = [reply("ada", 5.0, draw(1, low), low), reply("bo", 1.0, draw(2, low), low)]
    near(effective(commit(part, two).theta), wanted(two))
    same = draw(1)
    alike = [reply(client, 2.0, same) for client in ("ada", "bo", "cy")]
    near(effective(commit(part, alike).theta), effective(same))


def turned(one: Contribution, turn: Tensor) -> Contribution:
    """The same products split otherwise: (B R, R⁻¹ A)."""
    tensors = dict(one.change.dense())
    for name in SIDES:
        tensors[f"{name}.B"] = (tensors[f"{name}.B"].double() @ turn).float()
        tensors[f"{name}.A"] = (torch.linalg.inv(turn) @ tensors[f"{name}.A"].double()).float()
    return replace(one, change=Tensors(Theta(tensors)))


SKEW = torch.tensor([[1.5, 0.3, 0.0, 0.1], [0.0, 0.8, 0.2, 0.0], [0.1, 0.0, 1.2, 0.0], [0.0, 0.4, 0.0, 0.9]]).double()
TURN = torch.linalg.qr(SKEW).Q
FLIP = -torch.eye(4, dtype=torch.float64)


@pytest.mark.parametrize("change", [SKEW, TURN, FLIP], ids=["skewed", "rotated", "flipped"])
@pytest.mark.parametrize("part", PRODUCTS, ids=repr)
def test_products_do_not_care_how_a_client_splits_them(part: Aggregator, change: Tensor) -> None:
    plain, other = commit(part, REPLIES), commit(part, [turned(REPLIES[0], change), *REPLIES[1:]])
    near(effective(other.theta, base=other.base), effective(plain.theta, base=plain.base), 2e-6)


@pytest.mark.parametrize("part", [Rotation(), Rotation(reference="both")], ids=repr)
def test_rotations_are_seen_through_but_no_other_change_of_basis(part: Aggregator) -> None:
    plain = effective(commit(part, REPLIES).theta)
    for change in (TURN, FLIP):
        near(effective(commit(part, [turned(REPLIES[0], change), *REPLIES[1:]]).theta), plain, 2e-6)
    skewed = effective(commit(part, [turned(REPLIES[0], SKEW), *REPLIES[1:]]).theta)
    assert float((skewed["square"] - plain["square"]).norm()) > 0.01 * float(plain["square"].norm())


def test_the_mean_of_factors_cares_and_says_so() -> None:
    plain = effective(commit(Mean(), REPLIES).theta)
    other = effective(commit(Mean(), [turned(REPLIES[0], TURN), *REPLIES[1:]]).theta)
    assert float((other["square"] - plain["square"]).norm()) > 0.1 * float(plain["square"].norm())
    two = [REPLIES[0], turned(replace(REPLIES[0], client="bo"), FLIP)]
    assert all(float(product.norm()) < 1e-6 for product in effective(commit(Mean(), two).theta).values())
    assert "not the mean of products" in (Mean.__doc__ or "")


def test_rotating_brings_the_mean_of_factors_nearer_to_the_mean_of_products() -> None:
    reference = start()
    near_start = [
        {n: t + 0.1 * step for (n, t), step in zip(reference.items(), draw(seed).values(), strict=True)}
        for seed in (1, 2)
    ]
    replies = [reply("ada", 1.0, near_start[0]), turned(reply("bo", 1.0, near_start[1]), TURN)]
    gaps = {}
    for part in (Mean(), Rotation()):
        found = effective(commit(part, replies, reference).theta)
        gaps[part.kind] = sum(float((found[name] - matrix).norm()) for name, matrix in wanted(replies).items())
    assert gaps["rotation"] < 0.5 * gaps["mean"]


@pytest.mark.parametrize("part", ALL, ids=repr)
def test_the_order_of_replies_does_not_matter(part: Aggregator) -> None:
    first, last = commit(part, REPLIES), commit(part, REPLIES[::-1])
    near(effective(last.theta, base=last.base), effective(first.theta, base=first.base))


# Ranks and scales.


@pytest.mark.parametrize("falls", [1.0, 0.5])
@pytest.mark.parametrize("part", [*SVD, Stack(), Rotation()], ids=repr)
def test_a_clients_own_scale_is_folded_in_before_any_sum(part: Aggregator, falls: float) -> None:
    spec = table(falls=falls)
    sizes = [spec, spec.ranked(2), spec.ranked(1)]
    assert [own["tall.B"].scale for own in sizes] == pytest.approx([ALPHA / rank**falls for rank in (4, 2, 1)])
    replies = [reply(f"c{i}", 1.0 + i, draw(i, own), own) for i, own in enumerate(sizes)]
    fold = part.init(start(), Server(1, 9, spec, spec.names))
    for one in replies:
        fold = part.add(fold, one)
    done = part.finish(fold)
    expected = wanted(replies)
    if isinstance(part, Rotation):
        single = commit_one(part, replies[1], spec)
        near(effective(single.theta, spec), effective(replies[1].change.dense(), sizes[1]))
        return
    cut = expected if isinstance(part, Stack) else {name: best(matrix) for name, matrix in expected.items()}
    near(effective(done.theta, spec, done.base), cut)


def commit_one(part: Aggregator, one: Contribution, spec: Spec) -> Commit:
    fold = part.init(start(), Server(1, 9, spec, spec.names))
    return part.finish(part.add(fold, one))


@pytest.mark.parametrize("stabilised", [False, True])
@pytest.mark.parametrize("rank", [1, 2, 4])
@pytest.mark.parametrize("part", SVD, ids=repr)
def test_a_client_of_any_rank_sends_back_the_product_that_it_got(
    part: ProductSVD, rank: int, stabilised: bool
) -> None:  # FederatedLLM issue 16
    spec = table(falls=0.5 if stabilised else 1.0)
    low = spec.ranked(rank)
    lora = LoRA(rank=RANK, alpha=ALPHA, stabilised=stabilised)
    first = commit_one(part, reply("ada", 3.0, draw(1, low), low), spec).theta
    held = lora.fit(first, low)
    near(effective(held, low), effective(first, spec))
    again = commit_one(part, reply("ada", 3.0, held, low), spec).theta
    near(effective(again, spec), effective(first, spec))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_smaller_client_gets_the_best_that_it_can_hold(rank: int) -> None:
    theta, low = commit(ProductSVD(), REPLIES).theta, SPEC.ranked(rank)
    held = effective(LoRA(rank=RANK, alpha=ALPHA).fit(theta, low), low)
    near(held, {name: best(matrix, rank) for name, matrix in wanted(REPLIES).items()})


def test_a_client_of_the_servers_rank_holds_theta_itself() -> None:
    theta = Theta(draw(1))
    assert LoRA(rank=RANK, alpha=ALPHA).fit(theta, SPEC).sha256() == theta.sha256()


# One factor alone.


def test_where_one_factor_travels_its_mean_is_exact_and_the_product_is_split_anew() -> None:
    theta = Theta(draw(50))
    up = tuple(name for name in SPEC.names if not name.endswith(".A"))
    replies = [reply(one.client, one.weight, {n: one.change.dense()[n] for n in up}) for one in REPLIES]
    whole = [reply(one.client, one.weight, {**theta, **one.change.dense()}) for one in replies]
    done = commit(ProductSVD(split="orthonormal-a"), replies, theta, up)
    near(effective(done.theta), wanted(whole))
    for name in SIDES:
        a = done.theta[f"{name}.A"].double()
        torch.testing.assert_close(a @ a.mT, torch.eye(RANK, dtype=torch.float64), atol=1e-6, rtol=0)
    mean = commit(Mean(), replies, theta, up)
    near(effective(mean.theta), effective(done.theta), 2e-6)


def test_frozen_a_makes_the_mean_of_factors_exact() -> None:
    common = {name: tensor for name, tensor in draw(50).items() if name.endswith(".A")}
    replies = [reply(one.client, one.weight, {**one.change.dense(), **common}) for one in REPLIES]
    up = tuple(name for name in SPEC.names if name not in common)
    short = [reply(one.client, one.weight, {n: one.change.dense()[n] for n in up}) for one in replies]
    ffa = commit(Mean(), short, Theta({**start(), **common}), up).theta
    fedavg = commit(Mean(), replies).theta
    near(effective(ffa), wanted(replies))
    assert all(torch.equal(ffa[name], fedavg[name]) for name in up)


@pytest.mark.parametrize("part", [Stack(), Residual()], ids=repr)
def test_exact_sums_refuse_a_factor_without_its_partner(part: Aggregator) -> None:
    up = tuple(name for name in SPEC.names if not name.endswith(".A"))
    with pytest.raises(CotuneError, match="one factor of a pair goes up alone") as caught:
        part.init(start(), Server(1, 9, SPEC, up))
    assert caught.value.code is Code.CONFLICT


def test_a_product_needs_a_partner_that_the_server_has() -> None:
    theta = Theta({name: tensor for name, tensor in start().items() if not name.endswith(".B")})
    with pytest.raises(CotuneError, match="one factor of a pair goes up alone"):
        ProductSVD().init(theta, Server(1, 9, SPEC, tuple(theta)))


# What comes down.


def test_names_that_commits_move_are_those_that_come_down() -> None:
    only_b = tuple(name for name in SPEC.names if name.endswith(".B"))
    both = tuple(name for name in SPEC.names if "." in name)
    assert ProductSVD().moved(SPEC, only_b) == both
    assert ProductSVD().moved(SPEC, ("h",)) == ("h",)
    assert Stack().moved(SPEC, SPEC.names) == ("rule", "w", "h")
    assert Residual().moved(SPEC, SPEC.names) == SPEC.names
    for part in ALL:
        before = start()
        after = commit(part, REPLIES, before).theta
        moved = {name for name in SPEC.names if not torch.equal(after[name], before[name])}
        assert moved <= set(part.moved(SPEC, SPEC.names)), part


@pytest.mark.parametrize("part", [Stack(), Residual()], ids=repr)
def test_a_base_delta_has_the_layout_that_is_announced_rank_by_rank(part: Aggregator) -> None:
    tables = [SPEC, SPEC.ranked(2), SPEC] if isinstance(part, Stack) else [SPEC] * 3
    replies = [reply(f"c{i}", 1.0, draw(i, own), own) for i, own in enumerate(tables)]
    announced = part.increment(tables)
    sent = commit(part, replies).base.tensors()
    assert {name: tuple(tensor.shape) for name, tensor in sent.items()} == {
        n: shape for n, (_, shape) in announced.items()
    }
    assert all(tensor.dtype is torch.float32 for tensor in sent.values())
    ranks = sum(own["tall.A"].shape[0] for own in tables)
    assert sum(tensor.numel() for tensor in sent.values()) == ranks * sum(
        d_out + d_in for d_out, d_in in SIDES.values()
    )


def test_clients_that_agree_leave_a_residual_of_exactly_0() -> None:
    same = [reply(client, 2.0, draw(1)) for client in ("ada", "bo")]
    assert not any(bool(tensor.any()) for name, tensor in commit(Residual(), same).base.tensors().items())


def test_the_cap_counts_the_change_that_the_model_feels() -> None:
    lengths = [float(product.norm()) for product in effective(commit(ProductSVD(cap=0.25), REPLIES).theta).values()]
    assert lengths == pytest.approx([0.25 * kept for kept in tail_shares()], rel=1e-5)


def tail_shares() -> list[float]:
    """‖best of its rank‖ / ‖whole‖ of every module: the cap holds before truncation."""
    return [float(best(matrix).norm() / matrix.norm()) for matrix in wanted(REPLIES).values()]
