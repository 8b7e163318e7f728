"""One bad reply costs its client, never the round, never the run; too few replies cost the round and leave no trace."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tiny import Wrapped, experiment, play
from torch import Tensor

from cotune import wire
from cotune.client import client_digest
from cotune.core.contracts import ClientInfo, OnReply, Outcome, Penalty
from cotune.core.errors import Code, CotuneError
from cotune.core.message import Envelope, Limits
from cotune.core.record import RoundRecord
from cotune.core.state import Theta
from cotune.core.view import NamedTensors, View
from cotune.round import client_step
from cotune.store import Run

VICTIM = "domain-1"
ANY = Limits(bytes=10**9)
Tamper = Callable[[bytes], bytes | CotuneError]


def tampered(change: Tamper, victims: tuple[str, ...] = (VICTIM,), purpose: str = "update") -> type[Wrapped]:
    """An engine in which the replies of some clients are changed on their way."""

    class Tampering(Wrapped):
        def exchange(
            self, downs: Mapping[str, bytes], deadline: float | None, min_ok: int, on_reply: OnReply
        ) -> Outcome:
            def receive(client: str, reply: bytes | CotuneError) -> None:
                ours = client in victims and isinstance(reply, bytes)
                if ours and wire.decode(reply, ANY).header.kind == purpose:  # type: ignore[arg-type]
                    reply = change(reply)  # type: ignore[arg-type]
                on_reply(client, reply)

            return self.inner.exchange(downs, deadline, min_ok, receive)

    return Tampering


def edit(change: Callable[[Envelope], Envelope]) -> Tamper:
    return lambda reply: wire.encode(change(wire.decode(reply, ANY)))


def header(**fields: Any) -> Tamper:
    return edit(lambda envelope: replace(envelope, header=replace(envelope.header, **fields)))


def theta(change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Tamper:
    def changed(envelope: Envelope) -> Envelope:
        return replace(envelope, parts={**envelope.parts, "theta": change(dict(envelope.part("theta")))})

    return edit(changed)


def first(change: Callable[[Tensor], Tensor]) -> Tamper:
    """Change the first tensor."""
    return theta(lambda tensors: {n: change(t) if i == 0 else t for i, (n, t) in enumerate(sorted(tensors.items()))})


def poke(value: float) -> Tamper:
    def poked(tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[-1] = value
        return tensor

    return first(poked)


def stub(tensors: dict[str, Tensor]) -> str:
    return min(tensors)


BAD: dict[str, tuple[Tamper, Code]] = {
    "of a past round": (header(round=0), Code.ROUND),
    "of a coming round": (header(round=7), Code.ROUND),
    "of another run": (header(run="f" * 16), Code.RUN),
    "of another client": (header(client=client_digest("domain-0")), Code.RUN),
    "from a stale theta": (header(base="0" * 64), Code.BASE),
    "of another spec": (header(spec="0" * 16), Code.KEYS),
    "that claims no rows": (header(rows=0), Code.COUNT),
    "that claims minus five rows": (header(rows=-5), Code.COUNT),
    "that claims 10^9 rows": (header(rows=10**9), Code.COUNT),
    "with NaN": (poke(float("nan")), Code.NONFINITE),
    "with infinity": (poke(float("-inf")), Code.NONFINITE),
    "with a broadcastable shape": (first(lambda t: t.new_zeros(1)), Code.SHAPE),
    "with a 0-dim tensor": (first(lambda t: t.new_zeros(())), Code.SHAPE),
    "with a transposed tensor": (first(lambda t: t.mT.contiguous()), Code.SHAPE),
    "with an empty tensor": (first(lambda t: t.new_zeros(0)), Code.SHAPE),
    "in float64": (first(lambda t: t.double()), Code.DTYPE),
    "in float16": (first(lambda t: t.half()), Code.DTYPE),
    "in bfloat16": (first(lambda t: t.bfloat16()), Code.DTYPE),
    "in integers": (first(lambda t: t.int()), Code.DTYPE),
    "with a missing name": (theta(lambda t: {n: v for n, v in t.items() if n != stub(t)}), Code.KEYS),
    "with an extra name": (theta(lambda t: {**t, "extra": torch.zeros(1)}), Code.KEYS),
    "with a renamed tensor": (theta(lambda t: {("x" if n == stub(t) else n): v for n, v in t.items()}), Code.KEYS),
    "cut short": (lambda reply: reply[:-1], Code.TRUNCATED),
    "cut in its table": (lambda reply: reply[:100], Code.TRUNCATED),
    "of no bytes": (lambda reply: b"", Code.TRUNCATED),
    "that is a pickle": (lambda reply: b"\x80\x04" + b"cos\nsystem\n" * 9, Code.FORMAT),
    "ten times too large": (lambda reply: reply * 10, Code.SIZE),
}
COHORT_OF_ALL = {"rounds": 2, "min_replies": 3}


@pytest.mark.parametrize("what", BAD)
def test_a_reply_is_refused_with_its_code_and_the_others_commit(what: str, tmp_path: Path) -> None:
    change, code = BAD[what]
    whole = experiment(federation=COHORT_OF_ALL, evaluation={"which": "none"})
    run = play(whole, tmp_path, make_engine=tampered(change))
    without = play(whole, tmp_path / "without", make_engine=tampered(lambda reply: CotuneError(Code.ENGINE, "gone")))
    for record in run.rounds:
        assert record.cohort.dropped == {code.value: (VICTIM,)}
        assert record.cohort.accepted == ("domain-0", "domain-2", "domain-3")
        assert abs(sum(record.weights.values()) - 1) < 1e-12
        assert record.abandoned is None
    # To the bit as if that client had not been there.
    assert run.theta_sha256 == without.theta_sha256


def test_metrics_that_are_no_numbers_are_dropped_and_the_update_is_kept(tmp_path: Path) -> None:
    def spoiled(envelope: Envelope) -> Envelope:
        return replace(envelope, metrics=tuple(float("nan") for _ in envelope.metrics))

    whole = experiment(federation=COHORT_OF_ALL)
    run = play(whole, tmp_path, make_engine=tampered(edit(spoiled)))
    assert run.theta_sha256 == play(whole, tmp_path / "clean").theta_sha256
    assert run.rounds[0].client_metrics[VICTIM]["accuracy"].local is None
    assert run.rounds[0].train_loss is not None


@pytest.mark.parametrize("kind", ["duplicate", "stranger"])
def test_a_second_reply_and_a_stranger_change_nothing(kind: str, tmp_path: Path) -> None:
    class Twice(Wrapped):
        def exchange(
            self, downs: Mapping[str, bytes], deadline: float | None, min_ok: int, on_reply: OnReply
        ) -> Outcome:
            def receive(client: str, reply: bytes | CotuneError) -> None:
                on_reply(client, reply)
                on_reply(
                    client if kind == "duplicate" else "nobody", poke(5.0)(reply) if isinstance(reply, bytes) else reply
                )

            return self.inner.exchange(downs, deadline, min_ok, receive)

    whole = experiment(federation=COHORT_OF_ALL, evaluation={"which": "none"})
    assert play(whole, tmp_path, make_engine=Twice).theta_sha256 == play(whole, tmp_path / "once").theta_sha256


def test_too_few_replies_abandon_the_round_without_a_trace_and_the_run_goes_on(tmp_path: Path) -> None:
    everyone = ("domain-0", "domain-1", "domain-2", "domain-3")
    only_once = iter([True, True, True, False, False, False, False, False, False])
    fail = tampered(lambda reply: CotuneError(Code.CLIENT, "gone") if next(only_once) else reply, everyone[:3])
    whole = experiment("scaffold", federation={"rounds": 3, "min_replies": 2}, evaluation={"which": "none"})
    run = play(whole, tmp_path, make_engine=fail)
    start = whole.blueprint().build().start.sha256()
    assert [record.abandoned is None for record in run.rounds] == [False, True, True]
    assert "too few replies" in str(run.rounds[0].abandoned)
    assert run.rounds[0].theta_sha256 == start
    assert run.rounds[2].theta_sha256 != start

    class Asleep(Wrapped):
        """Three clients sleep through the first round: they never see it, let alone keep state of it."""

        nights = 0

        def exchange(
            self, downs: Mapping[str, bytes], deadline: float | None, min_ok: int, on_reply: OnReply
        ) -> Outcome:
            type(self).nights += 1
            if self.nights > 1:
                return super().exchange(downs, deadline, min_ok, on_reply)
            for client in everyone[:3]:
                on_reply(client, CotuneError(Code.CLIENT, "asleep"))
            return super().exchange({"domain-3": downs["domain-3"]}, deadline, min_ok, on_reply)

    assert play(whole, tmp_path / "asleep", make_engine=Asleep).theta_sha256 == run.theta_sha256


def test_rounds_without_any_rows_are_abandoned_and_then_the_run_stops_with_its_status(tmp_path: Path) -> None:
    everyone = ("domain-0", "domain-1", "domain-2", "domain-3")
    whole = experiment(federation={"rounds": 9})
    with pytest.raises(CotuneError, match="too few replies") as caught:
        play(whole, tmp_path, make_engine=tampered(header(rows=0), everyone))
    assert (caught.value.code, caught.value.status) == (Code.QUORUM, 5)
    run = Run(whole.folder(tmp_path))
    assert run.status == "failed"
    assert [record.cohort.dropped for record in run.rounds] == [{"E_COUNT": everyone}] * 3
    assert run.theta_sha256 == whole.blueprint().build().start.sha256()


def test_clients_without_rows_are_never_asked(tmp_path: Path) -> None:
    class Emptied(Wrapped):
        def clients(self) -> list[ClientInfo]:
            return [replace(info, rows=0) if info.id == VICTIM else info for info in super().clients()]

    run = play(experiment(federation={"rounds": 1}), tmp_path, make_engine=Emptied)
    assert run.rounds[0].cohort.selected == ("domain-0", "domain-2", "domain-3")


class Raising(Penalty):
    """A penalty that raises on one client, with that client's data in its text."""

    kind: ClassVar[str] = "raising"

    def __call__(self, tensors: NamedTensors, view: View) -> Tensor:
        """Fails where it should not."""
        if view.client == VICTIM:
            raise LookupError("the secret row of this client")
        return torch.zeros(())


