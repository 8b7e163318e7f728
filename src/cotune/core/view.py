"""What a client part sees: one client's frozen view of a round, its objective, and the work it is given."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from cotune.core.seeds import Purpose, Seeds
from cotune.core.spec import Scope, Spec
from cotune.core.state import Personal, Private, Theta

NamedTensors = Mapping[str, Tensor]


class Objective(Protocol):
    """Losses of one step's rows as a function of the trained tensors; pure, float32, one number a row."""

    def __call__(self, tensors: NamedTensors) -> Tensor:
        """Losses (rows,) at `tensors`, penalties in; names not given keep the value of the view."""
        ...

    def microbatches(self) -> Iterator[Objective]:
        """The step's rows in the portions that fit at once; one portion without accumulation."""
        ...

    @property
    def rows(self) -> int:
        """How many rows."""
        ...


@runtime_checkable
class SplitObjective(Objective, Protocol):
    """An objective of a model in two halves: `back(tensors, front(tensors))` is the objective at `tensors`."""

    def front(self, tensors: NamedTensors) -> Any:
        """What the front half arrives at."""
        ...

    def back(self, tensors: NamedTensors, halfway: Any) -> Tensor:
        """Losses (rows,) that follow from there, penalties in."""
        ...

    def microbatches(self) -> Iterator[SplitObjective]:
        """As of an objective, each portion in halves again."""
        ...


@dataclass(frozen=True)
class View:
    """One client's view of a round.

    Attributes:
        round: counts from 1.
        client: its id.
        theta: what travels, as it is now.
        personal: trained, stays.
        private: parts' own numbers, one value per part kind; stays.
        anchor: theta as it came down; the reference of proximal terms.
        aux: what the server broadcasts beside theta.
        seeds: the experiment's seeds, to be used through `seed`.
        spec: the table of this client's tensors.
        scope: which names train, go up, come down in this round.
        rate: the factor that the server's schedule puts in front of every learning rate.
        directions: the seed that this client's directions follow from; 0 where none was issued.
        tick: steps along directions are multiples of it, and so is theta after them; 0 for any float32.
        pool: how many candidates directions are picked from; 0 where every step has its own.
        clip: the largest gradient norm, or None.
        step: how many steps were taken in this round.
        outbox: tensors that go up beside theta.
        own: nobody else holds what trains, as after a step of this round: the next step may write over it.
    """

    round: int
    client: str
    theta: Theta
    personal: Personal
    private: Mapping[str, Private]
    anchor: Theta
    aux: NamedTensors
    seeds: Seeds
    spec: Spec
    scope: Scope
    rate: float = 1.0
    directions: int = 0
    tick: float = 0.0
    pool: int = 0
    clip: float | None = None
    step: int = 0
    outbox: NamedTensors = field(default_factory=dict)
    own: bool = False

    @property
    def trained(self) -> dict[str, Tensor]:
        """Everything that trains in this round, shared or personal, in the spec's order."""
        return {n: self.theta[n] if n in self.theta else self.personal[n] for n in self.scope.train}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the model that is this client's: shared and personal."""
        return {**self.theta, **self.personal}

    def to(self, device: str) -> View:
        """The view with all its tensors on a device."""

        def moved(named: NamedTensors) -> dict[str, Tensor]:
            return {name: tensor.to(device) for name, tensor in named.items()}

        return replace(
            self,
            theta=Theta(moved(self.theta)),
            personal=Personal(moved(self.personal)),
            private={kind: Private(moved(private)) for kind, private in self.private.items()},
            anchor=Theta(moved(self.anchor)),
            aux=moved(self.aux),
        )

    def moved(self, tensors: NamedTensors) -> View:
        """The view after a step that arrived at `tensors`."""
        return replace(
            self,
            theta=self.theta.replace({n: t for n, t in tensors.items() if n in self.theta}),
            personal=self.personal.replace({n: t for n, t in tensors.items() if n in self.personal}),
            step=self.step + 1,
        )

    def keep(self, kind: str, private: Private) -> View:
        """The view with one part's own numbers replaced."""
        return replace(self, private={**self.private, kind: private})

    def seed(self, purpose: Purpose, *path: int | str) -> int:
        """The derived seed of this client in this round."""
        return self.seeds.of(purpose, self.round, self.client, *path)


class Step(NamedTuple):
    """What one optimizer step returns.

    Attributes:
        view: after the step.
        state: the optimizer's own numbers.
        trace: what a replay of this step needs, or None.
        gradient: by name, for parts that observe it; None from an optimizer that has none.
        loss: the mean loss before the step, 0-dim.
    """

    view: View
    state: Any
    trace: object | None
    gradient: NamedTensors | None
    loss: Tensor


class Schedule(StrEnum):
    """How the learning rate falls over the rounds."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


class Budget(BaseModel):
    """The work a client does in a round: `steps`, or `epochs` over its own rows, in batches.

    Attributes:
        steps: optimizer steps a round; None when epochs are given.
        epochs: passes over the client's rows a round; None when steps are given.
        batch: rows at once.
        accumulate: batches a step.
        clip: the largest gradient norm of a step.
        schedule: of the learning rate over the rounds; the server sends the factor with every round.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    steps: int | None = Field(default=None, ge=1, le=10**6)
    epochs: int | None = Field(default=None, ge=1, le=10**4)
    batch: int = Field(default=16, ge=1, le=10**5)
    accumulate: int = Field(default=1, ge=1, le=10**4)
    clip: float | None = Field(default=None, gt=0)
    schedule: Schedule = Schedule.CONSTANT

    @model_validator(mode="after")
    def _one_of(self) -> Budget:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give either steps or epochs")
        return self

    def count(self, rows: int) -> int:
        """How many steps a client with `rows` rows takes."""
        if self.steps is not None:
            return self.steps
        return (self.epochs or 0) * math.ceil(rows / (self.batch * self.accumulate))

    def rate(self, round_: int, rounds: int) -> float:
        """The schedule's factor in round 1..rounds: 1 at first; linear and cosine end at 1/rounds and near 0."""
        done = (round_ - 1) / rounds
        match self.schedule:
            case Schedule.LINEAR:
                return 1.0 - done
            case Schedule.COSINE:
                return (1.0 + math.cos(math.pi * done)) / 2
            case _:
                return 1.0
