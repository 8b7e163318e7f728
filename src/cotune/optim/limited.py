"""How many slopes a limit has cut, told from the coefficients that were sent."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

NEAR = 1 - 1e-4  # a coefficient may have been rounded to a tick


def cut_slopes(rows: Iterable[tuple[Tensor, float]], largest: float | None) -> dict[str, float]:
    """`{cut_slopes: how many}` where there is a limit.

    Args:
        rows: coefficients, and what a slope of 1 makes of one.
        largest: what a slope may be.
    """
    if largest is None:
        return {}
    limits = ((coefficients.abs(), abs(unit) * largest * NEAR) for coefficients, unit in rows)
    return {"cut_slopes": float(sum(int((sizes >= limit).sum()) for sizes, limit in limits if limit))}
