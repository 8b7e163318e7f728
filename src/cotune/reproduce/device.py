"""Time to a target on a device behind a link: what clients compute and what they send, client by client at once."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field


class Device(BaseModel):
    """A client's device and its link.

    Attributes:
        flops: a second that matrix products reach, of float32 on a Jetson Orin Nano's GPU about a third of its peak.
        up: bits a second from the client.
        down: bits a second to it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    flops: float = Field(default=4e11, gt=0)
    up: float = Field(default=10e6, gt=0)
    down: float = Field(default=50e6, gt=0)

    def seconds(self, spent: Spent) -> float:
        """Of one client: its computation, then its messages."""
        return spent.flops / self.flops + 8 * spent.up / self.up + 8 * spent.down / self.down


@dataclass(frozen=True)
class Spent:
    """By one client until the target: FLOPs, bytes up, bytes down."""

    flops: float
    up: float
    down: float


def order(seconds: dict[str, float | None], expected: tuple[str, ...]) -> str:
    """Whether rows come in the expected order, and which pairs do not."""
    missing = [name for name in expected if seconds[name] is None]
    if missing:
        return f"The order cannot be told: {', '.join(missing)} never got there."
    ranked = sorted(expected, key=lambda name: seconds[name] or 0.0)
    said = " < ".join(ranked)
    if tuple(ranked) == expected:
        return f"The order is the paper's: {said}."
    wrong = [
        f"{b} is before {a}"
        for i, a in enumerate(expected)
        for b in expected[i + 1 :]
        if ranked.index(b) < ranked.index(a)
    ]
    return f"The order is {said}; the paper's is {' < '.join(expected)}: {', '.join(wrong)}."
