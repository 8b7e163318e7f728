"""AdamW and SGD against torch's own, and what every first-order step promises about its gradient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cotune.core.contracts import Optimizer
from cotune.core.errors import Code, CotuneError
from cotune.core.seeds import Seeds, torch_generator
from cotune.core.spec import Entry, Role, Scope, Spec
from cotune.core.state import Personal, Theta, digest
from cotune.core.view import View
from cotune.optim import SGD, AdamW
from cotune.optim.adamw import Moments
from cotune.optim.gradient import gradient

SPEC = Spec(
    (
        Entry("first", (3, 5), Role.FULL, "net"),
        Entry("bias", (3,), Role.FULL, "net"),
        Entry("last", (1, 3), Role.HEAD, "head", shared=False),
    )
)


@dataclass(frozen=True)
class Net:
    """A network of two layers on a few rows: squared errors (rows,) as a function of its weights."""

    inputs: Tensor
    targets: Tensor
    portion: int = 100

    def __call__(self, tensors: Mapping[str, Tensor]) -> Tensor:
        hidden = torch.tanh(self.inputs @ tensors["first"].T + tensors["bias"])
        return ((hidden @ tensors["last"].T).squeeze(1) - self.targets).square()

    def microbatches(self) -> Iterator[Net]:
        for start in range(0, self.rows, self.portion):
            part = slice(start, start + self.portion)
            yield Net(self.inputs[part], self.targets[part])

    @property
    def rows(self) -> int:
        return len(self.targets)


def draw(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch_generator(seed), dtype=torch.float64).to(dtype)


def net(dtype: torch.dtype = torch.float64, portion: int = 100) -> Net:
    return Net(draw(1, 7, 5, dtype=dtype), draw(2, 7, dtype=dtype), portion)


def view(dtype: torch.dtype = torch.float64, train: tuple[str, ...] = SPEC.names) -> View:
    theta = Theta({name: draw(i + 3, *SPEC[name].shape, dtype=dtype) for i, name in enumerate(SPEC.shared)})
    personal = Personal({"last": draw(9, 1, 3, dtype=dtype)})
    up = tuple(name for name in train if SPEC[name].shared)
    return View(1, "ada", theta, personal, {}, theta, {}, Seeds(), SPEC, Scope(train, up, up))


def steps(part: Optimizer, here: View, objective: Net, count: int) -> View:
    here = part.begin(here, objective)
    state = part.init(here)
    for _ in range(count):
        here, state, *_ = part.step(here, state, objective)
    return here


def by_torch(
    kind: type[torch.optim.Optimizer], here: View, objective: Net, count: int, **values: object
) -> dict[str, Tensor]:
    """The same steps by a torch optimizer, gradients clipped by hand."""
    weights = {name: tensor.clone().requires_grad_() for name, tensor in here.tensors.items()}
    optimizer = kind(weights.values(), **values)  # type: ignore[arg-type]
    for _ in range(count):
        optimizer.zero_grad()
        objective(weights).mean().backward()  # type: ignore[no-untyped-call]
        norm = sum(float(weight.grad.double().square().sum()) for weight in weights.values() if weight.grad is not None)
        if here.clip is not None and norm**0.5 > here.clip:
            for weight in weights.values():
                assert weight.grad is not None
                weight.grad *= here.clip / norm**0.5
        optimizer.step()
    return {name: weight.detach() for name, weight in weights.items()}


def assert_close(got: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float) -> None:
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        error = float((got[name].double() - tensor.double()).norm() / tensor.double().norm())
        assert error <= tolerance, (name, error)


PRECISION = [(torch.float64, 1e-12), (torch.float32, 2e-6)]
CLIPS = [None, 0.05, 1e6]


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISION)
@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize(
    "part",
    [
        AdamW(lr=0.02),
        AdamW(lr=0.02, betas=(0.8, 0.9), epsilon=1e-3, weight_decay=0.1),
        AdamW(lr=0.01, betas=(0.0, 0.0), epsilon=1.0, weight_decay=0.5),
    ],
)
def test_adamw_is_that_of_torch(dtype: torch.dtype, tolerance: float, clip: float | None, part: AdamW) -> None:
    here = replace(view(dtype), clip=clip)
    values = {"lr": part.lr, "betas": part.betas, "eps": part.epsilon, "weight_decay": part.weight_decay}
    expected = by_torch(torch.optim.AdamW, here, net(dtype), 12, **values)
    after = steps(part, here, net(dtype), 12)
    assert_close(after.tensors, expected, tolerance)
    assert all(tensor.dtype is dtype for tensor in after.tensors.values())


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISION)
@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_gradient_descent_is_that_of_torch(
    dtype: torch.dtype, tolerance: float, clip: float | None, weight_decay: float
) -> None:
    here = replace(view(dtype), clip=clip)
    expected = by_torch(torch.optim.SGD, here, net(dtype), 12, lr=0.1, weight_decay=weight_decay)
    assert_close(steps(SGD(lr=0.1, weight_decay=weight_decay), here, net(dtype), 12).tensors, expected, tolerance)


def test_the_control_weight_decay_counts_in_the_comparison() -> None:
    plain = steps(SGD(lr=0.1), view(), net(), 12)
    with pytest.raises(AssertionError):
        assert_close(steps(SGD(lr=0.1, weight_decay=0.3), view(), net(), 12).tensors, plain.tensors, 1e-3)


@pytest.mark.parametrize("part", [SGD(lr=0.1, weight_decay=0.2), AdamW(lr=0.1, weight_decay=0.2)])
def test_the_schedule_multiplies_the_learning_rate(part: Optimizer) -> None:
    half = steps(part, replace(view(), rate=0.5), net(), 3)
    assert_close(half.tensors, steps(part.model_copy(update={"lr": 0.05}), view(), net(), 3).tensors, 1e-14)


PARTS = [SGD(lr=0.0), SGD(lr=0.0, weight_decay=0.5), AdamW(lr=0.0), AdamW(lr=0.0, weight_decay=0.5)]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_learning_rate_of_zero_changes_no_bit(part: Optimizer, dtype: torch.dtype) -> None:
    here = view(dtype)
    zeros = replace(here, theta=here.theta.replace({"bias": torch.zeros(3, dtype=dtype)}))
    for start in (here, zeros):
        assert digest(steps(part, start, net(dtype), 5).tensors) == digest(start.tensors)
    assert digest(steps(part.model_copy(update={"lr": 0.1}), here, net(dtype), 5).tensors) != digest(here.tensors)


def of_state(state: object) -> str:
    if not isinstance(state, Moments):
        assert state is None
        return ""
    rows = {f"{which}/{name}": tensor for which in "mv" for name, tensor in getattr(state, which).items()}
    return f"{state.count} {digest(rows)}"


@pytest.mark.parametrize("part", [SGD(lr=0.1), AdamW(lr=0.1)])
def test_a_step_leaves_its_inputs_and_is_the_same_again(part: Optimizer) -> None:
    here, objective = view(), net(portion=3)
    state = part.init(here)
    once = part.step(here, state, objective)
    before = digest(here.tensors), of_state(state), digest(once.view.tensors), of_state(once.state)
    again = part.step(here, state, objective)
    part.step(once.view, once.state, objective)
    assert (digest(here.tensors), of_state(state), digest(once.view.tensors), of_state(once.state)) == before
    assert (digest(again.view.tensors), of_state(again.state)) == before[2:]
    assert all(not tensor.requires_grad for tensor in once.view.tensors.values())
    assert (here.step, once.view.step) == (0, 1)


@pytest.mark.parametrize("part", [SGD(lr=0.1), AdamW(lr=0.1)])
def test_only_what_is_in_scope_moves(part: Optimizer) -> None:
    here = view(train=("bias", "last"))
    after = part.step(here, part.init(here), Fixed(here.theta["first"], net())).view
    moved = {name for name, tensor in after.tensors.items() if not torch.equal(tensor, here.tensors[name])}
    assert moved == {"bias", "last"}
    assert after.anchor is here.anchor


@dataclass(frozen=True)
class Fixed:
    """A net whose first layer is not trained and keeps the value of the view."""

    first: Tensor
    inner: Net

    def __call__(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return self.inner({"first": self.first, **tensors})

    def microbatches(self) -> Iterator[Fixed]:
        return (Fixed(self.first, portion) for portion in self.inner.microbatches())

    @property
    def rows(self) -> int:
        return self.inner.rows


# ---- the gradient


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 1e-6)])
@pytest.mark.parametrize("portion", [1, 2, 3, 7])
def test_accumulation_changes_memory_and_not_the_gradient(dtype: torch.dtype, tolerance: float, portion: int) -> None:
    whole, loss = gradient(view(dtype), net(dtype))
    parts, sum_of_losses = gradient(view(dtype), net(dtype, portion))
    assert_close(parts, whole, tolerance)
    assert float(sum_of_losses) == pytest.approx(float(loss), rel=tolerance)


def test_the_gradient_is_that_of_the_mean_loss_by_finite_differences() -> None:
    here, objective = view(), net()
    grads, loss = gradient(here, objective)
    assert float(loss) == pytest.approx(float(objective(here.tensors).mean()), rel=1e-14)
    for name, grad in grads.items():
        for place in range(grad.numel()):
            shifted = []
            for step in (1e-6, -1e-6):
                moved = here.tensors[name].clone()
                moved.view(-1)[place] += step
                shifted.append(float(objective({**here.tensors, name: moved}).mean()))
            assert float(grad.view(-1)[place]) == pytest.approx((shifted[0] - shifted[1]) / 2e-6, abs=1e-7)


@given(st.floats(1e-4, 10.0))
def test_a_clipped_gradient_has_the_norm_asked_for_and_the_same_direction(clip: float) -> None:
    free, loss = gradient(view(), net())
    clipped, same = gradient(replace(view(), clip=clip), net())
    norm = float(torch.cat([grad.flatten() for grad in free.values()]).norm())
    factor = min(1.0, clip / norm)
    for name, grad in free.items():
        torch.testing.assert_close(clipped[name], grad * factor, rtol=1e-12, atol=0)
    assert float(loss) == float(same)


@dataclass(frozen=True)
class Custom:
    """One row whose loss is given by a word."""

    word: str

    def __call__(self, tensors: Mapping[str, Tensor]) -> Tensor:
        bias = tensors["bias"]
        losses = {
            "nan": bias.sum() * float("nan"),
            "inf": bias.sum() + float("inf"),
            "overflow": (bias * 1e30).square().sum().float(),
            "infinite slope": (bias - bias.detach()).square().sum().sqrt(),
            "one name": bias.sum(),
            "no name": torch.zeros(()),
            "detached": bias.detach().sum(),
        }
        return losses[self.word].reshape(1)

    def microbatches(self) -> Iterator[Custom]:
        yield self

    @property
    def rows(self) -> int:
        return 1


@pytest.mark.parametrize("part", [SGD(lr=0.1), AdamW(lr=0.1)])
@pytest.mark.parametrize(
    ("word", "missing"), [("one name", 2), ("no name", 3), ("detached", 3)], ids=["some", "none", "all detached"]
)
def test_a_tensor_that_the_loss_does_not_reach_is_refused_by_name(part: Optimizer, word: str, missing: int) -> None:
    here = view()
    with pytest.raises(CotuneError, match=f"{missing} trained tensors do not reach the loss") as caught:
        part.step(here, part.init(here), Custom(word))
    assert caught.value.code is Code.CONFLICT
    assert "first" in str(caught.value)


@pytest.mark.parametrize("part", [SGD(lr=0.1), AdamW(lr=0.1)])
@pytest.mark.parametrize("word", ["nan", "inf", "overflow", "infinite slope"])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_loss_or_gradient_that_is_not_finite_is_refused_with_the_place(
    part: Optimizer, word: str, clip: float | None
) -> None:
    here = replace(view(torch.float32, train=("bias",)), clip=clip, step=4)
    with pytest.raises(CotuneError, match="client ada, round 1, step 5") as caught:
        part.step(here, part.init(here), Custom(word))
    assert caught.value.code is Code.NONFINITE
