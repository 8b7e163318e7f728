"""The forms by chunks are the rule: values, states and every gradient; hard keys, float32, how they may be called."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from remembering import BATCH, D_K, D_V, FORMS, HEADS, Form, Given, drawn, followed
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils.checkpoint import checkpoint

from cotune.core.seeds import torch_generator
from cotune.trainable.memory import blocks
from cotune.trainable.memory import chunkwise as form
from cotune.trainable.memory.chunkwise import chunked, kept_bytes, run, titans_chunked
from cotune.trainable.memory.lean import lean
from cotune.trainable.memory.rule import Rule, scan, titans

NAMES = ("q", "k", "v", "beta", "decay", "state")


@pytest.fixture(params=[32, 64])
def widest(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """What a CPU takes for a chunk, and what other devices do."""
    monkeypatch.setattr(blocks, "CPU_CHUNK", request.param)
    return int(request.param)


def everything(call: Callable[..., Any], given: Given, **kwargs: Any) -> dict[str, Tensor]:
    """Outputs, states, and the gradients of a random weighting of both."""
    inputs = followed(given)
    out, state = call(**inputs, **kwargs)
    g = torch_generator(99)
    weighted = [(x * torch.randn(x.shape, generator=g, dtype=torch.float64)).sum() for x in (out, state)]
    leaves = {name: x for name, x in inputs.items() if x is not None}
    gradients = torch.autograd.grad(weighted[0] + weighted[1], list(leaves.values()))
    return {"out": out.detach(), "last": state.detach()} | dict(zip(leaves, gradients, strict=True))


def assert_same(got: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float, case: object = "") -> None:
    assert got.keys() == expected.keys()
    for name, x in expected.items():
        assert got[name].dtype == x.dtype
        error = (got[name] - x).norm() / x.norm().clamp_min(1e-30)
        assert error <= tolerance, (case, name, float(error))


@pytest.mark.parametrize("tokens", [1, 2, 15, 16, 17, 64, 150])
@pytest.mark.parametrize("decays", [False, True])
def test_chunks_are_the_rule_in_values_states_and_all_gradients(tokens: int, decays: bool, widest: int) -> None:
    given = drawn(tokens, tokens, decays=decays)
    expected = everything(scan, given)
    for call in FORMS:
        for chunk in (1, 4, 16, 64):
            got = everything(call, given, chunk=chunk)
            assert_same(got, expected, 1e-12, (call.__name__, chunk, widest))


@pytest.mark.parametrize("rule", ["delta", "hebbian"])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("decays", [False, True])
def test_so_they_are_with_shared_states_rates_by_channel_and_no_error_term(
    rule: Rule, groups: int, by_channel: bool, decays: bool
) -> None:
    given = drawn(3, 37, decays=decays, groups=groups, by_channel=by_channel)
    expected = everything(scan, given, rule=rule)
    for call in FORMS:
        assert_same(everything(call, given, rule=rule, chunk=8), expected, 1e-12, call.__name__)


@pytest.mark.parametrize("call", FORMS)
def test_a_decay_of_nothing_one_and_almost_nothing_is_exact(call: Form) -> None:
    given = drawn(4, 40)
    decay = given["decay"]
    assert decay is not None
    decay[..., 3::7], decay[..., 5::7], decay[..., 6::7] = 0.0, 1.0, 1e-300
    assert_same(everything(call, given, chunk=16), everything(scan, given), 1e-12)


@pytest.mark.parametrize("call", FORMS)
def test_no_state_is_a_state_of_zeros(call: Form) -> None:
    given = drawn(5, 20)
    state = given.pop("state")
    assert state is not None
    out, last = call(**given, chunk=8)
    expected = scan(**given, state=torch.zeros_like(state))
    torch.testing.assert_close(out, expected[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(last, expected[1], rtol=1e-12, atol=1e-12)


def momentum_of(seed: int, tokens: int) -> tuple[Tensor, Tensor]:
    """(momentum, Z)."""
    g = torch_generator(seed)
    m = 0.8 * torch.rand(BATCH, HEADS, tokens, generator=g, dtype=torch.float64)
    return m, torch.randn(BATCH, HEADS, D_V, D_K, generator=g, dtype=torch.float64)


def pairs(call: Callable[..., Any]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Titans with its two states as one."""

    def joined(*, state: Tensor, change: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
        out, both = call(**given, state=(state, change))
        return out, torch.stack(both)

    return joined


@pytest.mark.parametrize("tokens", [1, 2, 15, 16, 17, 64, 150])
@pytest.mark.parametrize("masked", [False, True])
def test_momentum_by_chunks_is_its_rule_with_and_without_tokens_that_do_not_count(tokens: int, masked: bool) -> None:
    given = drawn(tokens, tokens, groups=2, by_channel=masked)
    decay = given["decay"]
    assert decay is not None
    given["decay"] = 1 - 0.3 * decay
    given["momentum"], given["change"] = momentum_of(tokens, tokens)
    valid = torch.rand(BATCH, tokens, generator=torch_generator(tokens)) > 0.4 if masked else None
    expected = everything(pairs(titans), given, valid=valid)
    for chunk in (1, 4, 16, 64):
        got = everything(pairs(titans_chunked), given, valid=valid, chunk=chunk)
        assert_same(got, expected, 1e-12, chunk)


@pytest.mark.parametrize("rule", ["delta", "hebbian"])
@pytest.mark.parametrize("call", FORMS)
def test_gradients_are_what_differences_show(call: Form, rule: Rule) -> None:
    given = followed(drawn(6, 5, groups=2, by_channel=True, batch=1))
    assert torch.autograd.gradcheck(lambda *x: call(*x, chunk=2, rule=rule), tuple(given.values()), fast_mode=True)


def test_gradients_of_momentum_are_what_differences_show() -> None:
    given, (momentum, change) = followed(drawn(6, 5)), momentum_of(6, 5)
    valid = torch.tensor([[True, False, True, True, True], [True, True, True, False, False]])

    def call(*x: Any) -> Any:
        q, k, v, beta, decay, s, m, z = x
        out, both = titans_chunked(q, k, v, beta, m, decay, (s, z), chunk=2, valid=valid)
        return out, *both

    inputs = (*given.values(), momentum.requires_grad_(), change.requires_grad_())
    assert torch.autograd.gradcheck(call, inputs, fast_mode=True)


def test_chunked_may_be_differentiated_twice_and_lean_refuses() -> None:
    given: Any = tuple(followed(drawn(7, 5, batch=1)).values())
    assert torch.autograd.gradgradcheck(partial(chunked, chunk=2), given, fast_mode=True)
    out, _ = lean(*given)
    (gradient, *_) = torch.autograd.grad(out.square().sum(), [x for x in given if x is not None], create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        gradient.sum().backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("call", FORMS)
def test_gradient_checkpointing_changes_no_bit(call: Form) -> None:
    given = drawn(21, 40, dtype=torch.float32)

    def checkpointed(**inputs: Any) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = checkpoint(call, **inputs, use_reentrant=False)
        return found

    plain, again = everything(call, given), everything(checkpointed, given)
    assert all(torch.equal(plain[name], again[name]) for name in plain)


@pytest.mark.parametrize("call", FORMS)
@pytest.mark.parametrize("mapped", [(0,), (1,), (2, 3), (4,), (5,), (0, 1, 2, 3, 4, 5)])
def test_function_transforms_see_through(call: Form, mapped: tuple[int, ...]) -> None:
    given = list(drawn(9, 7, groups=2).values())
    stacked: Any = [torch.stack([x, 0.9 * x, 0.7 * x]) if i in mapped else x for i, x in enumerate(given)]
    dims = tuple(0 if i in mapped else None for i in range(len(given)))

    def gradients(of: Callable[..., tuple[Tensor, Tensor]]) -> Any:
        def score(*x: Tensor) -> Tensor:
            out, state = of(*x)
            return out.sum() + state.square().sum()

        return torch.func.vmap(torch.func.grad(score, argnums=tuple(range(6))), in_dims=dims)(*stacked)

    for got, expected in zip(gradients(lambda *x: call(*x, chunk=3)), gradients(scan), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-11)
    values = torch.func.vmap(lambda *x: call(*x, chunk=3), in_dims=dims)(*stacked)
    for got, expected in zip(values, torch.func.vmap(scan, in_dims=dims)(*stacked), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("common", [0.9, 1.0])
@pytest.mark.parametrize("rate", [0.5, 1.0, 1.9])
@pytest.mark.parametrize("call", FORMS)
def test_parallel_keys_do_not_hurt_in_float32(call: Form, rate: float, common: float, widest: int) -> None:
    g = torch_generator(12)
    shared, own = torch.randn(1, 1, 1, 32, generator=g), torch.randn(1, 1, 512, 32, generator=g)
    key = normalize(common * normalize(shared, dim=-1) + (1 - common) * normalize(own, dim=-1), dim=-1)
    value, query = torch.randn(1, 1, 512, 32, generator=g), normalize(torch.randn(1, 1, 512, 32, generator=g), dim=-1)
    rates = torch.full((1, 1, 512), rate)
    exact, last = scan(query.double(), key.double(), value.double(), rates.double())
    out, state = call(query, key, value, rates)
    assert out.isfinite().all()
    assert (out - exact).norm() <= 5e-5 * exact.norm()
    assert (state - last).norm() <= 5e-5 * last.norm()


@pytest.mark.parametrize("call", [scan, run, *FORMS])
def test_shapes_alone_are_enough_on_the_meta_device(call: Form) -> None:
    given = followed({name: None if x is None else x.to("meta") for name, x in drawn(17, 70, groups=2).items()})
    out, state = call(**given)
    assert out.shape == (BATCH, 2 * HEADS, 70, D_V)
    assert state.shape == (BATCH, HEADS, D_V, D_K)
    (out.sum() + state.sum()).backward()  # type: ignore[no-untyped-call]


def test_shapes_alone_are_enough_for_momentum() -> None:
    given: Given = {name: x.to("meta") for name, x in drawn(17, 70).items()}
    momentum = given["decay"]
    state = given.pop("state")
    out, (s, z) = titans_chunked(**given, momentum=momentum, state=(state, state))
    assert (out.shape, s.shape, z.shape) == ((BATCH, HEADS, 70, D_V), *[(BATCH, HEADS, D_V, D_K)] * 2)


@pytest.mark.parametrize("call", [run, *FORMS])
def test_coarse_inputs_are_computed_in_float32_and_get_coarse_gradients(call: Form) -> None:
    given = followed(drawn(18, 40, dtype=torch.bfloat16))
    out, state = call(**given)
    assert (out.dtype, state.dtype) == (torch.float32, torch.float32)
    exact, _ = scan(**{name: x.detach().double() for name, x in given.items()})
    assert (out - exact).norm() <= 1e-5 * exact.norm()
    out.sum().backward()  # type: ignore[no-untyped-call]
    for x in given.values():
        assert x is not None
        assert x.grad is not None
        assert x.grad.dtype == torch.bfloat16


def test_run_takes_the_form_by_shapes_and_by_whether_a_gradient_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = list[str]()

    def noted(name: str, call: Form) -> Form:
        def noting(*x: Any) -> tuple[Tensor, Tensor]:
            taken.append(name)
            return call(*x)

        return noting

    for name in ("scan", "chunked", "lean"):
        monkeypatch.setattr(form, name, noted(name, getattr(form, name)))
    one, many = drawn(19, 1), drawn(19, 40)
    run(**followed(one))
    run(**followed(many))
    q, k, v = (many[name] for name in ("q", "k", "v"))
    monkeypatch.setattr(form, "LEAN_BYTES", kept_bytes(q, k, v) - 1)
    run(**followed(many))
    run(**many)
    with torch.no_grad():
        run(**followed(many))
    assert taken == ["scan", "chunked", "lean", "chunked", "chunked"]


def test_what_chunked_keeps_is_what_it_says_it_keeps() -> None:
    g = torch_generator(20)
    q, k, v = (torch.randn(1, heads, 256, 32, generator=g, requires_grad=True) for heads in (6, 3, 3))
    beta, kept = torch.rand(1, 3, 256, generator=g), dict[int, int]()

    def keep(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    inputs = {x.untyped_storage().data_ptr() for x in (q, k, v, beta)}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        out, _ = chunked(q, k, v, beta)
    held = sum(size for at, size in kept.items() if at not in inputs)
    assert 0.95 * held <= kept_bytes(q, k, v) <= 1.1 * held
    assert out.requires_grad
