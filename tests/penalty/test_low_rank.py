"""Subspace, ridge and basis against their dense forms in float64: in value, in gradient, and in what they see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cotune.core.contracts import Penalty
from cotune.core.errors import CotuneError
from cotune.core.seeds import Seeds, torch_generator
from cotune.core.spec import Entry, Role, Scope, Spec
from cotune.core.state import Personal, Theta
from cotune.core.view import View
from cotune.method import Method
from cotune.penalty import Basis, Ridge, Subspace
from cotune.penalty.pairs import Reduction
from cotune.resolve import recipe

SPEC = Spec(
    (
        Entry("q.A", (2, 6), Role.FACTOR_A, "q", scale=2.0),
        Entry("q.B", (5, 2), Role.FACTOR_B, "q", scale=2.0),
        Entry("v.A", (2, 4), Role.FACTOR_A, "v", scale=2.0),
        Entry("v.B", (4, 2), Role.FACTOR_B, "v", scale=2.0),
        Entry("head", (3,), Role.HEAD, "head"),
    )
)
REDUCTIONS: tuple[Reduction, ...] = ("mean-pairs", "sum")


def draw(seed: int, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    generator = torch_generator(seed)
    return {e.name: torch.randn(e.shape, generator=generator, dtype=torch.float64).to(dtype) for e in SPEC}


def view(anchor: Mapping[str, Tensor], spec: Spec = SPEC) -> View:
    scope = Scope(spec.names, spec.shared, spec.shared)
    theta, personal = spec.divide(anchor)
    return View(1, "ada", theta, personal, {}, theta, {}, Seeds(), spec, scope)


def term(part: Penalty, at: Mapping[str, Tensor], anchor: Mapping[str, Tensor]) -> Tensor:
    """The formula of the paper, product by product and number by number."""
    terms = []
    for module in ("q", "v"):
        b, a, b_g, a_g = (named[f"{module}.{side}"] for named in (at, anchor) for side in "BA")
        match part:
            case Subspace():
                terms.append(part.mu / 2 * (2.0 * b @ a - 2.0 * b_g @ a_g).square().sum())
            case Ridge():
                terms.append(part.strength / 2 * (a.square().sum() + b.square().sum()))
            case Basis():
                terms.append(part.alpha / 2 * (b - b_g).square().sum())
    assert isinstance(part, Subspace | Ridge | Basis)
    whole: Tensor = torch.stack(terms).sum()
    return whole / 2 if part.reduction == "mean-pairs" else whole


def parts(strength: float, reduction: Reduction) -> tuple[Penalty, ...]:
    return (
        Subspace(mu=strength, reduction=reduction),
        Ridge(strength=strength, reduction=reduction),
        Basis(alpha=strength, reduction=reduction),
    )


@given(st.floats(0, 10), st.integers(0, 50), st.sampled_from(REDUCTIONS))
def test_value_and_gradient_are_those_of_the_dense_form(strength: float, seed: int, reduction: Reduction) -> None:
    anchor = draw(seed + 1)
    for part in parts(strength, reduction):
        leaves = {name: tensor.requires_grad_() for name, tensor in draw(seed).items()}
        got, expected = part(leaves, view(anchor)), term(part, leaves, anchor)
        torch.testing.assert_close(got, expected)
        inputs = [leaf for name, leaf in leaves.items() if name != "head"]
        slopes = [torch.autograd.grad(value, inputs, allow_unused=True) for value in (got, expected)]
        for ours, theirs in zip(*slopes, strict=True):
            torch.testing.assert_close(
                torch.zeros(()) if ours is None else ours, torch.zeros(()) if theirs is None else theirs
            )


@pytest.mark.parametrize("size", [1.0, 1e-2, 1e-4, 1e-6])
def test_the_pull_keeps_its_digits_in_float32_near_the_anchor(size: float) -> None:
    anchor, step = draw(1, torch.float32), draw(2, torch.float32)
    at = {name: tensor + size * step[name] for name, tensor in anchor.items()}
    exact = term(Subspace(mu=1.0), *({n: t.double() for n, t in named.items()} for named in (at, anchor)))
    assert float(Subspace(mu=1.0)(at, view(anchor))) == pytest.approx(float(exact), rel=1e-5)


def test_subspace_is_blind_to_how_a_product_is_split_and_basis_is_not() -> None:
    anchor = draw(1)
    other = dict(anchor)
    turn = torch.tensor([[2.0, 1.0], [0.0, 0.5]], dtype=torch.float64)
    other["q.B"], other["q.A"] = anchor["q.B"] @ turn, torch.linalg.inv(turn) @ anchor["q.A"]
    assert float(Subspace(mu=1.0)(other, view(anchor))) < 1e-25
    assert float(Basis(alpha=1.0)(other, view(anchor))) > 0.1


def test_a_factor_that_does_not_train_counts_as_it_came_down_and_adds_no_ridge() -> None:
    anchor, at = draw(1), draw(2)
    frozen = {name: tensor for name, tensor in at.items() if name not in ("q.A", "v.A")}
    with_anchor = {**at, "q.A": anchor["q.A"], "v.A": anchor["v.A"]}
    subspace = Subspace(mu=1.0)
    torch.testing.assert_close(subspace(frozen, view(anchor)), subspace(with_anchor, view(anchor)))
    squares = at["q.B"].square().sum() + at["v.B"].square().sum()
    torch.testing.assert_close(Ridge(strength=2.0, reduction="sum")(frozen, view(anchor)), squares)


def test_a_method_without_pairs_pays_nothing() -> None:
    head = {"head": draw(1)["head"]}
    only = Spec((SPEC["head"],))
    here = View(1, "ada", Theta(head), Personal(), {}, Theta(head), {}, Seeds(), only, Scope(*[only.names] * 3))
    assert [float(part(head, here)) for part in parts(1.0, "mean-pairs")] == [0.0, 0.0, 0.0]


def test_terms_that_need_the_servers_product_refuse_a_factor_that_stays_at_home() -> None:
    plain = recipe("lora-fedavg")
    for part in (Subspace(mu=1.0), Basis(alpha=1.0)):
        with pytest.raises(CotuneError, match="needs both factors to travel"):
            Method.model_validate({**dict(plain), "penalties": (part,), "share": ("factor_a",)})
    alone = Method.model_validate({**dict(plain), "penalties": (Ridge(strength=1.0),), "share": ("factor_a",)})
    assert alone.share == ("factor_a",)


def test_ridge_holds_a_factor_that_stays_with_its_client_too() -> None:
    at = draw(2)
    stays = Spec(tuple(replace(entry, shared=entry.role is not Role.FACTOR_B) for entry in SPEC))
    torch.testing.assert_close(Ridge(strength=1.0)(at, view(at, stays)), term(Ridge(strength=1.0), at, at))
