"""What a round costs the server as clients grow, in one process: time, memory, messages, disk; against few clients.

Clients do not train: each answers at once with a reply that one of their like has trained for (`bench/crowd.py`), and
that is no part of the time. All else is a run as any other: clients are sampled, messages written, replies read,
checked and folded, what came of it committed, recorded and put on disk.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Self

from pydantic import Field

from cotune.bench.benchmark import Benchmark
from cotune.bench.crowd import Cost, Shape, cost, cost_apart, crowd
from cotune.bench.measure import Figure, compared, interleaved
from cotune.bench.server import Server
from cotune.engine import InlineEngine, PoolEngine
from cotune.experiment import MakeEngine, run

FOLDED = ("lora-fedavg", "fedspzo")  # rows whose server adds replies up as they come
ROWS = (*FOLDED, "subspace-reg", "flora")
TWICE, FLAT = 1 / 2, 1 / 1.2  # how much more time a client, and memory, many clients may take than few
# Rank 8 on all linear layers of Llama-3.2-1B, at an eighth of the width and eight times the rank: as many tensors, as
# many numbers in each, 22.5 MB, beside weights that a laptop holds.
WIDE = Shape(
    backbone="random:llama?layers=16&hidden=256&heads=8&kv_heads=2&intermediate=1024", rank=64, targets="all-linear"
)


class Simulate(Benchmark):
    """The server's part of a round from few clients to many, against the same round of few.

    Attributes:
        shape: of what travels: a small backbone's, since it is not what is measured.
        clients: of a round.
        stacked: the same for `flora`, which sends every client's factors to every client.
        few: which of them others are compared with.
        wide: large factors.
        wide_clients: of a round of them, compared with the first.
        side: d_out and d_in of a layer whose products are summed and split.
        pairs: how many products, compared with the first.
        cohort: clients that do train, here and in two processes.
        rounds: of every run, of which the first is not timed.
        repeats: of what takes milliseconds.
        apart: whether to measure in processes of their own: memory, large factors, and the processes themselves.
        seed: of products.
    """

    shape: Shape = Shape(backbone="builtin:tiny-llama")
    clients: tuple[int, ...] = (10, 100, 1000, 10_000)
    stacked: tuple[int, ...] = (10, 100, 300)
    few: int = Field(default=100, ge=1)
    wide: Shape = WIDE
    wide_clients: tuple[int, ...] = (10, 30, 100)
    side: int = Field(default=2048, ge=1)
    pairs: tuple[int, ...] = (10, 100, 1000)
    cohort: int = Field(default=40, ge=1)
    rounds: int = Field(default=2, ge=2)
    repeats: int = Field(default=3, ge=1)
    apart: bool = True
    seed: int = Field(default=0, ge=0)

    @classmethod
    def quick(cls) -> Self:
        """A handful of clients of a tiny model, in this process."""
        tiny = Shape(backbone="random:llama?layers=2&hidden=16&heads=2")
        few = {"clients": (2, 5), "stacked": (2, 5), "pairs": (2, 4), "few": 2, "repeats": 1}
        return cls(shape=tiny, side=64, apart=False, **few)

    def figures(self) -> Iterator[Figure]:
        """Row by row, then large factors, then the split of products, then processes."""
        for row in ROWS:
            counts = self.stacked if row == "flora" else self.clients
            costs = {count: self._cost(row, count) for count in counts}
            yield from self._grown(row, costs, self.few)
        if self.apart:
            first = self.wide_clients[0]
            costs = {n: cost_apart("lora-fedavg", self.wide, n, self.rounds) for n in self.wide_clients}
            yield from self._grown("lora-fedavg of large factors", costs, first)
        yield from self._split()
        if self.apart:
            pool, inline = (self._trained(engine) for engine in (partial(PoolEngine, workers=2), InlineEngine))
            name = f"fedspzo, {self.cohort} clients that train, wall time a client in 2 processes · against in one"
            yield compared(name, pool, inline, "ms")

    def _cost(self, row: str, clients: int) -> Cost:
        measure = cost_apart if self.apart else cost
        return measure(row, self.shape, clients, self.rounds)

    def _grown(self, row: str, costs: Mapping[int, Cost], few: int) -> Iterator[Figure]:
        """Time and memory at every count, and at the largest what is sent and kept."""
        rival, most = costs[few], max(costs)
        for count, one in costs.items():
            name = f"{row}, {count:,} clients"
            goal = TWICE if count == most and row != "flora" else None
            ours, theirs = _milliseconds(one, count), _milliseconds(rival, few)
            yield compared(f"{name}, time a client · against {few:,}", ours, theirs, "ms", goal)
            if self.apart:
                lifts = [one.lifted / 2**20], [rival.lifted / 2**20]
                yield compared(f"{name}, memory that rounds add · against {few:,}", *lifts, "MiB")
                goal = FLAT if count == most and row in FOLDED else None
                whole = [(one.resident + one.lifted) / 2**20], [(rival.resident + rival.lifted) / 2**20]
                yield compared(f"{name}, memory of the process · against {few:,}", *whole, "MiB", goal)
        one, name = costs[most], f"{row}, {most:,} clients"
        sent = [bytes_ / 1024 / most for bytes_ in one.wire], [bytes_ / 1024 / few for bytes_ in rival.wire]
        yield compared(f"{name}, messages a client · against {few:,}", *sent, "KiB")
        for what, kept in one.disk.items():
            both = [kept / 1024 / most], [rival.disk[what] / 1024 / few]
            yield compared(f"{name}, a round in {what} a client · against {few:,}", *both, "KiB")
        yield compared(f"{name}, set up · against {few:,}", [one.setup], [rival.setup], "seconds")

    def _split(self) -> Iterator[Figure]:
        """The sum of products of one layer, split anew."""
        settings = {"side": self.side, "rank": self.shape.rank, "seed": self.seed}
        jobs: dict[str, Callable[[], object]] = {
            str(count): Server(clients=count, **settings)._job("iterated", self.side) for count in self.pairs
        }
        times = {name: [1e3 * s for s in seconds] for name, seconds in interleaved(jobs, self.repeats).items()}
        few = self.pairs[0]
        for count in self.pairs:
            name = f"a layer of {self.side:,} × {self.side:,}, products of {count:,} clients split · against {few:,}"
            yield compared(name, times[str(count)], times[str(few)], "ms")

    def _trained(self, engine: MakeEngine) -> list[float]:
        """Milliseconds a client of every round after the first, by an engine."""
        experiment = crowd("fedspzo", self.shape, self.cohort, self.rounds + 1)
        with tempfile.TemporaryDirectory() as out:
            records = run(experiment, Path(out), make_engine=engine).rounds
        return [1e3 * record.seconds / self.cohort for record in records[1:]]


def _milliseconds(one: Cost, clients: int) -> list[float]:
    return [1e3 * seconds / clients for seconds in one.seconds]
