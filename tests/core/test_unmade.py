"""Tensors that are made where they are used: every function gets the numbers, and no more of them than it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cotune.core import unmade
from cotune.core.errors import Code, CotuneError
from cotune.core.unmade import Unmade

X = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))


@dataclass
class Twice:
    """2 t + 1, which counts the rows that it is asked for."""

    like: Tensor
    asked: list[int] = field(default_factory=list)

    def part(self, rows: Tensor | None = None) -> Tensor:
        self.asked.append(len(self.like) if rows is None else len(rows))
        return 2 * (self.like if rows is None else self.like[rows]) + 1

    @property
    def whole(self) -> Tensor:
        return 2 * self.like + 1


def recipe(*shape: int, dtype: torch.dtype = torch.float32) -> Twice:
    return Twice(torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(dtype))


USES: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda w: functional.linear(X, w),
    "bias": lambda w: functional.linear(X, torch.ones(8, 8), w[0]),
    "addmm": lambda w: torch.addmm(w[0], X, w),
    "times": lambda w: w * X[0],
    "in front of": lambda w: X[0] * w,
    "matmul": lambda w: X @ w.mT,
    "norm": lambda w: functional.layer_norm(X, (8,), w[0], w[1]),
    "in a list": lambda w: torch.cat([w, X]),
    "method": lambda w: w.double().sum(),
    "twice": lambda w: w * w,
    "added to another": lambda w: torch.zeros(8, 8).add_(w),
    "below Python": lambda w: torch.ops.aten.mul(w, X[0]),
    "another dtype": lambda w: w.to(torch.bfloat16) + 1,
    "another dtype and back": lambda w: w.to(torch.bfloat16).to(torch.float32),
}


@pytest.mark.parametrize("use", USES)
def test_every_function_is_given_the_numbers_and_gives_plain_ones(use: str) -> None:
    made = recipe(8, 8)
    got = USES[use](Unmade(made))
    assert type(got + 0) is Tensor
    assert torch.equal(got, USES[use](made.whole))


def test_what_can_be_told_without_numbers_makes_none() -> None:
    made = recipe(8, 3)
    tensor = Unmade(made, torch.float16)
    assert (tuple(tensor.shape), tensor.dtype, tensor.device.type, tensor.dim()) == ((8, 3), torch.float16, "cpu", 2)
    assert (len(tensor), tensor.numel(), tensor.size(1), tensor.requires_grad) == (8, 24, 3, False)
    assert tensor.is_floating_point()
    assert tensor.to(torch.float16) is tensor
    assert made.asked == []


@pytest.mark.parametrize("padding", [None, 1])
def test_an_embedding_makes_the_rows_that_are_looked_up(padding: int | None) -> None:
    ids, made = torch.tensor([[7, 1, 7], [90, 1, 7]]), recipe(100, 4)
    got = functional.embedding(ids, Unmade(made), padding)
    assert torch.equal(got, functional.embedding(ids, made.whole))
    assert made.asked == [3]
    half = functional.embedding(ids, Unmade(made, torch.bfloat16))
    assert torch.equal(half, functional.embedding(ids, made.whole.bfloat16()))
    assert max(made.asked) == 3


def test_an_embedding_whose_rows_are_mostly_looked_up_is_made_whole() -> None:
    ids, made = torch.arange(9), recipe(10, 4)
    assert torch.equal(functional.embedding(ids, Unmade(made)), made.whole[:9])
    assert made.asked == [10]


@pytest.mark.parametrize("wrong", [-1, 100])
def test_a_row_that_is_not_there_is_the_error_that_it_always_is(wrong: int) -> None:
    with pytest.raises(IndexError):
        functional.embedding(torch.tensor([3, wrong]), Unmade(recipe(100, 4)))


def test_a_head_over_a_vocabulary_runs_in_blocks_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unmade, "BLOCK", 256)
    made, x = recipe(1000, 8), torch.randn(2, 5, 8)
    bias = torch.arange(1000.0)
    for given in (None, bias):
        made.asked.clear()
        got = functional.linear(x, Unmade(made), given)
        wide = x.double() @ made.whole.double().mT + (0 if given is None else given.double())
        torch.testing.assert_close(got.double(), wide, rtol=1e-5, atol=1e-5)
        assert sum(made.asked) == 1000
        assert max(made.asked) == 32


@pytest.mark.parametrize("shape", [(8 * 2**6, 2**6), (7 * 2**10, 2**10)])
def test_a_small_head_and_a_layer_of_any_size_run_in_one_piece(shape: tuple[int, int]) -> None:
    made, x = recipe(*shape), torch.randn(3, shape[1])
    assert made.like.numel() > unmade.BLOCK or shape[0] >= unmade.SLENDER * shape[1]
    assert torch.equal(functional.linear(x, Unmade(made)), functional.linear(x, made.whole))
    assert made.asked == [shape[0]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_another_dtype_is_one_rounding_of_numbers_that_are_never_all_there(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(unmade, "PIECE", 100)
    made = recipe(70, 9)
    assert torch.equal(Unmade(made, dtype).make(), made.whole.to(dtype))
    assert max(made.asked) == 11
    rounded = Unmade(made).to(dtype).to(torch.float32)
    assert torch.equal(rounded, made.whole.to(dtype).float())


def test_a_module_runs_with_it_in_a_parameter_s_place_also_under_a_mode() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    made, layer = recipe(6, 8), nn.Linear(8, 6)
    layer._parameters["weight"] = Unmade(made)  # type: ignore[assignment]
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        got = layer(X)
    assert torch.equal(got, functional.linear(X, made.whole, layer.bias))
    assert counter.get_total_flops() == 2 * 5 * 6 * 8


WRITES: dict[str, Callable[[Tensor], object]] = {
    "add_": lambda w: w.add_(1),
    "+=": lambda w: w.__iadd__(1),
    "[0] =": lambda w: w.__setitem__(0, 1.0),
    "out": lambda w: torch.add(X, 1, out=w),
    "data": lambda w: setattr(w, "data", X),
}


@pytest.mark.parametrize("write", WRITES)
def test_it_is_not_written_to(write: str) -> None:
    with pytest.raises(CotuneError) as caught:
        WRITES[write](Unmade(recipe(5, 8)))
    assert caught.value.code is Code.CONFLICT
