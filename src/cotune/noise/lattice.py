"""Theta and steps on a lattice: multiples of one power of two, the tick, which add without rounding in any order.

A float32 has 24 bits, so sums of multiples of a tick are exact as long as none is larger than 2²⁴ ticks. Then theta
after a round does not depend on the order of directions or clients, and replaying the sum of what clients sent is the
sum of their replays: what a masked sum needs, of which nobody sees the terms.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from cotune.core.errors import Code, CotuneError

EXACT = 2**24  # ticks: float32 knows every whole number up to here


def snapped(tensor: Tensor, tick: float, out: Tensor | None = None) -> Tensor:
    """`round(tensor / tick) · tick`, ties to even and never −0, as a new tensor or in `out`; twice is as once."""
    return torch.div(tensor, tick, out=out).round_().mul_(tick).add_(0.0)


def to_ticks(coefficients: Tensor, tick: float) -> Tensor:
    """Multiples of a tick as whole numbers of it, int32.

    Raises:
        CotuneError: E_SCALAR for one beyond 2²⁴ ticks, or not finite.
    """
    whole = coefficients.double() / tick
    wrong = whole[~(whole.abs() <= EXACT)]
    if len(wrong):
        what, fix = "a coefficient has too many ticks", "lower uplink.tick_bits, or the learning rate"
        raise CotuneError(Code.SCALAR, what, where="noise", got=float(wrong[0]), expected=f"at most {EXACT}", fix=fix)
    return whole.round().int()


def from_ticks(whole: Tensor, tick: float) -> Tensor:
    """What whole numbers of ticks stand for, float32: exact up to 2²⁴ of them."""
    return (whole.double() * tick).float()


def check_room(tensors: Iterable[Tensor], coefficients: Iterable[Tensor], tick: float) -> None:
    """Raise E_SCALAR where `max |θ| + Σ |coefficient|` is beyond 2²⁴ ticks: sums could round, and order would count."""
    reach = max((float(tensor.abs().max()) for tensor in tensors if tensor.numel()), default=0.0) + tick
    reach += sum(float(c.double().abs().sum()) for c in coefficients)
    if not reach <= EXACT * tick:
        raise CotuneError(
            Code.SCALAR,
            "theta could leave the range in which ticks add exactly",
            where="noise",
            got=f"{reach:g}",
            expected=f"at most {EXACT * tick:g}, which is 2²⁴ ticks",
            fix="lower uplink.tick_bits",
        )


def rounded_to(tick: float, coefficients: Tensor) -> Tensor:
    """float64 coefficients as the float32 that a step moves by: the nearest multiples of the tick, unless it is 0."""
    return (coefficients / tick).round().mul(tick).float() if tick else coefficients.float()
