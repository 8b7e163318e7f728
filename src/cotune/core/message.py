"""Envelopes: what travels, as a value. Sizes depend on the spec alone, because no field is of variable width."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from torch import Tensor

from cotune.core.errors import Code, CotuneError
from cotune.core.state import Named, Session, Theta

NEVER = -1  # the round of something that has not happened


class Kind(StrEnum):
    """What a message asks for, or answers."""

    TRAIN = "train"  # down: start from this and train
    UPDATE = "update"  # up: what training arrived at
    EVALUATE = "evaluate"  # down: score this
    REPORT = "report"  # up: metrics
    HELD = "held"  # up: "I cannot open this; the last round that I hold is `accepted`"


# What each part of an envelope may hold; a state that stays with its client has no row here.
PARTS: Mapping[str, type[Named] | None] = {
    "theta": Theta,
    "aux": None,
    "base": None,
    "scalars": None,
    "replay": None,
    "scores": None,
}


@dataclass(frozen=True, slots=True)  # a server keeps one of every client in a round
class Header:
    """The fixed-width fields of every message.

    Attributes:
        kind: what it asks for or answers.
        run: the experiment's hash, 16 hex digits.
        client: digest of the client's id, 16 hex digits.
        round: counts from 1.
        accepted: down: the last round in which this client was accepted; up, kind held: the last one it holds.
        spec: digest of the client's spec, 16 hex digits.
        base: digest of the theta (and of what is added to the backbone) that training starts from, 64 hex digits.
        rows: down: the most a reply may claim; up: how many rows it trained or was scored on.
        rate: the learning-rate factor of the round.
        deadline: seconds the client has; 0 for no limit.
        seed: of the round's directions; 0 where there are none.
    """

    kind: Kind
    run: str
    client: str
    round: int
    accepted: int
    spec: str
    base: str
    rows: int = 0
    rate: float = 1.0
    deadline: float = 0.0
    seed: int = 0


Parts = Mapping[str, Mapping[str, Tensor]]


@dataclass(frozen=True)
class Envelope:
    """A message: header, parts of named tensors, and metrics as one float64 vector in a fixed order.

    Raises:
        CotuneError: E_CONFLICT when a part is given a state that may not travel.
    """

    header: Header
    parts: Parts = field(default_factory=dict)
    metrics: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for part, tensors in self.parts.items():
            if part not in PARTS:
                raise CotuneError(Code.KEYS, f"no message part '{part}'", expected=", ".join(PARTS))
            allowed = PARTS[part]
            wrong = isinstance(tensors, Named | Session) and type(tensors) is not allowed
            if wrong or not isinstance(tensors, Mapping):
                raise CotuneError(
                    Code.CONFLICT,
                    f"{type(tensors).__name__} may not travel",
                    where=f"message part '{part}'",
                    expected=allowed.__name__ if allowed else "plain tensors",
                )

    def part(self, name: str) -> Mapping[str, Tensor]:
        """The tensors of one part; empty when the message has none."""
        return self.parts.get(name, {})


@dataclass(frozen=True)
class Limits:
    """What a message may claim before anything is allocated for it.

    Attributes:
        bytes: of the whole message.
        layout: part -> name -> (dtype, shape), when the content is known beforehand; None accepts any content that
            fits in `bytes`.
        metrics: how many numbers the metrics vector has; None accepts any.
    """

    bytes: int
    layout: Mapping[str, Mapping[str, tuple[str, tuple[int, ...]]]] | None = None
    metrics: int | None = None
