"""The zeroth-order rows end to end: scalars and tensors arrive at one theta, bytes are counted, bad scalars refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import Wrapped, experiment, play, theta
from torch import Tensor

import cotune as ct
from cotune import wire
from cotune.core.contracts import OnReply, Outcome
from cotune.core.errors import Code, CotuneError
from cotune.core.message import Envelope, Limits

LLAMA = "random:llama?layers=4&hidden=16&heads=2"
ANY = Limits(bytes=10**9)
VICTIM = "domain-1"
ROWS: Mapping[str, Mapping[str, Any]] = {
    "fedspzo": {},
    "mezo": {},
    "decomfl": {},
    "fedspzo on factors": {"method__trainable": {"kind": "lora", "rank": 2}},
    "fedspzo on a memory": {
        "method__trainable": {"kind": "memory", "rank": 2},
        "method__optimizer__direction": "rank1",
    },
}


def row(name: str, **sets: Any) -> ct.Experiment:
    recipe = name.partition(" ")[0]
    return experiment(recipe, **{"backbone__ref": LLAMA, "federation": {"rounds": 2}, **ROWS[name], **sets})


@pytest.mark.parametrize("name", [name for name in ROWS if name != "decomfl"])
def test_a_run_by_scalars_is_the_run_by_tensors_bit_for_bit(name: str, tmp_path: Path) -> None:
    """The server's replay is the client's own model: with one client as with four, weights and all."""
    for cohort in (1, 4):
        sets: dict[str, Any] = {"federation": {"rounds": 2, "cohort": cohort}}
        scalars = theta(row(name, **sets), tmp_path / f"scalars {cohort}")
        assert theta(row(name, **sets, method__uplink={"kind": "tensors"}), tmp_path / f"tensors {cohort}") == scalars


@pytest.mark.parametrize(
    ("name", "sets", "count", "beside"),
    [
        ("fedspzo", {}, 5, 0),
        ("fedspzo", {"method__uplink__tick_bits": 20}, 5, 0),
        ("fedspzo", {"method__uplink__seeds": "client"}, 5, 8),
        ("mezo", {}, 1, 0),
        ("decomfl", {}, 5, 0),
    ],
)
def test_a_client_sends_its_scalars_and_nothing_else(
    name: str, sets: Mapping[str, Any], count: int, beside: int, tmp_path: Path
) -> None:
    """P1 + P2 numbers of 4 bytes a step, and the seed where the client made it: FedSPZO as published."""
    run = play(row(name, **sets), tmp_path)
    lines = [line for line in run.ledger if line.direction == "up" and line.purpose == "train"]
    assert len(lines) == 8
    for line in lines:
        assert line.payload_bytes == {"scalars": 2 * count * 4 + beside}  # steps · scalars · bytes


def test_clients_that_send_scalars_and_clients_that_send_factors_meet_in_one_round(tmp_path: Path) -> None:
    """Phones move along directions, workstations along gradients; the fold takes both, in the order of the clients."""
    phones = {
        "match": "domain-[01]",
        "optimizer": {"kind": "split-zo", "lr": 1e-3, "again": 2},
        "uplink": {"kind": "scalars"},
    }
    mixed, plain = (
        experiment(
            "lora-fedavg",
            backbone__ref=LLAMA,
            federation={"rounds": 2, "groups": [{n: v for n, v in phones.items() if n != left_out}]},
        )
        for left_out in ("", "uplink")
    )
    run = play(mixed, tmp_path / "mixed")
    assert run.theta_sha256 == theta(plain, tmp_path / "plain")
    sent = {
        line.client: set(line.payload_bytes)
        for line in run.ledger
        if line.direction == "up" and line.purpose == "train"
    }
    assert sent["domain-0"] == sent["domain-1"] == {"scalars"}
    assert sent["domain-2"] == sent["domain-3"] == {"factor_a", "factor_b", "head"}


def scalars(change: Callable[[Tensor], Tensor]) -> Callable[[Envelope], Envelope]:
    def changed(envelope: Envelope) -> Envelope:
        named = {name: change(tensor.clone()) for name, tensor in envelope.part("scalars").items()}
        return replace(envelope, parts={**envelope.parts, "scalars": named})

    return changed


def to(value: float) -> Callable[[Envelope], Envelope]:
    return scalars(lambda tensor: tensor.index_fill_(1, torch.tensor([0]), value))


BAD: dict[str, tuple[Callable[[Envelope], Envelope], Code]] = {
    "NaN": (to(float("nan")), Code.SCALAR),
    "infinity": (to(float("inf")), Code.SCALAR),
    "minus infinity": (to(float("-inf")), Code.SCALAR),
    "1e30": (to(1e30), Code.SCALAR),
    "-1e30": (to(-1e30), Code.SCALAR),
    "integers": (scalars(lambda tensor: tensor.int()), Code.DTYPE),
    "truth values": (scalars(lambda tensor: tensor > 0), Code.DTYPE),
    "doubles": (scalars(lambda tensor: tensor.double()), Code.DTYPE),
    "a step too many": (scalars(lambda tensor: torch.cat([tensor, tensor[:1]])), Code.SHAPE),
    "a step too few": (scalars(lambda tensor: tensor[:1]), Code.SHAPE),
    "a direction too many": (scalars(lambda tensor: torch.cat([tensor, tensor], dim=1)), Code.SHAPE),
    "no scalars": (lambda envelope: replace(envelope, parts={}), Code.KEYS),
    "another seed": (lambda envelope: replace(envelope, header=replace(envelope.header, seed=7)), Code.SEED),
}


def tampering(change: Callable[[Envelope], Envelope]) -> type[Wrapped]:
    """An engine in which the victim's update is changed on its way."""

    class Tampering(Wrapped):
        def exchange(
            self, downs: Mapping[str, bytes], deadline: float | None, min_ok: int, on_reply: OnReply
        ) -> Outcome:
            def receive(client: str, reply: bytes | CotuneError) -> None:
                if client == VICTIM and isinstance(reply, bytes) and wire.decode(reply, ANY).header.kind == "update":
                    reply = wire.encode(change(wire.decode(reply, ANY)))
                on_reply(client, reply)

            return self.inner.exchange(downs, deadline, min_ok, receive)

    return Tampering