def dropped(record: RoundRecord) -> str:
    assert set(record.cohort.reasons) == {VICTIM}
    return record.cohort.reasons[VICTIM]


def test_an_exception_in_training_names_its_client_and_its_line_and_never_its_text(tmp_path: Path) -> None:
    whole = experiment(federation=COHORT_OF_ALL)
    method = whole.method.model_copy(update={"penalties": (Raising(),)})
    started = time.monotonic()
    run = play(whole.model_copy(update={"method": method}), tmp_path)
    assert time.monotonic() - started < 60
    assert f"client {VICTIM}" in dropped(run.rounds[0])
    assert "LookupError at test_replies.py" in dropped(run.rounds[0])
    written = b"".join(path.read_bytes() for path in run.folder.rglob("*") if path.is_file())
    assert b"secret row" not in written


@pytest.mark.parametrize("stage", ["build", "evaluate"])
def test_a_client_that_cannot_be_built_or_scored_is_named_and_costs_nobody_else(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = experiment(federation={"rounds": 1})
    real = type(whole.task).encode
    calls = {"n": 0}

    def encode(self: Any, rows: Any, tokenizer: Any, limit: int) -> Any:
        """Fails on the victim's rows: its train rows when it is built, its held-back rows when it is scored."""
        calls["n"] += 1
        corpus = victim_rows
        if (rows and rows[0] in corpus.train and stage == "build") or (
            rows and rows[0] in corpus.held and stage == "evaluate"
        ):
            raise MemoryError("no room")
        return real(self, rows, tokenizer, limit)

    victim_rows = whole.task.load(whole.seeds).clients[VICTIM]
    monkeypatch.setattr(type(whole.task), "encode", encode)
    (record,) = play(whole, tmp_path).rounds
    assert "MemoryError" in dropped(record)
    assert len(record.cohort.accepted) == 3


def test_a_message_changed_on_its_way_down_is_refused_by_the_client(tmp_path: Path) -> None:
    class Changing(Wrapped):
        def exchange(
            self, downs: Mapping[str, bytes], deadline: float | None, min_ok: int, on_reply: OnReply
        ) -> Outcome:
            changed = {client: flip(blob) if client == VICTIM else blob for client, blob in downs.items()}
            return self.inner.exchange(changed, deadline, min_ok, on_reply)

    def flip(blob: bytes) -> bytes:
        envelope = wire.decode(blob, ANY)
        tensors = {name: tensor + 1e-3 for name, tensor in envelope.part("theta").items()}
        return wire.encode(replace(envelope, parts={"theta": Theta(tensors)}))

    run = play(experiment(federation=COHORT_OF_ALL, evaluation={"which": "none"}), tmp_path, make_engine=Changing)
    assert run.rounds[0].cohort.dropped == {"E_BASE": (VICTIM,)}


def test_a_client_that_starts_from_another_initialisation_is_refused_before_it_trains(tmp_path: Path) -> None:
    """A never travels where only B trains, so both sides must have derived the same one."""
    from cotune.client import Client
    from cotune.core.message import NEVER, Kind
    from cotune.laws import ListJournal
    from cotune.server import Desk

    ours = experiment(method__trainable={"kind": "lora", "train": "B"}).blueprint()
    theirs = replace(ours, seeds=ours.seeds.model_copy(update={"init": 99}))
    setup = ours.build()
    desk = Desk(setup, {info.id: info for info in setup.clients}, ListJournal())
    message = wire.encode(desk.brief(desk.opening(), VICTIM, Kind.TRAIN, NEVER))
    assert client_step(Client(VICTIM, ours.build(), tmp_path / "same"), message)
    with pytest.raises(CotuneError) as caught:
        client_step(Client(VICTIM, theirs.build(), tmp_path / "other"), message)
    assert caught.value.code is Code.BASE


def test_a_client_refuses_messages_that_are_not_for_it(tmp_path: Path) -> None:
    from cotune.client import Client
    from cotune.core.message import NEVER, Kind
    from cotune.laws import ListJournal
    from cotune.server import Desk

    setup = experiment().blueprint().build()
    desk = Desk(setup, {info.id: info for info in setup.clients}, ListJournal())
    client = Client(VICTIM, setup, tmp_path)
    good = desk.brief(desk.opening(), VICTIM, Kind.TRAIN, NEVER)
    assert client_step(client, wire.encode(good))
    for field, value, code in (("run", "0" * 16, "E_RUN"), ("client", "0" * 16, "E_RUN"), ("spec", "0" * 16, "E_KEYS")):
        fields: dict[str, Any] = {field: value}
        bad = replace(good, header=replace(good.header, **fields))
        with pytest.raises(CotuneError) as caught:
            client_step(client, wire.encode(bad))
        assert caught.value.code == code


def test_a_deadline_drops_who_is_late_and_keeps_the_rest(tmp_path: Path) -> None:
    class Slow(Wrapped):
        def exchange(
            self, downs: Mapping[str, bytes], deadline: float | None, min_ok: int, on_reply: OnReply
        ) -> Outcome:
            def receive(client: str, reply: bytes | CotuneError) -> None:
                on_reply(client, reply)
                if client == "domain-2":
                    time.sleep(1.1)

            return self.inner.exchange(downs, deadline, min_ok, receive)

    whole = experiment(federation={"rounds": 1, "deadline": 1.0}, evaluation={"which": "none"})
    (record,) = play(whole, tmp_path, make_engine=Slow).rounds
    assert record.cohort.dropped == {"E_LATE": ("domain-3",)}


def test_reported_bytes_are_the_bytes_that_crossed(tmp_path: Path) -> None:
    crossed = {"down": 0, "up": 0}

    class Counting(Wrapped):
        def exchange(
            self, downs: Mapping[str, bytes], deadline: float | None, min_ok: int, on_reply: OnReply
        ) -> Outcome:
            def receive(client: str, reply: bytes | CotuneError) -> None:
                assert isinstance(reply, bytes)
                crossed["up"] += len(reply)
                on_reply(client, reply)

            crossed["down"] += sum(map(len, downs.values()))
            return self.inner.exchange(downs, deadline, min_ok, receive)

    for recipe in ("local", "lora-fedavg", "fedavg", "scaffold"):
        crossed.update(down=0, up=0)
        run = play(experiment(recipe), tmp_path, make_engine=Counting)
        assert crossed == {
            d: sum(line.total_bytes for line in run.ledger if line.direction == d) for d in ("down", "up")
        }
        per_round = [r.uplink_bytes + r.downlink_bytes + r.evaluation_bytes for r in run.rounds]
        assert sum(per_round) == sum(crossed.values())
