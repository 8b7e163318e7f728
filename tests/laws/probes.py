"""Parts that exist to lean on the walls: each needs one thing of the system that no part of the first rows needs.

They are plugged in by dotted path, as anybody's part would be, and none is longer than thirty lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from cotune.aggregate.mean import Mean, WeightedSum
from cotune.core.change import Base, Commit, Contribution, Origin, Server
from cotune.core.contracts import Aggregator, Layout, Layouts, Optimizer, Uplink
from cotune.core.message import Parts
from cotune.core.part import Capability
from cotune.core.seeds import Purpose, Seeds, derive, torch_generator
from cotune.core.spec import Role, Scope, Spec
from cotune.core.state import Private, Theta
from cotune.core.view import Objective, Step, View
from cotune.optim import SGD
from cotune.trainable import LoRA


class Diary(SGD):
    """Private state and aux: SGD that counts the rounds in which it was accepted, and tells the server."""

    kind: ClassVar[str] = "diary"
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.GRADIENT, Capability.PRIVATE})
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.AUX})

    def end(self, view: View) -> View:
        """One more round; the server's tally came down, and goes up as it was seen."""
        count = view.private[self.kind]["rounds"] + 1 if self.kind in view.private else torch.ones(1)
        told = {"rounds": count, "seen": view.aux["tally"]}
        return replace(view.keep(self.kind, Private({"rounds": count})), outbox=told)

    def outbox(self, spec: Spec, scope: Scope) -> Layout:
        """Two numbers."""
        return {"rounds": ("float32", (1,)), "seen": ("float32", (1,))}


class Tally(Mean):
    """Aux: a mean that broadcasts how many replies it has counted, and keeps who said what."""

    kind: ClassVar[str] = "tally"
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.AUX})
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.PRIVATE})

    def init(self, theta: Theta, server: Server) -> Any:
        """The mean's fold beside the tally."""
        return super().init(theta, server), server, dict(server.state)

    def add(self, fold: Any, contribution: Contribution) -> Any:
        """The client's own count of its rounds, as it told it."""
        mean, server, told = fold
        return super().add(mean, contribution), server, {**told, contribution.client: contribution.aux["rounds"]}

    def finish(self, fold: Any) -> Commit:
        """The mean; the tally goes out, the counts stay here."""
        mean, _, told = fold
        total = torch.stack(list(told.values())).sum(0)
        return replace(super().finish(mean), server=told, aux={"tally": total})

    def broadcast(self, spec: Spec) -> Layout:
        """One number."""
        return {"tally": ("float32", (1,))}


class Alternating(LoRA):
    """Names that change with the round: B trains and travels in odd rounds, A in even ones, the head in all."""

    kind: ClassVar[str] = "alternating"

    def scope(self, spec: Spec, round_: int) -> Scope:
        """Everything but the idle factor."""
        idle = Role.FACTOR_A if round_ % 2 else Role.FACTOR_B
        names = tuple(entry.name for entry in spec if entry.role is not idle)
        return Scope(train=names, up=tuple(n for n in names if spec[n].shared), down=spec.shared)


class IntoBase(Mean):
    """A base delta: the mean's product goes beside the frozen weight, and B starts again at zero."""

    kind: ClassVar[str] = "into-base"
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.BASE})

    def init(self, theta: Theta, server: Server) -> Any:
        """The mean's fold, and the spec."""
        return super().init(theta, server), server.spec

    def add(self, fold: Any, contribution: Contribution) -> Any:
        """As the mean."""
        return super().add(fold[0], contribution), fold[1]

    def finish(self, fold: Any) -> Commit:
        """Scale · B and A of every pair, moved over."""
        mean, spec = fold
        theta = super().finish(mean).theta
        pairs = {e.module: (e.scale * theta[e.name], theta[_a_of(spec, e.module)]) for e in spec if _is_b(e.role)}
        zeros = {e.name: torch.zeros(e.shape) for e in spec if _is_b(e.role)}
        return Commit(theta.replace(zeros), base=Base(pairs))

    def increment(self, specs: Sequence[Spec]) -> Layout:
        """One pair a module."""
        letters = {Role.FACTOR_A: "A", Role.FACTOR_B: "B"}
        rows = [entry for entry in specs[0] if entry.role in letters]
        return {f"{entry.module}/{letters[entry.role]}": ("float32", entry.shape) for entry in rows}


def _is_b(role: Role) -> bool:
    return role is Role.FACTOR_B


