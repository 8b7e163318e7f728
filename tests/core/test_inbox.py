"""Replies come out in the order of their clients, whatever the order, the company and the number in which they came."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotune.core.errors import Code, CotuneError
from cotune.core.inbox import HELD_IN_MEMORY, SMALL_BYTES, WAITING, Inbox

CLIENTS = ["ada", "bo", "cy", "dan", "eve", "flo", "gus"]
BAD = b"refused"
Answer = bytes | CotuneError


class Taker:
    """Takes replies as the server does: keeps good ones in the order they come, raises for bad ones."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, bytes]] = []

    def __call__(self, client: str, reply: bytes) -> None:
        if reply == BAD:
            raise CotuneError(Code.NONFINITE, "reply is not finite", where=client)
        self.taken.append((client, reply))


def deliver(answers: Sequence[tuple[str, Answer]], folder: Path | None) -> tuple[Inbox, list[tuple[str, bytes]]]:
    taker = Taker()
    inbox = Inbox(CLIENTS, taker, folder)
    for client, answer in answers:
        inbox.put(client, answer)
    inbox.close(CotuneError(Code.LATE, "no reply in time"))
    return inbox, taker.taken


def answer_of(client: str, kind: str) -> Answer:
    if kind == "failed":
        return CotuneError(Code.CLIENT, "client failed", where=client)
    return BAD if kind == "bad" else client.encode() * 3


KINDS = st.lists(
    st.sampled_from(["good", "good", "bad", "failed", "silent"]), min_size=len(CLIENTS), max_size=len(CLIENTS)
)


@given(KINDS, st.permutations(CLIENTS), st.lists(st.tuples(st.sampled_from([*CLIENTS, "zed"]), st.integers(0, 9))))
def test_any_arrival_gives_the_same_outcome_in_the_order_of_the_clients(
    kinds: list[str], order: list[str], extra: list[tuple[str, int]]
) -> None:
    kind = dict(zip(CLIENTS, kinds, strict=True))
    arrivals = [(client, answer_of(client, kind[client])) for client in order if kind[client] != "silent"]
    noise = 0
    for client, place in extra:  # second answers after the first, and strangers anywhere
        if client == "zed" or kind[client] != "silent":
            first = next((i for i, (name, _) in enumerate(arrivals) if name == client), -1)
            arrivals.insert(max(place, first + 1), (client, b"another"))
            noise += 1

    with TemporaryDirectory() as folder:
        inbox, taken = deliver(arrivals, Path(folder))
        left_over = list(Path(folder).iterdir())
    assert taken == [(client, client.encode() * 3) for client in CLIENTS if kind[client] == "good"]
    assert inbox.accepted == [client for client in CLIENTS if kind[client] == "good"]
    codes = {"bad": Code.NONFINITE, "failed": Code.CLIENT, "silent": Code.LATE}
    assert {client: error.code for client, error in inbox.dropped.items()} == {
        client: codes[kind[client]] for client in CLIENTS if kind[client] in codes
    }
    assert [note.code for note in inbox.notes] == [Code.DUPLICATE] * noise
    assert left_over == []


def test_the_first_of_two_replies_counts_and_the_second_is_noted(tmp_path: Path) -> None:
    inbox, taken = deliver([("bo", b"first"), ("bo", b"second"), ("ada", b"x"), ("bo", b"third")], tmp_path)
    assert taken == [("ada", b"x"), ("bo", b"first")]
    assert len(inbox.notes) == 2
    assert all("client bo" in str(note) and note.code is Code.DUPLICATE for note in inbox.notes)


def test_a_reply_after_a_failure_does_not_count(tmp_path: Path) -> None:
    failure = CotuneError(Code.CLIENT, "client failed")
    inbox, taken = deliver([("ada", failure), ("ada", b"late")], tmp_path)
    assert taken == []
    assert inbox.dropped["ada"] is failure


def test_a_reply_after_the_close_changes_nothing(tmp_path: Path) -> None:
    inbox, taken = deliver([("ada", b"x")], tmp_path)
    inbox.put("bo", b"late")
    assert taken == [("ada", b"x")]
    assert inbox.dropped["bo"].code is Code.LATE
    assert len(inbox.notes) == 1


