"""Subspace-Reg's rounds where every constant is known: does the squared gradient fall as 1/mu², as its bound says?

Client k has L_k(W) = ½ ‖W − W_k‖², so that L = 1 (the smoothness), ∇L(W) = W − W̄, and σ² = (1/K) Σ ‖W_k − W̄‖² exactly.
W̄ has the rank of the adapter: the minimum of the mean loss can be reached. A client solves
½ ‖B A − W_k‖² + (mu/2) ‖B A − W_g‖² exactly, which is what the proof assumes: by Eckart and Young, B A is the best
rank-r form of (W_k + mu W_g) / (1 + mu). The server splits the mean of products with an orthonormal B, whose product is
the best rank-r form of that mean. Nothing is sampled in a client, so that ξ² = 0.

The bound (arXiv 2606.22724, theorem 3): (1/T) Σ_t ‖∇L‖² ≤ 4 Δ₀ / (η T) + 2 L [(σ² + ξ²) / K + C₁ σ² / mu²].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cotune.core.seeds import derive, torch_generator

SPREAD = 1.0  # σ
MUS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
FITTED = 10.0  # the slope is that over mu from here on, where 1 + mu is nearly mu
SETTLE, KEEP = 8, 24  # in units of 1 + mu rounds, in which the server's product moves by 1/e of its way


@dataclass(frozen=True)
class Problem:
    """The clients' minima (K, d_out, d_in), float64, and the rank of their mean."""

    minima: Tensor
    rank: int

    @property
    def mean(self) -> Tensor:
        """W̄, where the mean loss is least."""
        return self.minima.mean(0)

    def gradient(self, product: Tensor) -> float:
        """‖∇L‖² at a product."""
        return float((product - self.mean).square().sum())


def problem(seed: int, clients: int = 6, sides: tuple[int, int] = (8, 7), rank: int = 2) -> Problem:
    """Minima drawn around a mean of a rank and length 4, at a mean squared distance of exactly σ²."""
    generator = torch_generator(derive(seed, "quadratic"))
    left, right = (torch.linalg.qr(torch.randn(side, rank, generator=generator).double()).Q for side in sides)
    mean = 4 / math.sqrt(rank) * left @ right.mT
    apart = torch.randn(clients, *sides, generator=generator, dtype=torch.float64)
    apart -= apart.mean(0)
    return Problem(mean + SPREAD * math.sqrt(clients) * apart / apart.norm(), rank)


def best(matrices: Tensor, rank: int) -> Tensor:
    """The best form of a rank of each matrix (…, d_out, d_in)."""
    u, sigma, v = torch.linalg.svd(matrices, full_matrices=False)
    form: Tensor = u[..., :rank] * sigma[..., None, :rank] @ v[..., :rank, :]
    return form


def step(product: Tensor, minima: Tensor, mu: float, rank: int) -> Tensor:
    """The server's product after a round of the clients with these minima, each weighing the same."""
    return best(best((minima + mu * product) / (1 + mu), rank).mean(0), rank)


def everyone(given: Problem, mu: float, seed: int) -> float:
    """‖∇L‖² where rounds of all clients end, from W̄ on."""
    del seed
    product = given.mean
    for _ in range(math.ceil(SETTLE * (1 + mu))):
        product = step(product, given.minima, mu, given.rank)
    return given.gradient(product)


def sampled(given: Problem, mu: float, seed: int) -> float:
    """The mean of ‖∇L‖² over rounds of two clients, drawn anew each time, once it has settled."""
    generator, product, seen = torch_generator(derive(seed, "cohorts")), given.mean, []
    first, rounds = math.ceil(SETTLE * (1 + mu)), math.ceil((SETTLE + KEEP) * (1 + mu))
    for number in range(rounds):
        cohort = torch.randperm(len(given.minima), generator=generator)[:2]
        product = step(product, given.minima[cohort], mu, given.rank)
        if number >= first:
            seen.append(given.gradient(product))
    return math.fsum(seen) / len(seen)


def from_zero(given: Problem, mu: float, seed: int, rounds: int = 20) -> float:
    """(1/T) Σ_t ‖∇L‖² over T = 20 rounds of all clients from 0 on: what the bound bounds, for a number of rounds."""
    del seed
    product, seen = torch.zeros_like(given.mean), []
    for _ in range(rounds):
        seen.append(given.gradient(product))
        product = step(product, given.minima, mu, given.rank)
    return math.fsum(seen) / rounds


Measure = Callable[[Problem, float, int], float]
CASES: Mapping[str, Measure] = {
    "all clients, until nothing moves": everyone,
    "two of six clients a round, settled": sampled,
    "all clients, mean over 20 rounds from 0": from_zero,
}


def swept(draws: int, mus: tuple[float, ...] = MUS) -> dict[str, list[list[float]]]:
    """Case -> draw of the problem -> the squared gradient at each mu."""
    problems = [problem(seed) for seed in range(draws)]
    return {
        case: [[measure(given, mu, seed) for mu in mus] for seed, given in enumerate(problems)]
        for case, measure in CASES.items()
    }


def slope(values: Sequence[float], mus: tuple[float, ...] = MUS) -> float:
    """The slope of log ‖∇L‖² against log mu, by least squares over mu ≥ 10."""
    chosen = [(math.log(mu), math.log(value)) for mu, value in zip(mus, values, strict=True) if mu >= FITTED]
    x, y = (math.fsum(column) / len(chosen) for column in zip(*chosen, strict=True))
    across = math.fsum((a - x) ** 2 for a, _ in chosen)
    return math.fsum((a - x) * (b - y) for a, b in chosen) / across
