"""What a stream relies on: any split, pads without a trace, rows on their own, states that are passed on and cut."""

from __future__ import annotations

import pytest
import torch
from remembering import BATCH, D_K, D_V, FORMS, HEADS, Form, Given, drawn, followed
from torch import Tensor

from cotune.core.seeds import torch_generator
from cotune.trainable.memory.chunkwise import chunked, run, titans_chunked
from cotune.trainable.memory.lean import lean
from cotune.trainable.memory.rule import scan


def momentum_of(seed: int, tokens: int) -> tuple[Tensor, Tensor]:
    """(momentum, Z)."""
    g = torch_generator(seed)
    m = 0.8 * torch.rand(BATCH, HEADS, tokens, generator=g, dtype=torch.float64)
    return m, torch.randn(BATCH, HEADS, D_V, D_K, generator=g, dtype=torch.float64)


def test_a_token_that_does_not_count_changes_neither_state_whatever_it_holds() -> None:
    given, (momentum, change) = drawn(8, 30), momentum_of(8, 30)
    state = given.pop("state")
    valid = torch.rand(BATCH, 30, generator=torch_generator(8)) > 0.5
    other: Given = {name: None if x is None else x.clone() for name, x in given.items()} | {
        "momentum": momentum.clone()
    }
    for name, x in other.items():
        if x is not None and name != "q":
            x.transpose(1, 2)[~valid] = 0.77
    out, both = titans_chunked(**given, momentum=momentum, state=(state, change), valid=valid, chunk=8)
    again, after = titans_chunked(**other, state=(state, change), valid=valid, chunk=8)
    real = valid[:, None].expand(out.shape[:3])
    assert torch.equal(out[real], again[real])
    assert torch.equal(both[0], after[0])
    assert torch.equal(both[1], after[1])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("cuts", [(1,) * 50, (7, 1, 42), (17, 16, 17), (49, 1), (32, 18)])
def test_any_split_of_a_stream_gives_the_same_reads_and_state(
    dtype: torch.dtype, tolerance: float, cuts: tuple[int, ...]
) -> None:
    given = drawn(10, 50, dtype=dtype)
    for call in (run, chunked, lean, scan):
        at, reads, state = 0, [], given["state"]
        for size in cuts:
            part = {name: x[:, :, at : at + size] for name, x in given.items() if name != "state" and x is not None}
            out, state = call(**part, state=state)
            reads.append(out)
            at += size
        expected, last = call(**given)
        assert state is not None
        assert (torch.cat(reads, 2) - expected).norm() <= tolerance * expected.norm()
        assert (state - last).norm() <= tolerance * last.norm()


def test_any_split_of_a_stream_with_momentum_gives_the_same_reads_and_states() -> None:
    given, (momentum, change) = drawn(11, 50), momentum_of(11, 50)
    state = given.pop("state")
    whole, ends = titans_chunked(**given, momentum=momentum, state=(state, change), chunk=16)
    for cuts in ((1,) * 50, (3, 30, 17)):
        at, reads, both = 0, [], (state, change)
        for size in cuts:
            part = {name: x[:, :, at : at + size] for name, x in given.items() if x is not None}
            out, both = titans_chunked(**part, momentum=momentum[:, :, at : at + size], state=both, chunk=16)
            reads.append(out)
            at += size
        torch.testing.assert_close(torch.cat(reads, 2), whole, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(torch.stack(both), torch.stack(ends), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("call", [scan, *FORMS])
@pytest.mark.parametrize("decays", [False, True])
@pytest.mark.parametrize("where", ["left", "right", "inside"])
def test_a_pad_leaves_no_trace(call: Form, decays: bool, where: str) -> None:
    given = drawn(13, 40, decays=decays, dtype=torch.float32)
    real = torch.ones(40, dtype=torch.bool)
    real[{"left": slice(0, 17), "right": slice(37, 40), "inside": slice(11, 29, 2)}[where]] = False
    reads = []
    for content in (0.0, 0.7, -123.0):
        padded = {name: None if x is None else x.clone() for name, x in given.items()}
        for name, x in padded.items():
            if x is not None and name != "state":
                x[:, :, ~real] = {"beta": 0.0, "decay": 1.0}.get(name, content)
        reads.append(call(**padded))
    for out, state in reads[1:]:
        assert torch.equal(out[:, :, real], reads[0][0][:, :, real])
        assert torch.equal(state, reads[0][1])
    kept = {name: x if x is None or name == "state" else x[:, :, real] for name, x in given.items()}
    out, state = call(**kept)
    torch.testing.assert_close(reads[0][0][:, :, real], out, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(reads[0][1], state, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("call", FORMS)
def test_a_row_is_the_same_to_the_bit_beside_any_others(call: Form) -> None:
    given = drawn(14, 40, batch=3, dtype=torch.float32)
    other = {name: None if x is None else x.clone() for name, x in given.items()}
    for x in other.values():
        assert x is not None
        x[[0, 2]] = 0.3
    (out, state), (again, after) = call(**given), call(**other)
    assert torch.equal(out[1], again[1])
    assert torch.equal(state[1], after[1])
    alone = call(**{name: None if x is None else x[1:2] for name, x in given.items()})
    torch.testing.assert_close(alone[0], out[1:2], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("call", [scan, run, *FORMS])
def test_nothing_given_is_written_to_and_nothing_returned_is_given(call: Form) -> None:
    given = followed(drawn(15, 40, groups=2))
    before = {name: None if x is None else x.detach().clone() for name, x in given.items()}
    out, state = call(**given)
    (out.sum() + state.sum()).backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for x in call(**given):
            x.fill_(7.0)
    for name, x in given.items():
        expected = before[name]
        assert x is not None
        assert expected is not None
        assert torch.equal(x, expected)


@pytest.mark.parametrize("call", [run, *FORMS])
def test_a_stream_trains_in_segments_and_the_gradient_is_cut_where_the_state_is_detached(call: Form) -> None:
    given = {name: x for name, x in drawn(16, 100).items() if name != "state"}
    rates = given.pop("beta")
    assert rates is not None
    weight = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer, state = torch.optim.SGD([weight], lr=0.1), torch.zeros(BATCH, HEADS, D_V, D_K, dtype=torch.float64)
    for i in range(5):
        at = slice(20 * i, 20 * i + 20)
        part = {name: x[:, :, at] for name, x in given.items() if x is not None}
        before = state.detach()
        out, state = call(**part, beta=rates[:, :, at] * weight.sigmoid(), state=before)
        optimizer.zero_grad()
        out.square().mean().backward()  # type: ignore[no-untyped-call]
        assert weight.grad is not None
        constant, _ = scan(**part, beta=rates[:, :, at] * weight.sigmoid(), state=before)
        (expected,) = torch.autograd.grad(constant.square().mean(), weight)
        torch.testing.assert_close(weight.grad, expected, rtol=1e-10, atol=0)
        optimizer.step()
    at = slice(0, 20)
    first = {name: x[:, :, at] for name, x in given.items() if x is not None}
    second = {name: x[:, :, 20:40] for name, x in given.items() if x is not None}
    _, state = call(**first, beta=rates[:, :, at] * weight.sigmoid())
    gradients = list[Tensor]()
    for passed in (state, state.detach()):
        out, _ = call(**second, beta=rates[:, :, 20:40] * weight.sigmoid(), state=passed)
        gradients += torch.autograd.grad(out.square().mean(), weight, retain_graph=True)
    assert not torch.allclose(gradients[0], gradients[1], rtol=1e-3), (
        "the state does carry a gradient where it is not cut"
    )