def _a_of(spec: Spec, module: str) -> str:
    return next(entry.name for entry in spec if entry.module == module and entry.role is Role.FACTOR_A)


def walk(seed: int, step: int, name: str, shape: tuple[int, ...]) -> Tensor:
    """The direction of ±1 that both sides draw."""
    generator = torch_generator(derive(seed, step, name))
    return torch.randint(0, 2, shape, generator=generator).mul(2).sub(1).float()


class Walk(Optimizer):
    """Replay: θ ← θ − lr · g z, where g is the slope along a direction z of signs that the issued seed decides."""

    kind: ClassVar[str] = "walk"
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.REPLAY})
    lr: float = 0.01
    epsilon: float = 0.015625

    def init(self, view: View) -> None:
        """No state."""

    def step(self, view: View, state: None, objective: Objective) -> Step:
        """Two losses, one coefficient; the trace is that coefficient."""
        z = {n: walk(view.directions, view.step, n, tuple(t.shape)) for n, t in view.trained.items()}
        with torch.no_grad():
            ahead = objective({n: t + self.epsilon * z[n] for n, t in view.trained.items()}).mean()
            behind = objective({n: t - self.epsilon * z[n] for n, t in view.trained.items()}).mean()
        coefficient = -self.lr * view.rate * (ahead - behind) / (2 * self.epsilon)
        moved = {n: t + coefficient * z[n] for n, t in view.trained.items()}
        return Step(view.moved(moved), None, coefficient, None, ahead)


@dataclass(frozen=True)
class Replayed:
    """A scalar change: theta_k is the anchor, walked again."""

    coefficients: Tensor
    origin: Origin

    def dense(self) -> Theta:
        """The walk, step by step, as the client took it."""
        theta = {name: self.origin.anchor[name] for name in self.origin.scope.up}
        for step, coefficient in enumerate(self.coefficients):
            theta = {n: t + coefficient * walk(self.origin.seed, step, n, tuple(t.shape)) for n, t in theta.items()}
        return Theta(theta)

    def add_to(self, total: dict[str, Tensor], weight: float) -> None:
        """As tensors would be added."""
        for name, tensor in self.dense().items():
            total[name].add_(tensor.double(), alpha=weight)

    def scalars(self) -> Mapping[str, Tensor]:
        """The coefficients."""
        return {"coefficients": self.coefficients}


class Coefficients(Uplink):
    """A scalar change: one float32 a step goes up, whatever the size of theta."""

    kind: ClassVar[str] = "coefficients"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.REPLAY})

    def pack(self, view: View, traces: Sequence[object]) -> Parts:
        """The traces of the steps."""
        return {"scalars": {"coefficients": torch.stack([t for t in traces if isinstance(t, Tensor)])}}

    def open(self, parts: Parts, origin: Origin) -> Replayed:
        """What replays them."""
        return Replayed(parts["scalars"]["coefficients"], origin)

    def layout(self, spec: Spec, scope: Scope, steps: int) -> Layouts:
        """One number a step."""
        return {"scalars": {"coefficients": ("float32", (steps,))}}

    def directions(self, seeds: Seeds, round_: int, client: str) -> int:
        """One seed a client and round, issued once the cohort is fixed."""
        return seeds.of(Purpose.DIRECTIONS, round_, client)


class Padded(Aggregator):
    """Two ranks in one cohort: the mean of factors, padded with zeros to the server's rank, scale folded into B."""

    kind: ClassVar[str] = "padded"
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.FACTORS})

    def init(self, theta: Theta, server: Server) -> Any:
        """The mean's fold, and the server's table."""
        return Mean().init(theta, server), server.spec

    def add(self, fold: tuple[WeightedSum, Spec], contribution: Contribution) -> Any:
        """Zeros where a smaller client has no rows of A, no columns of B."""
        mean, spec = fold
        for name, tensor in contribution.change.dense().items():
            entry, axis = spec[name], spec[name].rank_axis
            gain = contribution.spec[name].scale / entry.scale if entry.role is Role.FACTOR_B else 1.0
            target = mean.total[name] if axis is None else mean.total[name].narrow(axis, 0, tensor.shape[axis])
            target.add_(tensor.double() * gain, alpha=contribution.weight)
        return WeightedSum(mean.theta, mean.total, mean.weight + contribution.weight), spec

    def finish(self, fold: tuple[WeightedSum, Spec]) -> Commit:
        """The mean at the server's rank."""
        return Mean().finish(fold[0])