@pytest.mark.parametrize("name", BAD)
def test_a_reply_with_bad_scalars_costs_its_client_and_never_the_round(name: str, tmp_path: Path) -> None:
    change, code = BAD[name]

    run = play(row("fedspzo", federation={"rounds": 1}), tmp_path, make_engine=tampering(change))
    (record,) = run.rounds
    assert record.cohort.dropped == {code.value: (VICTIM,)}
    assert record.abandoned is None
    assert len(record.cohort.accepted) == 3


@pytest.mark.parametrize(
    ("uplink", "change", "code"),
    [
        ({"seeds": "client"}, scalars(lambda tensor: tensor + 1), Code.SEED),
        ({"tick_bits": 20}, scalars(lambda tensor: torch.full_like(tensor, 2**31 - 1)), Code.SCALAR),
        ({"tick_bits": 20}, scalars(lambda tensor: torch.full_like(tensor, -(2**31))), Code.SCALAR),
        ({"tick_bits": 20}, scalars(lambda tensor: tensor.float()), Code.DTYPE),
    ],
)
def test_a_seed_of_its_own_choice_and_ticks_out_of_range_cost_their_client(
    uplink: Mapping[str, Any], change: Callable[[Envelope], Envelope], code: Code, tmp_path: Path
) -> None:
    whole = row("mezo", federation={"rounds": 1}, method__uplink={"kind": "scalars", **uplink})
    (record,) = play(whole, tmp_path, make_engine=tampering(change)).rounds
    assert record.cohort.dropped == {code.value: (VICTIM,)}
    assert record.abandoned is None


@pytest.mark.parametrize("uplink", [{"seeds": "client"}, {"seeds": "shared", "tick_bits": 20}], ids=str)
def test_ticks_and_seeds_of_clients_are_replayed_whatever_way_theta_comes_down(
    uplink: Mapping[str, Any], tmp_path: Path
) -> None:
    sets = {"federation": {"rounds": 3, "cohort": 2}, "method__uplink": {"kind": "scalars", **uplink}}
    arrived = {kind: theta(row("mezo", **sets, method__downlink=kind), tmp_path / kind) for kind in ("full", "replay")}
    assert arrived["replay"] == arrived["full"]