def large(client: str) -> bytes:
    """A reply that is worth a file."""
    return client.encode() * SMALL_BYTES


def test_small_replies_wait_in_memory_while_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inbox = Inbox(CLIENTS, Taker(), tmp_path)
    for client in CLIENTS[::-1]:
        inbox.put(client, b"x" * SMALL_BYTES)
        assert list(tmp_path.iterdir()) == []
    assert inbox.accepted == CLIENTS
    monkeypatch.setattr("cotune.core.inbox.SMALL_ROOM", 2 * SMALL_BYTES)
    inbox = Inbox(CLIENTS, Taker(), tmp_path)
    for waiting, client in enumerate(CLIENTS[:0:-1], 1):
        inbox.put(client, b"x" * SMALL_BYTES)
        assert len(list(tmp_path.iterdir())) == max(waiting - 2, 0)
    inbox.put(CLIENTS[0], b"x" * SMALL_BYTES)
    assert inbox.accepted == CLIENTS
    assert list(tmp_path.iterdir()) == []


def test_more_than_three_large_replies_are_on_disk_and_their_files_vanish(tmp_path: Path) -> None:
    taker = Taker()
    inbox = Inbox(CLIENTS, taker, tmp_path)
    on_disk = []
    for client in CLIENTS[:0:-1]:
        inbox.put(client, large(client))
        on_disk.append(len(list(tmp_path.glob(f"{WAITING}*"))))
    waiting = len(CLIENTS) - 1
    assert on_disk == [max(0, count - HELD_IN_MEMORY) for count in range(1, waiting + 1)]
    assert on_disk[-1] == 3
    assert taker.taken == []
    inbox.put(CLIENTS[0], b"at last")
    assert [client for client, _ in taker.taken] == CLIENTS
    assert taker.taken[1:] == [(client, large(client)) for client in CLIENTS[1:]]
    assert list(tmp_path.iterdir()) == []


def test_replies_in_order_never_touch_the_disk(tmp_path: Path) -> None:
    inbox = Inbox(CLIENTS, Taker(), tmp_path / "not there")
    for client in CLIENTS:
        inbox.put(client, b"x")
    assert inbox.accepted == CLIENTS


def test_a_reply_that_cannot_be_kept_stops_with_its_reason(tmp_path: Path) -> None:
    inbox = Inbox(CLIENTS, Taker(), tmp_path / "not there")
    for client in CLIENTS[6:3:-1]:
        inbox.put(client, large(client))
    with pytest.raises(CotuneError, match="No such file") as caught:
        inbox.put(CLIENTS[3], large(CLIENTS[3]))
    assert caught.value.code is Code.DISK
    inbox.put(CLIENTS[0], b"x")
    assert inbox.accepted == CLIENTS[:1], "one whose turn it is needs no disk"


def test_a_waiting_reply_that_vanished_costs_its_client(tmp_path: Path) -> None:
    inbox = Inbox(CLIENTS, Taker(), tmp_path)
    for client in CLIENTS[:0:-1]:
        inbox.put(client, large(client))
    (last, *_) = sorted(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    last.unlink()
    inbox.put(CLIENTS[0], b"x")
    assert {client: error.code for client, error in inbox.dropped.items()} == {"dan": Code.DISK}
    assert inbox.accepted == [client for client in CLIENTS if client != "dan"]


def test_another_exception_than_ours_is_not_swallowed(tmp_path: Path) -> None:
    def broken(client: str, reply: bytes) -> None:
        raise ZeroDivisionError(client, reply)

    with pytest.raises(ZeroDivisionError):
        Inbox(CLIENTS, broken, tmp_path).put("ada", b"x")


def test_dropped_clients_are_listed_by_code() -> None:
    inbox, _ = deliver([("cy", BAD), ("bo", BAD), ("ada", b"x")], None)
    assert inbox.by_code() == {"E_NONFINITE": ("bo", "cy"), "E_LATE": ("dan", "eve", "flo", "gus")}
