"""What a message cost: payload by role or part, as papers count it, and the framing around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from cotune.core.record import LedgerLine
from cotune.core.spec import Spec

_FIELDS = set(LedgerLine.model_fields)


def ledger_line(
    place: tuple[int, str],
    *,
    direction: Literal["up", "down"],
    purpose: Literal["train", "evaluate"],
    payload: Mapping[tuple[str, str], int],
    total: int,
    spec: Spec,
) -> LedgerLine:
    """The line of one message.

    Args:
        place: (round, client).
        direction: seen from the client.
        purpose: what the message is for.
        payload: (part, name) -> bytes of each tensor; theta is counted by the role of its tensors.
        total: bytes of the whole message; what is not payload is framing.
        spec: the client's table.
    """
    by_part: dict[str, int] = {}
    for (part, name), count in payload.items():
        key = spec[name].role.value if part == "theta" and name in spec else part
        by_part[key] = by_part.get(key, 0) + count
    return LedgerLine.model_construct(  # as it is: there is a line for every message
        _FIELDS,
        round=place[0],
        client=place[1],
        direction=direction,
        purpose=purpose,
        payload_bytes=by_part,
        framing_bytes=total - sum(by_part.values()),
    )
