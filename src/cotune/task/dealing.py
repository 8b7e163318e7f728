"""What divisions are made of: drawn proportions, whole numbers that sum to a total, rows dealt out in turn."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import cycle

import numpy as np
import numpy.typing as npt

from cotune.core.errors import Code, CotuneError

_EXTREME = 1e12  # beyond it, or below 1 / it, nothing changes any more, and logarithms would overflow


def numbered(parts: Sequence[list[int]]) -> dict[str, list[int]]:
    """`client-00`, `client-01`, …, as wide as the last one -> its part."""
    width = max(2, len(str(len(parts) - 1)))
    return {f"client-{client:0{width}d}": rows for client, rows in enumerate(parts)}


def enough(rows: int, clients: int, minimum: int, where: str) -> None:
    """Raise E_DATA where there are fewer rows than clients × minimum; E_CONFIG for counts that mean nothing."""
    if clients < 1 or minimum < 0:
        got = f"clients {clients}, minimum {minimum}"
        raise CotuneError(Code.CONFIG, "no such partition", where=where, got=got, expected="clients ≥ 1, minimum ≥ 0")
    if rows < clients * minimum:
        raise CotuneError(
            Code.DATA,
            "too few rows for this partition",
            where=where,
            got=f"{rows} rows",
            expected=f"at least {clients * minimum} for {clients} clients with minimum {minimum}",
            fix="ask for fewer clients or a smaller minimum",
        )


def proportions(generator: np.random.Generator, alpha: float, clients: int) -> npt.NDArray[np.float64]:
    """One draw from Dirichlet(alpha), in logarithms: log Γ(a) = log Γ(a+1) + log(U)/a never underflows to 0/0."""
    alpha = min(max(alpha, 1 / _EXTREME), _EXTREME)
    uniform = 1.0 - generator.random(clients)  # in (0, 1]
    logs = np.log(generator.standard_gamma(alpha + 1.0, clients)) + np.log(uniform) / alpha
    shares: npt.NDArray[np.float64] = np.exp(logs - logs.max())
    shares /= shares.sum()
    return shares


def counts(shares: npt.NDArray[np.float64], total: int) -> npt.NDArray[np.int64]:
    """`total` in proportion to `shares`, as integers that sum to it: largest remainders first, ties to the left."""
    quotas = shares * total
    whole = np.floor(quotas).astype(np.int64)
    order = np.argsort(whole - quotas, kind="stable")
    whole[order[: total - int(whole.sum())]] += 1
    return whole


def level(limits: Sequence[int], total: int) -> list[int]:
    """`total` ≤ Σ limits as integers, each at most its limit, and else as equal as can be; ties to the left."""
    most = max(limits, default=0)
    low = bisect_right(range(1, most + 1), total, key=lambda height: sum(min(limit, height) for limit in limits))
    found = [min(limit, low) for limit in limits]
    left = total - sum(found)
    for place, limit in enumerate(limits):
        if left and limit > low:
            found[place] += 1
            left -= 1
    return found


def deal(rows: Iterable[int], parts: Sequence[list[int]], clients: Iterable[int]) -> None:
    """Put `rows` into `parts`, one at a time, to the `clients` in turn."""
    for row, client in zip(rows, cycle(clients), strict=False):
        parts[client].append(row)


def repaired(parts: list[list[int]], minimum: int) -> list[list[int]]:
    """`parts` sorted, after each client below `minimum` was given rows of whoever has the most."""
    heap = [(-len(rows), client) for client, rows in enumerate(parts)]
    heapq.heapify(heap)
    for rows in parts:
        while len(rows) < minimum:
            size, donor = heapq.heappop(heap)
            if -size == len(parts[donor]):
                rows.append(parts[donor].pop())
            heapq.heappush(heap, (-len(parts[donor]), donor))
    return [sorted(rows) for rows in parts]
