"""What a warm worker saves of a round on Flower's nodes, where each message has a process of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field

from cotune import resolve
from cotune.bench.benchmark import Benchmark
from cotune.bench.measure import Figure, compared
from cotune.core.errors import Code, CotuneError
from cotune.store import Run

SMALL = "random:llama?layers=1&hidden=16&heads=2&intermediate=32"  # of the round that is all Flower's own


class Deployment(Benchmark):
    """Seconds of a round of scalars on two SuperNodes behind TLS: with warm workers, without, and Flower's own share.

    Every client takes one step of zeroth order on factors beside a random llama, so that about 1 KB goes each way. All
    of it happens on this machine; the first round is left out.

    Attributes:
        layers: of the model; with the others, 0.3 GB.
        hidden: its width.
        intermediate: of its feed-forward blocks.
        rounds: of each deployment.
        rank: of the factors.
        seed: of everything.
    """

    timing: ClassVar[str] = "one thread a process, medians of rounds, wall time, one deployment after another"

    layers: int = Field(default=6, ge=1)
    hidden: int = Field(default=1024, ge=16)
    intermediate: int = Field(default=2816, ge=16)
    rounds: int = Field(default=5, ge=2)
    rank: int = Field(default=2, ge=1)
    seed: int = Field(default=0, ge=0)

    @classmethod
    def quick(cls) -> Self:
        """A small model and one round that counts."""
        return cls(layers=1, hidden=16, intermediate=32, rounds=2)

    def figures(self) -> Iterator[Figure]:
        """A round with workers against one without, and against the same with a model of nothing."""
        from cotune.flower.programs import check_installed

        check_installed()
        model = f"random:llama?layers={self.layers}&hidden={self.hidden}&heads=8&intermediate={self.intermediate}"
        with tempfile.TemporaryDirectory(prefix="cotune-") as folder:
            warm = self._seconds(Path(folder) / "warm", model, workers=True)
            cold = self._seconds(Path(folder) / "cold", model, workers=False)
            floor = self._seconds(Path(folder) / "floor", SMALL, workers=True)
        yield compared("a round with workers · against a process that loads for every message", warm, cold, "s", 2.0)
        yield compared("a round with workers · against Flower's own floor, a model of nothing", warm, floor, "s")

    def _seconds(self, folder: Path, model: str, workers: bool) -> list[float]:
        """Of every round but the first."""
        from cotune.flower.loopback import Loopback
        from cotune.flower.scaffold import write

        write(folder / "project", self.experiment(model))
        file = folder / "project" / "experiment.toml"
        experiment = resolve.load(str(file))
        worker = (file, ()) if workers else None
        with Loopback(folder / "loop", 2, worker=worker) as deployment:
            config: dict[str, Any] = {"nodes": 2, "out": str(folder / "runs")}
            finished = deployment.run(folder / "project", config, 3600)
        if not finished.completed:
            raise CotuneError(Code.ENGINE, "the run on Flower failed", got=finished.status)
        run = Run(experiment.folder(folder / "runs"))
        return [record.seconds for record in run.rounds[1:]]

    def experiment(self, model: str) -> str:
        """The TOML of a federation of two that sends scalars alone."""
        return f"""
name = "deployment"
recipe = "decomfl"
[method.trainable]
kind = "lora"
rank = {self.rank}
targets = ["q_proj"]
[method.budget]
steps = 1
batch = 1
[backbone]
ref = "{model}"
[task]
kind = "sft"
data = "synth:instructions?clients=2"
max_tokens = 32
[federation]
rounds = {self.rounds}
[evaluation]
which = "none"
[seeds]
seed = {self.seed}
"""
