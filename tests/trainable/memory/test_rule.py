"""The memory's rule against loops over single heads, and against what it says it is: a gradient step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from cotune.core.errors import CotuneError
from cotune.core.seeds import torch_generator
from cotune.trainable.memory.rule import Rule, scan, titans

BATCH, HEADS, D_K, D_V = 2, 2, 5, 3


def drawn(seed: int, tokens: int, groups: int = 1, by_channel: bool = False) -> dict[str, Any]:
    """Random inputs with unit keys."""
    g = torch_generator(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(BATCH, *shape, generator=g, dtype=torch.float64)

    def share(*shape: int) -> Tensor:
        return torch.rand(BATCH, *shape, generator=g, dtype=torch.float64)

    return {
        "q": normal(HEADS * groups, tokens, D_K),
        "k": normalize(normal(HEADS, tokens, D_K), dim=-1),
        "v": normal(HEADS, tokens, D_V),
        "beta": share(HEADS, tokens, D_K) if by_channel else share(HEADS, tokens),
        "decay": share(HEADS, tokens),
        "state": normal(HEADS, D_V, D_K),
    }


def by_hand(given: dict[str, Tensor], rule: Rule) -> tuple[Tensor, Tensor]:
    """Every query head on its own, every token on its own, every matrix written out."""
    q, k = given["q"], given["k"]
    groups = q.shape[1] // k.shape[1]
    out, last = torch.zeros(*q.shape[:3], D_V, dtype=torch.float64), torch.zeros_like(given["state"])
    for b in range(BATCH):
        for head in range(q.shape[1]):
            h = head // groups
            s = given["state"][b, h].clone()
            for t in range(k.shape[2]):
                s = given["decay"][b, h, t] * s
                error = given["v"][b, h, t] - (s @ k[b, h, t] if rule == "delta" else 0)
                s = s + torch.outer(error, given["beta"][b, h, t] * k[b, h, t])
                out[b, head, t] = s @ q[b, head, t]
            last[b, h] = s
    return out, last


@pytest.mark.parametrize("rule", ["delta", "hebbian"])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("by_channel", [False, True])
def test_scan_is_the_rule_head_by_head(rule: Rule, groups: int, by_channel: bool) -> None:
    given = drawn(0, 7, groups, by_channel)
    out, state = scan(**given, rule=rule)
    expected_out, expected_state = by_hand(given, rule)
    torch.testing.assert_close(out, expected_out, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(state, expected_state, rtol=1e-13, atol=1e-13)


def test_a_token_is_one_gradient_step_on_half_the_squared_error() -> None:
    given = drawn(1, 1)
    start = given["state"].clone().requires_grad_()
    error = (start @ given["k"].mT)[..., 0] - given["v"][:, :, 0]
    (gradient,) = torch.autograd.grad(error.square().sum() / 2, start)
    _, state = scan(given["q"], given["k"], given["v"], given["beta"], state=given["state"])
    step = given["state"] - given["beta"][..., None] * gradient
    torch.testing.assert_close(state, step, rtol=1e-14, atol=1e-14)


def test_the_error_is_taken_after_the_decay() -> None:
    given = drawn(2, 1)
    given["decay"] = torch.full_like(given["decay"], 0.5)
    given["v"] = 0.5 * given["state"] @ given["k"][:, :, 0, :, None]  # what the decayed state already says
    given["v"] = given["v"][..., 0][:, :, None]
    _, state = scan(**given)
    torch.testing.assert_close(state, 0.5 * given["state"], rtol=0, atol=1e-15)


def test_titans_takes_the_error_before_the_decay() -> None:
    given = drawn(2, 1)
    s, z = given.pop("state"), torch.zeros(BATCH, HEADS, D_V, D_K, dtype=torch.float64)
    given["v"] = (s @ given["k"][:, :, 0, :, None])[..., 0][:, :, None]
    _, (state, change) = titans(**given, momentum=torch.ones_like(given["decay"]), state=(s, z))
    torch.testing.assert_close(state, given["decay"][..., None] * s, rtol=0, atol=1e-15)
    assert change.abs().max() < 1e-15


def test_titans_is_its_rule_and_an_invalid_token_is_as_if_it_were_not_there() -> None:
    given, g = drawn(3, 9, 2), torch_generator(4)
    momentum = torch.rand(BATCH, HEADS, 9, generator=g, dtype=torch.float64)
    z0 = torch.randn(BATCH, HEADS, D_V, D_K, generator=g, dtype=torch.float64)
    s0 = given.pop("state")
    valid = torch.rand(BATCH, 9, generator=g) > 0.4
    out, (state, change) = titans(**given, momentum=momentum, state=(s0, z0), valid=valid)
    for b in range(BATCH):
        for head in range(2 * HEADS):
            h = head // 2
            s, z = s0[b, h], z0[b, h]
            for t in range(9):
                k, w = given["k"][b, h, t], given["beta"][b, h, t] * given["k"][b, h, t]
                if valid[b, t]:
                    z = momentum[b, h, t] * z + torch.outer(given["v"][b, h, t] - s @ k, w)
                    s = given["decay"][b, h, t] * s + z
                torch.testing.assert_close(out[b, head, t], s @ given["q"][b, head, t], rtol=1e-13, atol=1e-13)
            torch.testing.assert_close(state[b, h], s, rtol=1e-13, atol=1e-13)
            torch.testing.assert_close(change[b, h], z, rtol=1e-13, atol=1e-13)


def test_without_momentum_and_decay_titans_is_the_delta_rule() -> None:
    given = drawn(5, 8)
    del given["decay"]
    state = given.pop("state")
    out, (last, _) = titans(
        **given, momentum=torch.zeros(BATCH, HEADS, 8, dtype=torch.float64), state=(state, torch.zeros_like(state))
    )
    expected_out, expected = scan(**given, state=state)
    torch.testing.assert_close(out, expected_out, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(last, expected, rtol=1e-13, atol=1e-13)


def test_a_token_adds_at_most_its_rate_times_its_value_to_the_norm() -> None:
    given = drawn(6, 1)
    for seed in range(40):
        token = drawn(100 + seed, 1)
        rate = 2 * token["beta"]  # up to the edge of what is stable
        before = torch.linalg.matrix_norm(given["state"], ord=2)
        _, state = scan(token["q"], token["k"], token["v"], rate, state=given["state"])
        bound = before + rate[..., 0] * token["v"].norm(dim=-1)[..., 0]
        assert (torch.linalg.matrix_norm(state, ord=2) <= bound + 1e-12).all()
        given["state"] = state


def test_beyond_the_edge_of_what_is_stable_the_state_grows() -> None:
    given = {name: x[:, :, :1].expand(-1, -1, 30, *x.shape[3:]) for name, x in drawn(7, 1).items() if name != "state"}
    start = drawn(7, 1)["state"]
    norms = []
    for rate in (1.9, 2.1):
        beta = torch.full_like(given["beta"], rate)
        _, state = scan(given["q"], given["k"], 0 * given["v"], beta, state=start)
        norms.append(state.norm() / start.norm())
    assert norms[0] < 1
    assert norms[1] > 5


@pytest.mark.parametrize(
    ("given", "computed"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_state_and_output_are_float32_or_better(given: torch.dtype, computed: torch.dtype) -> None:
    inputs: dict[str, Any] = {name: x.to(given) for name, x in drawn(8, 4).items()}
    out, state = scan(**inputs)
    assert (out.dtype, state.dtype) == (computed, computed)
    exact = scan(**{name: x.double() for name, x in inputs.items()})
    assert (out - exact[0]).abs().max() < 1e-6, "the arithmetic is float32 where the inputs are coarser"
    with_z = (inputs.pop("state"),) * 2
    out, (state, change) = titans(**inputs, momentum=inputs["decay"], state=with_z)
    assert {out.dtype, state.dtype, change.dtype} == {computed}


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("q", (BATCH, 3, 4, D_K)),
        ("q", (BATCH, HEADS, 3, D_K)),
        ("k", (BATCH, HEADS, 0, D_K)),
        ("v", (BATCH, 1, 4, D_V)),
        ("beta", (BATCH, HEADS, 4, D_V)),
        ("decay", (BATCH, HEADS, 4, 1)),
        ("state", (BATCH, HEADS, D_K, D_V)),
    ],
)
def test_a_shape_that_does_not_fit_is_named(name: str, shape: tuple[int, ...]) -> None:
    given = drawn(9, 4) | {name: torch.zeros(shape, dtype=torch.float64)}
    with pytest.raises(CotuneError, match=rf"E_SHAPE.*· {name} ·"):
        scan(**given)


@pytest.mark.parametrize("name", ["momentum", "Z", "valid"])
def test_a_shape_of_titans_that_does_not_fit_is_named(name: str) -> None:
    given = drawn(9, 4)
    state, momentum = given.pop("state"), given["decay"]
    z, valid = state, torch.ones(BATCH, 4, dtype=torch.bool)
    if name == "momentum":
        momentum = momentum[:, :1]
    elif name == "Z":
        z = z[:1]
    else:
        valid = valid[:, 1:]
    with pytest.raises(CotuneError, match=rf"E_SHAPE.*· {name} ·"):
        titans(**given, momentum=momentum, state=(state, z), valid=valid)


def test_the_definition_has_the_gradient_that_differences_show() -> None:
    given = [x.requires_grad_() for x in drawn(10, 3, 2, by_channel=True).values()]
    assert torch.autograd.gradcheck(scan, given)
