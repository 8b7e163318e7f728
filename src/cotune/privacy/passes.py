"""How often a row takes part, where batches are whole passes in a derived order: no coin, and so no gain from one."""

from __future__ import annotations

import math

from cotune.core.view import Budget


def most(rows: int, budget: Budget) -> int:
    """`max Σ_s m_s²` over rows and orders, where m_s is how often a row is in step s of a round.

    That many releases with noise of (noise of a step) / (what a row changes once) cost what the round costs: squares,
    since a row that is m times in a step changes m times as much. m_s is 0 or 1, unless a step takes batches of two
    passes. A bound, and exact where passes end with steps.

    Args:
        rows: of the client.
        budget: of a round.
    """
    if not rows:
        return 0
    batches, together = math.ceil(rows / budget.batch), budget.accumulate
    times = math.ceil(budget.count(rows) * together / batches)
    at_once = 1 if batches % together == 0 else min(times, (together - 2) // batches + 2)
    full, rest = divmod(times, at_once)
    return full * at_once**2 + rest**2
