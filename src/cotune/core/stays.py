"""What stays with the clients of a run, in words: a drop that is zero by construction must not look like a result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def stays(about: Mapping[str, Any]) -> str:
    """What a reader of the drop must know, from experiment.json; empty where all that trains is aggregated.

    The drop compares a client's own model with the one that it has after aggregation: whatever stays with the client is
    the same in both.
    """
    trained = about.get("trained", {})
    numbers, shared = int(trained.get("numbers", 0)), int(trained.get("shared", 0))
    method = about.get("experiment", {}).get("method", {})
    lines = []
    if numbers and not shared:
        lines.append("nothing is shared: a client's model is the same before and after aggregation, and its drop is 0")
    elif shared < numbers:
        lines.append(
            f"{numbers - shared:,} of {numbers:,} trained numbers ({_percent(numbers - shared, numbers)}) stay with "
            f"each client, and are the same before and after aggregation: the drop is what the other {shared:,} lose, "
            "near 0 by construction where those matter little"
        )
    personalize = method.get("personalize")
    if personalize:
        lines.append(
            f"after aggregation each client uses a theta of its own, which {personalize['kind']} makes of the global "
            "one and of what the client had: the drop is against that, near 0 by construction where it keeps most of "
            "its own"
        )
    return "; ".join(lines)


def _percent(part: int, whole: int) -> str:
    """`62 %`; what is not all of it is never said to be."""
    return f"{min(100 * part / whole, 99.9):.3g} %"
