"""The direction stream: a direction drawn and added, by every path, against `torch.randn` and an addition in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Self

import torch
from pydantic import Field
from torch import Tensor

from cotune import noise
from cotune.bench.benchmark import Benchmark
from cotune.bench.measure import Figure, compared, interleaved
from cotune.core.seeds import derive, torch_generator
from cotune.noise import Path

GOALS: dict[Path, float | None] = {"compiled": 15.0, "numpy": 7.0, "torch": None}


class Directions(Benchmark):
    """Directions of signs, drawn and added by each path, against `torch.randn` and an addition; and that paths agree.

    Attributes:
        numbers: in the tensor that is moved.
        equal: elements over which the paths are compared, in chunks of other sizes for each.
        coefficient: of the direction.
        repeats: of every measurement.
        seed: of the directions.
    """

    numbers: int = Field(default=2**24, ge=1)
    equal: int = Field(default=10**7, ge=1)
    coefficient: float = 1e-3
    repeats: int = Field(default=7, ge=1)
    seed: int = Field(default=0, ge=0)

    @classmethod
    def quick(cls) -> Self:
        """A sixteenth of everything."""
        return cls(numbers=2**20, equal=10**5, repeats=2)

    def figures(self) -> Iterator[Figure]:
        """Nanoseconds an element, and how many elements are equal by every path."""
        tensor, generator = torch.zeros(self.numbers), torch_generator(self.seed)

        def rival() -> None:
            tensor.add_(torch.randn(self.numbers, generator=generator), alpha=self.coefficient)

        jobs: dict[str, Callable[[], object]] = {path: partial(self._moved, tensor, path) for path in self.paths}
        times = interleaved({"rival": rival, **jobs}, self.repeats)
        nanoseconds = {name: [1e9 * s / self.numbers for s in seconds] for name, seconds in times.items()}
        for path in self.paths:
            name = f"{path}, drawn and added · against torch.randn + add"
            yield compared(name, nanoseconds[path], nanoseconds["rival"], "ns an element", GOALS[path])
        same = [float(self._equal())]
        name = f"elements that {', '.join(self.paths)} agree on, in any chunks · against all"
        yield compared(name, same, [float(self.equal)], "elements", 1.0, more_is_better=True)

    @property
    def paths(self) -> tuple[Path, ...]:
        """Those that this machine has; compiling needs the extra `fast`."""
        return tuple(path for path in GOALS if path != "compiled" or find_spec("numba"))

    def _moved(self, tensor: Tensor, path: Path) -> None:
        noise.apply_(tensor, self.coefficient, self.seed, 1, path=path)

    def _equal(self) -> int:
        """Elements with the same bits however they were computed."""
        start = torch.randn(self.equal, generator=torch_generator(derive(self.seed, "start")))
        arrived = []
        for number, path in enumerate(self.paths):
            moved, size = start.clone(), self.equal // (3 * number + 1) + number
            for at in range(0, self.equal, size):
                noise.apply_(moved[at : at + size], self.coefficient, self.seed, 1, at, path=path)
            arrived.append(moved.view(torch.int32))
        return int(torch.stack([moved == arrived[0] for moved in arrived]).all(0).sum())
