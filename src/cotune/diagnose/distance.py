"""How far a round moved theta."""

from __future__ import annotations

import math

from cotune.core.state import Theta


def distance(before: Theta, after: Theta) -> float:
    """‖after − before‖ in float64: how far a round moved theta."""
    return math.sqrt(sum(float((after[n].double() - t.double()).square().sum()) for n, t in before.items()))
