"""Products of factors without the product: penalty, server and diagnostics, against dense matrices and the round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from cotune.bench.benchmark import Benchmark
from cotune.bench.measure import Figure, compared, interleaved, peak_bytes
from cotune.bench.rounds import MINILM, smallest_round
from cotune.core.seeds import derive, torch_generator
from cotune.linalg import Factors, factors_of, sketched, squared_distance, truncate

Forms = Literal["iterated", "two sums", "dense"]
Distance = Callable[[Factors, Factors], Tensor]
FORMS: tuple[Forms, ...] = ("iterated", "two sums", "dense")
OURS = FORMS[:2]
GAPS = (1.0, 1e-2, 1e-4, 1e-6)  # how far a client's factors are from the server's
EXACT = 1e-5  # the largest relative error of the penalty and of its gradient
SHORT = 3  # times as many repeats for what takes milliseconds
SHARE = 0.05  # of a round that diagnostics may take
NEAR = 1.01  # how much larger than the least error of a rank the server's may be


class Server(Benchmark):
    """The subspace penalty and the server's truncated sum against dense matrices, and diagnostics against the round.

    The server's factors have numbers of the normal distribution; a client's are those, and `drift` times others.

    Attributes:
        side: d_out and d_in of a layer.
        wide: the same where bytes are counted: so large that d_out × d_in is more than all factors of a round.
        rank: of every pair, and of the result.
        clients: whose products are added.
        drift: of clients.
        calls: of the penalty in a measurement: few would measure pages of memory that were just given back.
        repeats: of every measurement.
        backbone: of rounds that are played in whole, for what diagnostics are a share of.
        cohort: clients of such a round.
        few: such rounds that are timed.
        apart: whether to count bytes, in processes of their own that take seconds to start.
        seed: of the factors.
    """

    side: int = Field(default=1024, ge=1)
    wide: int = Field(default=8192, ge=1)
    rank: int = Field(default=8, ge=1)
    clients: int = Field(default=100, ge=1)
    drift: float = Field(default=0.5, gt=0)
    calls: int = Field(default=100, ge=1)
    repeats: int = Field(default=7, ge=1)
    backbone: str = MINILM
    cohort: int = Field(default=10, ge=1)
    few: int = Field(default=2, ge=1)
    apart: bool = True
    seed: int = Field(default=0, ge=0)

    @classmethod
    def quick(cls) -> Self:
        """Small layers, few clients, a tiny model, and no bytes."""
        tiny = "random:bert?layers=1&hidden=16&heads=2"
        return cls(side=64, rank=4, clients=30, calls=2, repeats=2, backbone=tiny, cohort=2, few=1, apart=False)

    def figures(self) -> Iterator[Figure]:
        """Times and errors of the penalty, then of the server's step, then diagnostics, then bytes of the step."""
        yield from self._penalty()
        yield from self._step()
        ours, rounds = ([1e3 * s for s in seconds] for seconds in self._rounds())
        name = f"diagnostics of a round, {self.cohort} clients · against the whole round"
        yield compared(name, ours, rounds, "ms", 1 / SHARE)
        if not self.apart:
            return
        peaks = {form: self._peak(form, self.side) for form in FORMS}
        for form in OURS:
            yield compared(f"{form}, peak memory · against dense SVD", [peaks[form]], [peaks["dense"]], "MiB")
        matrix = 4 * self.wide**2 / 2**20
        for form in OURS:
            name = f"{form}, peak memory at d = {self.wide:,} · against one float32 d × d matrix"
            yield compared(name, [self._peak(form, self.wide)], [matrix], "MiB", 1.0)

    def _penalty(self) -> Iterator[Figure]:
        client, server = self._pair(self.side, "client"), self._pair(self.side, "server")
        distances: dict[str, Distance] = {"ours": squared_distance, "dense": dense_distance}
        jobs = {form: partial(self._called, distance, client, server) for form, distance in distances.items()}
        times = interleaved(jobs, SHORT * self.repeats)
        ours, rival = ([1e6 * seconds / self.calls for seconds in times[form]] for form in ("ours", "dense"))
        yield compared("penalty, forward and backward · against the dense product", ours, rival, "µs", 30.0)
        errors = {form: [self._error(distance, gap) for gap in GAPS] for form, distance in distances.items()}
        worst = [max(errors["ours"])]
        gaps = f"gaps {GAPS[0]:g} to {GAPS[-1]:g}"
        name = f"penalty and gradient, float32 error at {gaps}"
        yield compared(f"{name} · against {EXACT:g}", worst, [EXACT], "relative", 1.0)
        yield compared(f"{name} · against the dense product", worst, [max(errors["dense"])], "relative")

    def _called(self, distance: Distance, client: Factors, server: Factors) -> None:
        """Forward and backward, as often as a measurement takes."""
        leaves = [tensor.requires_grad_() for tensor in client]
        for _ in range(self.calls):
            torch.autograd.grad(distance(client, server), leaves)

    def _error(self, distance: Distance, gap: float) -> float:
        """The relative error in float32 of the value, or of the gradient where that is larger."""
        server = self._pair(self.side, "server")
        client = tuple(here + gap * step for here, step in zip(server, self._pair(self.side, "client"), strict=True))
        found = []
        for dtype, one in ((torch.float32, distance), (torch.float64, dense_distance)):
            (b, a), (b_ref, a_ref) = [tuple(t.detach().to(dtype) for t in pair) for pair in (client, server)]
            value = one((b.requires_grad_(), a.requires_grad_()), (b_ref, a_ref))
            found.append([value.detach(), *torch.autograd.grad(value, [b, a])])
        gaps = [float((got - exact).norm() / exact.norm()) for got, exact in zip(*found, strict=True)]
        return max(gaps)

    def _step(self) -> Iterator[Figure]:
        jobs = {form: self._job(form, self.side) for form in FORMS}
        times = interleaved({str(form): job for form, job in jobs.items()}, self.repeats)
        milliseconds = {form: [1e3 * s for s in seconds] for form, seconds in times.items()}
        where = f"{self.clients} clients"
        for form, goal in (("iterated", 10.0), ("two sums", 20.0)):
            name = f"{form}, {where} · against dense SVD"
            yield compared(name, milliseconds[form], milliseconds["dense"], "ms", goal)
        replies, weights = self._replies(self.side)
        whole = dense_sum(replies, weights).double()
        errors = {form: float((whole - multiplied(jobs[form]()).double()).norm() / whole.norm()) for form in jobs}
        for form in OURS:
            name = f"{form}, {where}, error of rank {self.rank} · against the least"
            yield compared(name, [errors[form]], [errors["dense"]], "relative", 1 / NEAR)

    def _job(self, form: Forms, side: int) -> Callable[[], Factors]:
        """A round's step on a layer, from the basis of the last one."""
        replies, weights = self._replies(side)
        if form == "dense":
            return partial(dense_step, replies, weights, self.rank)
        step, start = truncate if form == "iterated" else sketched, self._pair(side, "server")[1].mT
        return partial(step, replies, weights, self.rank, "orthonormal-b", start=start)

    def _replies(self, side: int) -> tuple[list[Factors], list[float]]:
        """Every client's factors, and the weights of the mean."""
        b, a = self._pair(side, "server")
        steps = (self._pair(side, client) for client in range(self.clients))
        # In place: what is freed here would be used again by the step, and hide its first bytes.
        replies = [(own_b.mul_(self.drift).add_(b), own_a.mul_(self.drift).add_(a)) for own_b, own_a in steps]
        return replies, [1 / self.clients] * self.clients

    def _pair(self, side: int, *whose: str | int) -> Factors:
        g = torch_generator(derive(self.seed, *whose))
        return torch.randn(side, self.rank, generator=g), torch.randn(self.rank, side, generator=g)

    def _rounds(self) -> tuple[list[float], list[float]]:
        return smallest_round(self.backbone, self.cohort, self.few, self.seed)

    def _peak(self, form: Forms, side: int) -> float:
        return peak_bytes(_apart, self.model_dump(), form, side) / 2**20


