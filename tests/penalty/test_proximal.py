"""The proximal term against its dense form in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cotune.core.seeds import Seeds, torch_generator
from cotune.core.spec import Entry, Role, Scope, Spec
from cotune.core.state import Personal, Theta
from cotune.core.view import View
from cotune.penalty import Proximal

SPEC = Spec((Entry("a", (2, 3), Role.FULL, "m"), Entry("b", (4,), Role.FULL, "m")))


def draw(seed: int, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    generator = torch_generator(seed)
    return {entry.name: torch.randn(entry.shape, generator=generator, dtype=torch.float64).to(dtype) for entry in SPEC}


def view(anchor: dict[str, Tensor]) -> View:
    scope = Scope(SPEC.names, SPEC.names, SPEC.names)
    return View(1, "ada", Theta(draw(9)), Personal(), {}, Theta(anchor), {}, Seeds(), SPEC, scope)


def dense(mu: float, at: dict[str, Tensor], anchor: dict[str, Tensor]) -> tuple[float, dict[str, np.ndarray]]:
    """(mu / 2) · Σ (θ − anchor)², and its gradient mu · (θ − anchor), number by number."""
    differences = {name: at[name].double().numpy() - anchor[name].double().numpy() for name in anchor}
    value = sum(mu / 2 * float(one) ** 2 for difference in differences.values() for one in difference.flatten())
    return value, {name: mu * difference for name, difference in differences.items()}


@given(st.floats(0, 10), st.integers(0, 50))
def test_value_and_gradient_are_those_of_the_dense_form(mu: float, seed: int) -> None:
    at, anchor = draw(seed), draw(seed + 1)
    leaves = {name: tensor.requires_grad_() for name, tensor in at.items()}
    term = Proximal(mu=mu)(leaves, view(anchor))
    value, slopes = dense(mu, {name: tensor.detach() for name, tensor in at.items()}, anchor)
    assert term.shape == ()
    assert float(term.detach()) == pytest.approx(value, rel=1e-12)
    for name, grad in zip(leaves, torch.autograd.grad(term, list(leaves.values())), strict=True):
        np.testing.assert_allclose(grad.numpy(), slopes[name], rtol=1e-12, atol=1e-14)


def test_its_gradient_is_that_of_finite_differences() -> None:
    here, names = view(draw(1)), list(SPEC.names)
    leaves = [tensor.requires_grad_() for tensor in draw(2).values()]

    def term(*values: Tensor) -> Tensor:
        return Proximal(mu=0.7)(dict(zip(names, values, strict=True)), here)

    assert torch.autograd.gradcheck(term, leaves)
    assert torch.autograd.gradgradcheck(term, leaves)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_exactly_zero_at_the_anchor_and_positive_elsewhere(dtype: torch.dtype) -> None:
    anchor = draw(1, dtype)
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in anchor.items()}
    term = Proximal(mu=3.0)(leaves, view(anchor))
    assert float(term.detach()) == 0.0
    assert not any(bool(grad.any()) for grad in torch.autograd.grad(term, list(leaves.values())))
    assert float(Proximal(mu=3.0)(draw(2, dtype), view(anchor))) > 0


def test_float32_agrees_with_the_dense_form() -> None:
    at, anchor = draw(1, torch.float32), draw(2, torch.float32)
    value, _ = dense(0.3, at, anchor)
    assert float(Proximal(mu=0.3)(at, view(anchor))) == pytest.approx(value, rel=1e-6)


def test_only_tensors_that_travel_are_held_to_their_anchor() -> None:
    at, anchor = draw(1), draw(2)
    personal = {**at, "own": torch.full((2,), 1e6, dtype=torch.float64)}
    assert torch.equal(Proximal(mu=1.0)(personal, view(anchor)), Proximal(mu=1.0)(at, view(anchor)))
    value, _ = dense(1.0, {"a": at["a"]}, {"a": anchor["a"]})
    assert float(Proximal(mu=1.0)({"a": at["a"]}, view(anchor))) == pytest.approx(value, rel=1e-12)
