"""What a benchmark is: settings that decide it, and the figures that it comes to on this machine."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Self

import torch
from pydantic import BaseModel, ConfigDict

from cotune.bench.measure import Figure, load, machine, versions
from cotune.core.errors import Code, CotuneError, nearest


class Benchmark(BaseModel):
    """Measures figures; its fields are all that decides what is measured. The docstring's first line describes it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    timing: ClassVar[str] = "one thread, medians of repeats that take turns, process time"

    @classmethod
    @abstractmethod
    def quick(cls) -> Self:
        """Settings so small that seconds are enough, and nothing can be concluded."""

    @abstractmethod
    def figures(self) -> Iterator[Figure]:
        """Each figure as soon as it is known, by one thread."""


def found(name: str) -> type[Benchmark]:
    """The benchmark of this name.

    Raises:
        CotuneError: E_CONFIG, with the nearest name.
    """
    from cotune.bench import BENCHES

    if name not in BENCHES:
        raise CotuneError(Code.CONFIG, f"no benchmark '{name}'", where="cotune bench", fix=nearest(name, BENCHES))
    return BENCHES[name]


def measured(name: str, quick: bool) -> dict[str, Any]:
    """`{figures, machine, load, versions, experiment}` of a benchmark, carried out by one thread.

    Args:
        name: of the benchmark.
        quick: take its small settings, and judge no goal.

    Raises:
        CotuneError: E_CONFIG for an unknown name.
    """
    kind = found(name)
    bench = kind.quick() if quick else kind()
    threads, before = torch.get_num_threads(), load()
    torch.set_num_threads(1)
    try:
        figures = [figure if not quick else figure.unjudged() for figure in bench.figures()]
    finally:
        torch.set_num_threads(threads)
    settings = {"bench": name, "quick": quick, "threads": 1, **bench.model_dump(mode="json")}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
    return {
        "figures": [figure.as_dict() for figure in figures],
        "machine": machine(),
        "load": {"before": before, "after": load()},
        "versions": versions(),
        "timing": kind.timing,
        "experiment": {**settings, "hash": digest},
    }