def dense_distance(left: Factors, right: Factors) -> Tensor:
    """‖B A − B' A'‖² by both products."""
    return (left[0] @ left[1] - right[0] @ right[1]).square().sum()


def dense_sum(pairs: list[Factors], weights: list[float]) -> Tensor:
    """Σ w B A (d_out, d_in), by one product of stacked factors: the fastest way there."""
    return torch.cat([b for b, _ in pairs], 1) @ torch.cat([w * a for w, (_, a) in zip(weights, pairs, strict=True)])


def dense_step(pairs: list[Factors], weights: list[float], rank: int) -> Factors:
    """The best (B, A) of a rank by the SVD of the whole sum, B with orthonormal columns."""
    u, sigma, v = torch.linalg.svd(dense_sum(pairs, weights), full_matrices=False)
    return factors_of(u[:, :rank], sigma[:rank], v[:rank].mT, "orthonormal-b")


def multiplied(pair: Factors) -> Tensor:
    """B A."""
    return pair[0] @ pair[1]


def _apart(settings: dict[str, Any], form: Forms, side: int) -> Callable[[], object]:
    """The step of one form in a process of its own, after one on a small layer: what is allocated once is not its."""
    bench = Server(**settings)
    bench._job(form, 64)()
    return bench._job(form, side)
