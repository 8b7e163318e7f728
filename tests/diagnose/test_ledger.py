"""A ledger line splits a real message into what papers count and the framing around it."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from cotune import wire
from cotune.core.message import Envelope, Header, Kind
from cotune.core.spec import Entry, Role, Spec
from cotune.diagnose import ledger_line

SPEC = Spec(
    (
        Entry("m.A", (2, 6), Role.FACTOR_A, "m"),
        Entry("m.B", (5, 2), Role.FACTOR_B, "m"),
        Entry("n.A", (2, 3), Role.FACTOR_A, "n"),
        Entry("head", (3,), Role.HEAD, "head"),
    )
)
HEADER = Header(Kind.UPDATE, "0" * 16, "0" * 16, 1, 0, "0" * 16, "0" * 64)


def test_payload_is_counted_by_role_and_the_rest_is_framing() -> None:
    theta = {entry.name: torch.zeros(entry.shape) for entry in SPEC}
    aux = {"m.A": torch.zeros(2, 6), "x": torch.zeros(3, dtype=torch.float64)}
    envelope = Envelope(HEADER, {"theta": theta, "aux": aux}, (1.0, 2.0))
    data = wire.encode(envelope)
    line = ledger_line(
        (4, "größe"),
        direction="up",
        purpose="train",
        payload=wire.payload(wire.layouts(envelope)),
        total=len(data),
        spec=SPEC,
    )
    assert (line.round, line.client, line.direction, line.purpose) == (4, "größe", "up", "train")
    assert line.payload_bytes == {"factor_a": 4 * (12 + 6), "factor_b": 4 * 10, "head": 4 * 3, "aux": 4 * 12 + 8 * 3}
    assert line.framing_bytes == len(data) - 4 * 31 - 4 * 12 - 8 * 3
    assert line.total_bytes == len(data)


PAYLOADS = st.dictionaries(
    st.tuples(st.sampled_from(["theta", "aux", "base", "scalars"]), st.sampled_from([*SPEC.names, "stray", "m/B"])),
    st.integers(0, 10**12),
)


@given(PAYLOADS, st.integers(0, 10**6))
def test_the_parts_of_a_line_sum_to_the_message(payload: dict[tuple[str, str], int], framing: int) -> None:
    total = sum(payload.values()) + framing
    line = ledger_line((1, "a"), direction="down", purpose="evaluate", payload=payload, total=total, spec=SPEC)
    assert line.total_bytes == total
    assert line.framing_bytes == framing
    roles = {entry.name: entry.role.value for entry in SPEC}
    expected = {(roles.get(name, "theta") if part == "theta" else part) for part, name in payload}
    assert set(line.payload_bytes) == expected


def test_a_message_that_could_not_be_read_is_all_framing() -> None:
    line = ledger_line((1, "a"), direction="up", purpose="train", payload={}, total=99, spec=SPEC)
    assert (line.payload_bytes, line.framing_bytes) == ({}, 99)
