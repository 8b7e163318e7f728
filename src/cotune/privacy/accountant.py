"""Epsilon of Gaussian noise that is drawn many times, by dp-accounting (extra `dp`).

A mechanism is (ε, δ)-private for a pair of neighbours if P(A) ≤ e^ε P'(A) + δ for every event A, both ways round. The
noise multiplier is the noise's standard deviation over what a neighbour changes at most; who the neighbours are is the
mechanism's to say.
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any, Literal

from cotune.core.errors import Code, CotuneError

LEAST = 1e-6  # of all releases together: with less noise epsilon is above 10¹¹, and no longer found


def epsilon(
    multiplier: float, times: int, delta: float, rate: float = 1.0, bound: Literal["tight", "renyi"] = "tight"
) -> float:
    """ε at `delta` of `times` Gaussian releases; ∞ with next to no noise, 0 without a release.

    Args:
        multiplier: of the noise.
        times: releases, each of which may depend on those before.
        delta: above 0 and below 1.
        rate: 1 where every release sees all rows; below it, each release sees each row by a coin of its own that
            nobody else knows (Poisson), and neighbours differ by a row that is there or not. Passes over shuffled or
            derived batches are not that, and have rate 1.
        bound: tight is exact for rate 1, and a numerical composition of privacy losses below it; renyi is the looser
            one by Rényi divergences that papers quote.

    Raises:
        CotuneError: E_CONFIG without dp-accounting, or for a number out of range.
    """
    wrong = [
        (name, value, expected)
        for name, value, good, expected in (
            ("multiplier", multiplier, 0 <= multiplier < math.inf, "0 or more"),
            ("times", times, times >= 0, "0 or more"),
            ("delta", delta, 0 < delta < 1, "above 0 and below 1"),
            ("rate", rate, 0 < rate <= 1, "above 0 and at most 1"),
        )
        if not good
    ]
    for name, value, expected in wrong:
        raise CotuneError(Code.CONFIG, f"no epsilon of this {name}", where="privacy", got=value, expected=expected)
    if not times:
        return 0.0
    together = multiplier / math.sqrt(times)
    if together < LEAST:
        return math.inf
    accounting = _accounting()
    if rate == 1 and bound == "tight":  # many Gaussian releases are one, of less noise
        return float(accounting.get_epsilon_gaussian(together, delta))
    known = {"tight": "pld:PLDAccountant", "renyi": "rdp:RdpAccountant"}
    module, _, name = known[bound].partition(":")
    accountant = getattr(_accounting(f".{module}"), name)()
    event = accounting.GaussianDpEvent(multiplier)
    accountant.compose(event if rate == 1 else accounting.PoissonSampledDpEvent(rate, event), times)
    return float(accountant.get_epsilon(delta))


def _accounting(module: str = "") -> Any:
    """dp-accounting, or a module of it; loaded when it is needed, since it takes a second."""
    try:
        return import_module(f"dp_accounting{module}")
    except ImportError as error:
        fix = "pip install 'cotune[dp]'"
        raise CotuneError(Code.CONFIG, "epsilon needs dp-accounting", where="privacy", fix=fix) from error