def test_a_subnormal_coefficient_is_a_coefficient(tmp_path: Path) -> None:
    run = play(row("mezo", method__optimizer__lr=1e-44), tmp_path)
    assert all(record.abandoned is None for record in run.rounds)


def test_only_the_seed_of_directions_decides_where_clients_look(tmp_path: Path) -> None:
    one, other = (row("mezo", seeds={"seed": 3, "directions": directions}) for directions in (1, 2))
    setups = [whole.blueprint().build() for whole in (one, other)]
    assert setups[0].start.sha256() == setups[1].start.sha256()
    assert [c.rows for c in setups[0].clients] == [c.rows for c in setups[1].clients]
    assert setups[0].corpus.clients[VICTIM].train[0] == setups[1].corpus.clients[VICTIM].train[0]
    assert theta(one, tmp_path / "one") != theta(other, tmp_path / "other")


def test_the_seed_of_data_decides_the_rows_and_nothing_of_theta() -> None:
    setups = [row("mezo", seeds={"seed": 3, "data": data}).blueprint().build() for data in (1, 2)]
    assert setups[0].start.sha256() == setups[1].start.sha256()
    assert setups[0].corpus.clients[VICTIM].train[0] != setups[1].corpus.clients[VICTIM].train[0]


def test_a_round_says_how_many_slopes_the_limit_cut(tmp_path: Path) -> None:
    run = play(row("fedspzo", method__optimizer__largest=1e-9), tmp_path)
    for record in run.rounds:
        assert record.diagnostics["cut_slopes"] == 5 * 2 * len(record.cohort.accepted)


def test_the_shapes_alone_tell_the_halves_that_the_model_has() -> None:
    for ref in (LLAMA, f"{LLAMA}&tied=true", "random:bert?layers=3&hidden=16&heads=2", "random:opt?layers=3&tied=true"):
        blueprint = row("fedspzo", backbone__ref=ref).blueprint()
        setup = blueprint.build()
        sketch = blueprint.sketch(setup.corpus)
        assert sketch.spec.digest == setup.spec.digest
        assert {entry.block for entry in setup.spec} == {0, 1}


def test_groups_that_cut_in_different_places_are_refused() -> None:
    group = {"match": "domain-0", "optimizer": {"kind": "split-zo", "lr": 0.1, "cut": 1}}
    with pytest.raises(CotuneError) as caught:
        row("fedspzo", federation={"rounds": 1, "groups": [group]}).blueprint().build()
    assert caught.value.code is Code.CONFLICT


def test_scalars_of_an_optimizer_that_cannot_be_replayed_are_refused() -> None:
    with pytest.raises(CotuneError) as caught:
        experiment("fedavg", method__uplink={"kind": "scalars"})
    assert caught.value.code is Code.CONFLICT


def test_a_killed_and_reordered_run_of_scalars_has_the_same_hash(tmp_path: Path) -> None:
    class Reversed(Wrapped):
        def exchange(
            self, downs: Mapping[str, bytes], deadline: float | None, min_ok: int, on_reply: OnReply
        ) -> Outcome:
            return self.inner.exchange(
                {client: downs[client] for client in sorted(downs, reverse=True)}, deadline, min_ok, on_reply
            )

    class Killed(Exception):
        pass

    class Dying(Wrapped):
        rounds = 0

        def exchange(
            self, downs: Mapping[str, bytes], deadline: float | None, min_ok: int, on_reply: OnReply
        ) -> Outcome:
            Dying.rounds += 1
            if Dying.rounds > 2:
                raise Killed
            return self.inner.exchange(downs, deadline, min_ok, on_reply)

    first = theta(row("fedspzo"), tmp_path / "first")
    assert theta(row("fedspzo"), tmp_path / "reversed", make_engine=Reversed) == first
    with pytest.raises(Killed):
        play(row("fedspzo"), tmp_path / "killed", make_engine=Dying)
    assert theta(row("fedspzo"), tmp_path / "killed", resume=True) == first
