"""A round of scalars on the server: all clients summed in one pass, against rebuilding each client and averaging."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Self

import torch
from pydantic import Field
from torch import Tensor

from cotune.aggregate import Mean
from cotune.bench.benchmark import Benchmark
from cotune.bench.measure import Figure, compared, interleaved
from cotune.core.change import Contribution, Origin, Server
from cotune.core.seeds import derive, torch_generator
from cotune.core.spec import Entry, Role, Scope, Spec
from cotune.core.state import Theta
from cotune.noise import ALL, Direction, Path, apply_
from cotune.wire.scalars import Scalars

GOALS: dict[Path, float] = {"compiled": 20.0, "numpy": 8.0}


class Replay(Benchmark):
    """Replies of scalars folded into theta by each path, against a model rebuilt for every client and averaged.

    Attributes:
        numbers: in theta.
        clients: whose replies are folded.
        steps: of each.
        directions: of a step.
        repeats: of every measurement.
        seed: of theta, coefficients and directions.
    """

    numbers: int = Field(default=2**22, ge=2)
    clients: int = Field(default=8, ge=1)
    steps: int = Field(default=5, ge=1)
    directions: int = Field(default=4, ge=1)
    repeats: int = Field(default=5, ge=1)
    seed: int = Field(default=0, ge=0)

    @classmethod
    def quick(cls) -> Self:
        """A theta of a few thousand numbers."""
        return cls(numbers=2**13, repeats=2)

    def figures(self) -> Iterator[Figure]:
        """Milliseconds a round, and how many numbers one client's replay has in common with its own model."""
        start, replies = self._start(), [self._coefficients(client) for client in range(self.clients)]
        paths = [path for path in GOALS if path != "compiled" or find_spec("numba")]
        jobs: dict[str, Callable[[], object]] = {path: partial(self._folded, start, replies, path) for path in paths}
        times = interleaved({"rival": partial(self._rebuilt, start, replies), **jobs}, self.repeats)
        milliseconds = {name: [1e3 * s for s in seconds] for name, seconds in times.items()}
        for path in paths:
            name = f"{path}, replies folded · against models rebuilt from torch.randn and averaged"
            yield compared(name, milliseconds[path], milliseconds["rival"], "ms a round", GOALS[path])
        own, seed = start.clone(), derive(self.seed, "client", 0)
        for step, row in enumerate(replies[0].tolist()):
            for direction, coefficient in enumerate(row):
                apply_(own, coefficient, derive(seed, step), direction, path="torch")
        same = [float((self._folded(start, replies[:1], path) == own).sum()) for path in paths]
        name = "numbers of one client's own model that its replay has · against all"
        yield compared(name, [min(same)], [float(self.numbers)], "numbers", 1.0, more_is_better=True)

    def _start(self) -> Tensor:
        return torch.randn(self.numbers, generator=torch_generator(self.seed))

    def _coefficients(self, client: int) -> Tensor:
        """(steps, directions)."""
        generator = torch_generator(derive(self.seed, "coefficients", client))
        return 1e-3 * torch.randn(self.steps, self.directions, generator=generator)

    def _folded(self, start: Tensor, replies: list[Tensor], path: Path) -> Tensor:
        """Theta after a round, as the server's aggregator makes it."""
        spec, mean, theta = Spec((Entry("w", (self.numbers,), Role.FULL, ""),)), Mean(), Theta({"w": start})
        scope = Scope(spec.names, spec.names, spec.names)
        fold = mean.init(theta, Server(1, len(replies), spec, spec.names))
        for client, coefficients in enumerate(replies):
            origin = Origin(theta, derive(self.seed, "client", client), 1.0, spec, scope)
            change = Scalars(origin, Direction.SIGN, {ALL: coefficients}, path)
            fold = mean.add(fold, Contribution(str(client), 1.0 + client, change, spec))
        return mean.finish(fold).theta["w"]

    def _rebuilt(self, start: Tensor, replies: list[Tensor]) -> Tensor:
        """The same round by Gaussian directions: each client's model, then their mean."""
        models = []
        for client, coefficients in enumerate(replies):
            model = start.clone()
            for number, coefficient in enumerate(coefficients.flatten().tolist()):
                generator = torch_generator(derive(self.seed, client, number))
                model.add_(torch.randn(self.numbers, generator=generator), alpha=coefficient)
            models.append(model)
        weights = [1.0 + client for client in range(len(replies))]
        total = sum((model.double() * weight for model, weight in zip(models, weights, strict=True)), torch.zeros(()))
        return (total / sum(weights)).float()
