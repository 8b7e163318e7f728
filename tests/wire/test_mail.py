"""The messages of a round: the same bytes as if each were written by itself, and never all there at once."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import torch

from cotune.core.message import Envelope, Header, Kind, Parts
from cotune.core.state import Theta
from cotune.wire import Mail, encode, layouts, payload, readdressed

HEADER = Header(Kind.TRAIN, "0123456789abcdef", "fedcba9876543210", 3, -1, "0011223344556677", "ab" * 32, 5, 0.5, 9.0)
OTHER = Header(Kind.EVALUATE, "f" * 16, "0" * 16, 10**9, 2, "7" * 16, "cd" * 32, 1, -1e-300, 0.0, 2**64 - 1)


def content(size: int = 3, fill: float = 0.0) -> Parts:
    theta = Theta({'a"\\ ü': torch.full((size,), fill), "b": torch.ones(2, 2)})
    return {"theta": theta, "aux": {"c": torch.arange(4)}}


def mail(*envelopes: Envelope) -> Mail:
    written = Mail()
    for number, envelope in enumerate(envelopes):
        written.put(f"client-{number:03d}", envelope)
    return written


def test_another_header_is_all_that_differs_from_a_message_that_was_packed() -> None:
    there = encode(Envelope(OTHER, content()))
    assert readdressed(encode(Envelope(HEADER, content())), HEADER, OTHER) == there
    named = {"theta": Theta({str(HEADER): torch.zeros(1)})}  # a content that looks like a header
    assert readdressed(encode(Envelope(HEADER, named)), HEADER, OTHER) == encode(Envelope(OTHER, named))


def test_messages_are_what_each_would_be_by_itself_in_any_order_and_again() -> None:
    same, different = content(), content(fill=1.0)
    envelopes = [Envelope(replace(HEADER, seed=k), same if k % 3 else different) for k in range(7)]
    written = mail(*envelopes)
    expected = {f"client-{k:03d}": encode(envelope) for k, envelope in enumerate(envelopes)}
    assert dict(written) == expected
    assert {client: written[client] for client in reversed(expected)} == expected
    assert (len(written), "client-003" in written, "nobody" in written) == (7, True, False)


def test_what_a_message_costs_is_known_before_it_is_written() -> None:
    envelopes = [Envelope(HEADER, content(size)) for size in (1, 2, 100)]
    written = mail(*envelopes)
    for client, envelope in zip(written, envelopes, strict=True):
        assert written.cost(client) == (payload(layouts(envelope)), len(encode(envelope)))


def test_many_messages_take_the_memory_of_a_few() -> None:
    shared, mib = content(2**18), 2**20
    written = mail(*(Envelope(replace(HEADER, seed=k), shared) for k in range(50)))
    tracemalloc.start()
    try:
        sizes = [len(written[client]) for client in written]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(sizes) > 50 * mib
    assert peak < 5 * mib
