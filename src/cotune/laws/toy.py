"""What laws are checked on: tensors of a few numbers, a client in its second round, an objective, a journal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cotune.core.change import Origin
from cotune.core.contracts import Layout
from cotune.core.journal import Increment
from cotune.core.seeds import Seeds, derive, torch_generator
from cotune.core.spec import Entry, Role, Scope, Spec
from cotune.core.state import Personal, Theta
from cotune.core.view import NamedTensors, View
from cotune.wire import dtype_name

# Two low-rank pairs, one of them on a layer that is not square, and a head; the last three in the back half.
SPEC = Spec(
    (
        Entry("one.A", (2, 6), Role.FACTOR_A, "one", scale=2.0),
        Entry("one.B", (6, 2), Role.FACTOR_B, "one", scale=2.0),
        Entry("two.A", (2, 5), Role.FACTOR_A, "two", block=1, scale=2.0),
        Entry("two.B", (7, 2), Role.FACTOR_B, "two", block=1, scale=2.0),
        Entry("head", (3,), Role.HEAD, "head", block=1),
    )
)
CLIENTS = ("ada", "bo", "cy")


def numbers(seed: int, spec: Spec = SPEC, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Standard normal numbers for every name of a spec, drawn name by name."""
    return {
        e.name: torch.randn(e.shape, generator=torch_generator(derive(seed, e.name)), dtype=torch.float64).to(dtype)
        for e in spec
    }


def view(seed: int = 1, dtype: torch.dtype = torch.float32, train: tuple[str, ...] = SPEC.names) -> View:
    """A client in its second round, some way from its anchor."""
    shared = tuple(name for name in train if SPEC[name].shared)
    return View(
        round=2,
        client="ada",
        theta=Theta(numbers(seed, dtype=dtype)),
        personal=Personal(),
        private={},
        anchor=Theta(numbers(seed + 1, dtype=dtype)),
        aux=numbers(seed + 2, dtype=dtype),
        seeds=Seeds(seed=seed),
        spec=SPEC,
        scope=Scope(train, shared, shared),
    )


@dataclass(frozen=True)
class Quadratic:
    """Loss of row i: ½ ‖θ − target_i‖² over all names: an objective whose gradient anyone can check."""

    targets: Sequence[NamedTensors]

    def __call__(self, tensors: NamedTensors) -> Tensor:
        """Losses (rows,)."""
        return self.back(tensors, self.front(tensors))

    def front(self, tensors: NamedTensors) -> Tensor:
        """The part of the losses (rows,) that is due to the front half."""
        return self._part(tensors, 0)

    def back(self, tensors: NamedTensors, halfway: Tensor) -> Tensor:
        """Losses (rows,) of both halves."""
        return halfway + self._part(tensors, 1)

    def _part(self, tensors: NamedTensors, block: int) -> Tensor:
        names = [name for name in tensors if SPEC[name].block == block]
        zero = torch.zeros((), dtype=next(iter(tensors.values())).dtype)
        rows = [sum(((tensors[n] - target[n]).square().sum() for n in names), zero) for target in self.targets]
        return torch.stack(rows) / 2

    def microbatches(self) -> Iterator[Quadratic]:
        """One row at a time."""
        return (Quadratic([target]) for target in self.targets)

    @property
    def rows(self) -> int:
        """How many targets."""
        return len(self.targets)


OBJECTIVE = Quadratic([numbers(11), numbers(12)])


@dataclass
class ListJournal:
    """A journal in memory."""

    increments: list[Increment] = field(default_factory=list)

    def append(self, increment: Increment) -> None:
        """Add one."""
        self.increments.append(increment)

    def since(self, held: int) -> Sequence[Increment]:
        """Those after version `held`."""
        return [increment for increment in self.increments if increment.round > held]


def layout_of(named: NamedTensors) -> Layout:
    """The layout of tensors at hand."""
    return {name: (dtype_name(tensor.dtype), tuple(tensor.shape)) for name, tensor in named.items()}


def same(what: str, got: object, expected: object) -> None:
    """Raise unless `got` is what was expected."""
    assert got == expected, f"{what}: got {got}, expected {expected}"


def close(what: str, got: Tensor, expected: Tensor, tolerance: float) -> None:
    """Raise unless ‖got − expected‖ / ‖expected‖ is within the tolerance."""
    error = float((got.double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-12))
    assert error <= tolerance, f"{what}: relative error {error:.1e}, allowed {tolerance:.0e}"


def origin_of(here: View) -> Origin:
    """Where a view started from."""
    return Origin(here.anchor, here.directions, here.rate, here.spec, here.scope)
