"""A client's side of ZOReplay: zeroth-order steps along the directions that the server issued, as scalars.

| key of the round's config | what |
|---|---|
| `zo-seed` | what this node's directions of this round follow from |
| `zo-steps` | how many steps |
| `zo-lr`, `zo-eps` | the learning rate; how far the model is moved to look |
| `zo-directions` | how many ways a step looks |
| `zo-difference` | `central`: on both sides; `forward`: ahead, and once a step at the model itself |
| `zo-direction` | `sign` or `rank1` |
| `zo-largest` | a slope beyond it is cut to it; left out for no limit |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from flwr.app import ArrayRecord
from torch import Tensor, nn

from cotune.core.errors import Code, CotuneError
from cotune.core.part import resolve
from cotune.core.seeds import Seeds
from cotune.core.spec import Scope
from cotune.core.state import Personal, Theta
from cotune.core.view import NamedTensors, View
from cotune.flower.strategy.arrays import record_of, tensors_of
from cotune.flower.strategy.table import parameters, plain
from cotune.optim import ZO
from cotune.wire import ScalarsUplink, dtype_name

SEED, STEPS = "zo-seed", "zo-steps"
FIELDS: Mapping[str, str] = {
    "lr": "zo-lr",
    "mu": "zo-eps",
    "directions": "zo-directions",
    "difference": "zo-difference",
    "direction": "zo-direction",
    "largest": "zo-largest",
}
UPLINK = ScalarsUplink()
B = TypeVar("B")


def optimizer_of(config: Mapping[str, Any]) -> ZO:
    """The optimizer that a round's config describes.

    Raises:
        CotuneError: E_CONFIG where it does not; E_CONFLICT for directions that differ between machines.
    """
    table = {field: config[key] for field, key in FIELDS.items() if key in config}
    part = resolve("config", {ZO.kind: ZO}, {"kind": ZO.kind, **table})
    assert isinstance(part, ZO)
    part.direction.check_exact("zo-direction")
    return part


def zo_steps(
    loss: Callable[[NamedTensors, B], Tensor],
    tensors: ArrayRecord | NamedTensors,
    config: Mapping[str, Any],
    batches: Iterable[B],
    *,
    device: str = "cpu",
) -> tuple[ArrayRecord, dict[str, Tensor]]:
    """The scalars of a round's steps θ ← θ − lr / P · Σ g z, as the server replays them, and θ after them.

    Args:
        loss: of the tensors, by the names they came down with, and a batch: the mean, or one number a row. `model_at`
            runs a model at them. Dropout would hide a slope of this size: put the model in `eval()`.
        tensors: the arrays of the round, all of them, float32.
        config: of the round.
        batches: one a step; more are not looked at.
        device: where the model is.

    Raises:
        CotuneError: E_CONFIG for a round without steps to take; E_COUNT for fewer batches than steps; E_NONFINITE where
            no loss is; E_SCALAR for steps that the server would refuse.
    """
    optimizer, (seed, steps) = optimizer_of(config), _issued(config)
    named = tensors_of(tensors) if isinstance(tensors, ArrayRecord) else dict(tensors)
    spec = plain({name: (dtype_name(tensor.dtype), tuple(tensor.shape)) for name, tensor in named.items()})
    theta = Theta({name: named[name] for name in spec.names})
    scope = Scope(spec.names, spec.names, spec.names)
    view = View(1, "", theta, Personal(), {}, theta, {}, Seeds(), spec, scope, directions=seed).to(device)
    traces, following = [], iter(batches)
    for step in range(steps):
        batch = next(following, _NONE)
        if batch is _NONE:
            fix = "repeat them, as itertools.cycle does"
            raise CotuneError(Code.COUNT, "fewer batches than steps", got=step, expected=steps, fix=fix)
        done = optimizer.step(view, None, _Loss(loss, batch))
        traces.append(done.trace)
        view = replace(done.view, own=True)
    scalars = UPLINK.pack(view, traces)["scalars"]
    return record_of(scalars), {name: view.theta[name] for name in named}


def model_at(model: nn.Module, adapter: str = "default") -> Callable[..., Any]:
    """`run(tensors, **inputs)`: a model's output at tensors that go by PEFT's names, without writing to the model.

    Args:
        model: of any kind; with an adapter of PEFT's, as a rule.
        adapter: its name in the model.
    """

    def run(tensors: NamedTensors, *inputs: Any, **named: Any) -> Any:
        places = parameters(model, tensors, adapter)
        return torch.func.functional_call(model, {places[name]: t for name, t in tensors.items()}, inputs, named)

    return run


def _issued(config: Mapping[str, Any]) -> tuple[int, int]:
    """The seed and the number of steps."""
    found = []
    for key, limit in ((SEED, 2**63), (STEPS, 10**6)):
        value = config.get(key)
        if type(value) is not int or not 0 < value < limit:
            fix = "run ZOReplay on the server"
            raise CotuneError(Code.CONFIG, f"no '{key}' in the round's config", got=value, fix=fix)
        found.append(value)
    return found[0], found[1]


_NONE: Any = object()


@dataclass(frozen=True)
class _Loss(Generic[B]):
    """A loss as an objective of one row: its mean."""

    loss: Callable[[NamedTensors, B], Tensor]
    batch: B

    def __call__(self, tensors: NamedTensors) -> Tensor:
        return self.loss(tensors, self.batch).double().mean().reshape(1)

    def microbatches(self) -> Iterator[_Loss[B]]:
        """Itself."""
        yield self

    @property
    def rows(self) -> int:
        """One: the mean."""
        return 1
