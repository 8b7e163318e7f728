"""Download by replay, end to end: whoever missed rounds folds them again and holds the server's theta, bit for bit."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import Wrapped, assert_predicted, experiment, play, theta
from torch import Tensor

import cotune as ct
from cotune import refold as room
from cotune import wire
from cotune.checkpoint import FileJournal
from cotune.cli.leak import leaks
from cotune.core.contracts import OnReply, Outcome
from cotune.core.errors import Code, CotuneError
from cotune.core.journal import Increment, Reply
from cotune.core.message import Envelope, Limits
from cotune.core.seeds import derive
from cotune.core.state import Theta
from cotune.noise import ALL, signs
from cotune.store import KEPT, Run

ANY = Limits(bytes=10**9)
SILENT = {"which": "none"}
HALVES = "random:llama?layers=2&hidden=16&heads=2"
# Two of four clients are asked each round, so that some miss several.
ROWS: Mapping[str, Mapping[str, Any]] = {
    "decomfl": {},
    "fedspzo": {"backbone__ref": HALVES},
    "fednl": {  # rules of a memory, learned by forward passes alone
        "backbone__ref": f"{HALVES}&kv_heads=1",
        "backbone__window": 8,
        "method__optimizer": {"kind": "split-zo", "lr": 1e-4},
        "method__uplink": "scalars",
    },
    "mezo": {
        "method__trainable": {"kind": "lora", "rank": 2, "head": "personal"},
        "method__budget": {"epochs": 1, "batch": 16, "schedule": "linear"},
        "evaluation": {"which": "all", "every": 3, "rows": 4},
        "task__partition": {"kind": "sizes", "sizes": [1, 2, 3, 4]},
    },
}


def row(recipe: str, downlink: Mapping[str, Any] | str = "replay", **sets: Any) -> ct.Experiment:
    federation = {"rounds": 6, "cohort": 2}
    plain = {"kind": downlink} if isinstance(downlink, str) else downlink
    return experiment(
        recipe,
        **{"evaluation": SILENT, "federation": federation, **ROWS[recipe], "method__downlink": plain, **sets},
    )


def downs(run: Run) -> list[tuple[int, str, frozenset[str]]]:
    """Round, client and content of every message to train."""
    return [
        (line.round, line.client, frozenset(line.payload_bytes))
        for line in run.ledger
        if line.direction == "down" and line.purpose == "train"
    ]


def refused(run: Run) -> dict[int, Mapping[str, tuple[str, ...]]]:
    return {record.round: record.cohort.dropped for record in run.rounds if record.cohort.dropped}


@pytest.mark.parametrize("recipe", ["decomfl", "fednl", "mezo"])
def test_always_there_or_late_a_client_arrives_at_the_theta_that_tensors_bring(recipe: str, tmp_path: Path) -> None:
    """A client checks the digest of what it folded before it trains, so that every reply is a proof."""
    whole = row(recipe)
    run = play(whole, tmp_path / "replay")
    assert run.theta_sha256 == theta(row(recipe, "full"), tmp_path / "full")
    assert not refused(run)
    assert {content for _, _, content in downs(run)} == {frozenset(), frozenset({"replay"})}
    first = {client: round_ for round_, client, _ in reversed(downs(run))}
    assert max(first.values()) > 3, "nobody joined late"
    assert_predicted(run, whole.blueprint().sketch(whole.task.load(whole.seeds)))


@pytest.mark.parametrize("downlink", [{"kind": "auto"}, {"kind": "auto", "keep": 2}, {"kind": "replay", "keep": 1}])
def test_theta_comes_down_where_it_is_less_or_the_log_too_short_and_bytes_are_as_foreseen(
    downlink: Mapping[str, Any], tmp_path: Path
) -> None:
    small = {"kind": "lora", "rank": 1, "head": "frozen"}
    more = {"method__trainable": small, "method__budget": {"steps": 4, "batch": 2}}
    whole = row("decomfl", downlink, federation={"rounds": 9, "cohort": 2}, **more)
    run = play(whole, tmp_path)
    assert not refused(run)
    contents = {content for _, _, content in downs(run) if content}
    assert len(contents) == 2, "both ways were taken"
    assert_predicted(run, whole.blueprint().sketch(whole.task.load(whole.seeds)))


class Absent(Wrapped):
    """Nobody hears of domain-1 in rounds 2 to 4, and of nobody else in round 5."""

    def exchange(self, downs: Mapping[str, bytes], deadline: float | None, min_ok: int, on_reply: OnReply) -> Outcome:
        def receive(client: str, reply: bytes | CotuneError) -> None:
            assert isinstance(reply, bytes)
            round_ = wire.decode(reply, ANY).header.round
            lost = round_ in (2, 3, 4) if client == "domain-1" else round_ == 5
            on_reply(client, CotuneError(Code.ENGINE, "gone") if lost else reply)

        return self.inner.exchange(downs, deadline, min_ok, receive)


def test_a_client_that_was_dropped_for_three_rounds_and_an_abandoned_one_replays_what_counted(tmp_path: Path) -> None:
    federation = {"rounds": 7, "min_replies": 3}
    run = play(row("decomfl", federation=federation), tmp_path, make_engine=Absent)
    gone = {round_: {"E_ENGINE": ("domain-1",)} for round_ in (2, 3, 4)}
    assert refused(run) == gone | {5: {"E_ENGINE": ("domain-0", "domain-2", "domain-3")}}
    assert [record.abandoned is None for record in run.rounds] == [True] * 4 + [False] + [True] * 2
    assert [len(record.cohort.accepted) for record in run.rounds] == [4, 3, 3, 3, 1, 4, 4]
    sizes = {(line.round, line.client): line.payload_bytes for line in run.ledger if line.direction == "down"}
    one = 2 * 5 * 4 + 24  # steps · directions · bytes, and what goes with a reply
    # In round 6 everyone is asked whose last reply counted in round 4, or, of domain-1, in round 1.
    assert sizes[6, "domain-0"] == {"replay": 3 * one}
    assert sizes[6, "domain-1"] == {"replay": (4 + 3 + 3 + 3) * one}
    assert sizes[7, "domain-1"] == {"replay": 4 * one}, "nothing of round 5, which came to nothing"


def test_a_killed_run_resumes_to_the_same_bits_and_messages_and_its_journal_stays_small(tmp_path: Path) -> None:
    keep = 2
    whole = row("decomfl", {"kind": "replay", "keep": keep}, federation={"rounds": 8, "cohort": 2})

    def stop(name: str, about: Mapping[str, Any]) -> None:
        if name == "aggregated" and about["round"] == 7:  # after the journal, before the checkpoint
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(whole, tmp_path / "killed", watch=stop)
    newest = max((whole.folder(tmp_path / "killed") / "checkpoints").iterdir())
    (newest / "theta.safetensors").write_bytes(b"damaged")  # so that the run goes on from the one before
    run, never = play(whole, tmp_path / "killed", resume=True), play(whole, tmp_path / "never")
    assert run.theta_sha256 == never.theta_sha256
    assert run.ledger == never.ledger
    assert {content for _, _, content in downs(run)} >= {frozenset({"replay"}), frozenset({"full", "head"})}
    assert len(list((run.folder / "journal").iterdir())) == keep + KEPT + 1


@pytest.mark.parametrize("last", [1, 3])
def test_a_journal_of_the_last_rounds_stays_as_large_as_it_is(last: int, tmp_path: Path) -> None:
    """However often the server fell back, what messages build on is there, and one more tells that more is gone."""
    journal, sizes = FileJournal(tmp_path, last), []
    for round_ in range(1, 30):
        journal.append(Increment(round_, ("a",), replies=(Reply(0, 1, 1.0, {"sign/0": torch.ones(2, 3)}),)))
        sizes.append(sum(path.stat().st_size for path in tmp_path.iterdir()))
    assert sizes[last + KEPT] == sizes[-1]
    journal.cut_after(29 - KEPT)
    assert [one.round for one in journal.since(0)] == list(range(29 - KEPT - last, 29 - KEPT + 1))


def test_a_client_that_lost_what_it_held_says_so_and_starts_again_from_the_first_round(tmp_path: Path) -> None:
    class Forgetful(Wrapped):
        rounds = 0

        def exchange(
            self, downs: Mapping[str, bytes], deadline: float | None, min_ok: int, on_reply: OnReply
        ) -> Outcome:
            self.rounds += 1
            if self.rounds == 3:
                shutil.rmtree(self.folder / "domain-2")
            return self.inner.exchange(downs, deadline, min_ok, on_reply)

    federation = {"rounds": 3}
    run = play(row("decomfl", federation=federation), tmp_path, make_engine=Forgetful)
    assert not refused(run)
    asked = [line for line in run.ledger if (line.round, line.client, line.direction) == (3, "domain-2", "down")]
    assert [line.payload_bytes["replay"] for line in asked] == [4 * 64, 2 * 4 * 64]


def in_replay(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Envelope], Envelope]:
    def changed(envelope: Envelope) -> Envelope:
        named = {name: tensor.clone() for name, tensor in envelope.part("replay").items()}
        change(named)
        return replace(envelope, parts={**envelope.parts, "replay": named})

    return changed


def coefficient(named: dict[str, Tensor]) -> Tensor:
    return next(tensor for name, tensor in named.items() if "/" in name)


LIES: dict[str, tuple[Callable[[dict[str, Tensor]], object], Code]] = {
    "a coefficient": (lambda named: coefficient(named).view(-1)[0].mul_(1.01), Code.BASE),
    "a sign": (lambda named: coefficient(named).neg_(), Code.BASE),
    "a seed": (lambda named: named["seeds"].add_(1), Code.BASE),
    "a weight": (lambda named: named["weights"][0].mul_(2), Code.BASE),
    "a reply too few": (lambda named: named.update({n: t[:-1] for n, t in named.items()}), Code.BASE),
    "no reply": (lambda named: named.clear(), Code.BASE),
    "a number that is none": (lambda named: coefficient(named).fill_(float("nan")), Code.SCALAR),
    "a number that is huge": (lambda named: coefficient(named).fill_(1e30), Code.SCALAR),
    "a place that is none": (lambda named: named["places"].fill_(9), Code.FORMAT),
    "a group that is none": (
        lambda named: named.update({n.replace("/00000/", "/00007/"): named.pop(n) for n in list(named) if "/" in n}),
        Code.CONFIG,
    ),
}


def test_a_server_that_lies_about_a_round_is_found_out_by_the_client(tmp_path: Path) -> None:
    """Each lie is about round 1, told to domain-1 in a round of its own, of which nothing comes for want of replies."""
    lies = list(LIES.values())

    class Lying(Wrapped):
        asked = 0

        def exchange(
            self, downs: Mapping[str, bytes], deadline: float | None, min_ok: int, on_reply: OnReply
        ) -> Outcome:
            told = dict(downs)
            if Lying.asked and Lying.asked <= len(lies):
                change = in_replay(lies[Lying.asked - 1][0])
                told["domain-1"] = wire.encode(change(wire.decode(downs["domain-1"], ANY)))
            Lying.asked += 1
            return self.inner.exchange(told, deadline, min_ok, on_reply)

    federation = {"rounds": 2 + len(lies), "patience": 99, "min_replies": 4}
    whole = row("decomfl", federation=federation, method__budget={"steps": 1, "batch": 2})
    run = play(whole, tmp_path, make_engine=Lying)
    dropped = [dict(record.cohort.dropped) for record in run.rounds]
    assert dropped == [{}, *({code.value: ("domain-1",)} for _, code in lies), {}]
    assert [record.abandoned is None for record in run.rounds] == [True, *(False for _ in lies), True]


def test_that_clients_are_told_what_others_sent_is_said_before_a_run() -> None:
    for downlink in ("full", "replay", "auto"):
        whole = row("decomfl", downlink)
        lines = list(leaks(whole.blueprint().sketch(whole.task.load(whole.seeds))))
        assert len([line for line in lines if "tells every client" in line]) == (downlink != "full")


GROUPS = [{"match": "domain-3", "optimizer": {"kind": "adamw", "lr": 1e-3}, "uplink": "tensors"}]


def test_rounds_in_which_one_client_sent_tensors_come_down_dense_and_the_others_are_replayed(tmp_path: Path) -> None:
    federation = {"rounds": 8, "cohort": 2, "groups": GROUPS}
    whole = row("fedspzo", federation=federation)
    run = play(whole, tmp_path)
    assert not refused(run)
    last, kinds = dict[str, int](), {record.round: "domain-3" in record.cohort.accepted for record in run.rounds}
    seen = set()
    for round_, client, content in downs(run):
        missed = [kinds[past] for past in range(max(last.get(client, 0), 1), round_)]
        expected = {"full", "head"} if any(missed) else {"replay"} if missed else set()
        assert content == expected
        seen.add(content)
        last[client] = round_
    assert len(seen) == 3, "all three ways were taken"
    assert_predicted(run, whole.blueprint().sketch(whole.task.load(whole.seeds)))


def test_the_fold_of_two_groups_is_theirs_client_by_client_however_few_names_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Against signs, one at a time, and one sum in float64."""
    group = {"match": "domain-3", "optimizer": {"kind": "zo", "lr": 1.0, "directions": 2}}
    plan = (
        row("mezo", federation={"rounds": 3, "groups": [group]}, method__trainable={"kind": "full"}).blueprint().build()
    )
    replies = (
        Reply(0, 11, 3.0, {f"sign/{ALL}": torch.tensor([[0.1], [-0.3]])}),
        Reply(1, 12, 1.0, {f"sign/{ALL}": torch.tensor([[0.7, 1e-3]])}),
    )
    start, moved, place = dict(plan.start), dict[str, Tensor](), 0
    for entry in plan.spec:
        total = torch.zeros(entry.shape, dtype=torch.float64)
        for reply in replies:
            own = start[entry.name]
            for step, row_ in enumerate(reply.scalars[f"sign/{ALL}"]):
                for direction, c in enumerate(row_):
                    z = signs(derive(reply.seed, step), direction, place, entry.numel).view(entry.shape)
                    own = own + c * z
            total += reply.weight * own.double()
        moved[entry.name] = (total / 4.0).float()
        place += entry.numel
    increment = Increment(1, (), replies=replies)
    for portion in (1, 2000, room.PORTION):
        monkeypatch.setattr(room, "PORTION", portion)
        assert room.refold(plan, plan.start, increment).sha256() == Theta(moved).sha256()
