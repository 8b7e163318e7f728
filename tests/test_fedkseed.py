"""FedKSeed: theta is its start and one number for each candidate, whatever came before and whoever missed it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import Recorded, Wrapped, assert_predicted, experiment, play, theta
from torch import Tensor

import cotune as ct
from cotune import wire
from cotune.aggregate import Pool
from cotune.checkpoint import unpack
from cotune.cli.messages import traffic
from cotune.core.change import Contribution, Origin, Server, Tensors
from cotune.core.contracts import OnReply, Outcome
from cotune.core.errors import Code, CotuneError
from cotune.core.message import Limits
from cotune.core.seeds import derive, torch_generator
from cotune.core.spec import Entry, Role, Scope, Spec
from cotune.core.state import Theta
from cotune.noise import COMMITS, counts, signs
from cotune.noise.replay import CANDIDATES
from cotune.resolve import load
from cotune.store import Checkpoints
from cotune.wire import PoolUplink

LLAMA = "random:llama?layers=3&hidden=16&heads=2"
SIZE = 32
SPEC = Spec((Entry("a", (5, 9), Role.FULL, "front"), Entry("b", (40,), Role.FULL, "back", block=1)))
SCOPE = Scope(SPEC.names, SPEC.names, SPEC.names)
UPLINK = PoolUplink(tick_bits=18)


def row(**sets: Any) -> ct.Experiment:
    return experiment(
        "fedkseed",
        **{"backbone__ref": LLAMA, "federation": {"rounds": 3, "cohort": 2}, "method__aggregator__size": SIZE, **sets},
    )


SPLIT = {"method__optimizer": {"kind": "split-zo", "lr": 1e-3, "again": 2}}
LORA = {"method__trainable": {"kind": "lora", "rank": 2}}
ROWS: dict[str, Mapping[str, Any]] = {"zo": {}, "split-zo": SPLIT, "lora": LORA}


@pytest.mark.parametrize("name", ROWS)
def test_theta_is_its_start_and_the_numbers_of_the_candidates(name: str, tmp_path: Path) -> None:
    """Every message down was opened to its digest, also by clients that missed rounds; and in whole numbers."""
    whole = row(**ROWS[name])
    run = play(whole, tmp_path)
    assert all(record.abandoned is None and not record.cohort.dropped for record in run.rounds)
    assert len({record.cohort.accepted for record in run.rounds}) > 1
    found = Checkpoints(run.folder / "checkpoints").latest()
    assert found is not None
    state, setup = unpack(found[1])[0], whole.blueprint().build()
    tick, at = 2.0**-20, dict.fromkeys({entry.block for entry in setup.spec}, 0)
    assert float(state.aux[COMMITS]) == 3
    assert any(bool(state.aux[counts(block)].any()) for block in at)
    for entry in setup.spec:
        total = (setup.start[entry.name].double() / tick).round().view(-1)
        for j, number in enumerate(state.aux[counts(entry.block)].tolist()):
            total += number * signs(CANDIDATES, entry.block * 2**32 + j, at[entry.block], entry.numel)
        at[entry.block] += entry.numel
        assert torch.equal(state.theta[entry.name].double(), (total * tick).view(entry.shape))


def test_messages_are_as_large_as_the_shapes_say_whatever_the_history(tmp_path: Path) -> None:
    whole = row()
    run = play(whole, tmp_path)
    assert_predicted(run, whole.blueprint().build())
    for line in run.ledger:
        if line.purpose == "train":
            expected = {"aux": 4 * SIZE + 4} if line.direction == "down" else {"scalars": 2 * 8}
            assert line.payload_bytes == expected


def test_4096_candidates_cost_less_than_18_kilobytes_for_any_model() -> None:
    big = load("fedkseed", backbone="random:llama?layers=12&hidden=768", task="synth:sentiment?clients=4&rows=96")
    plan = big.blueprint().sketch(big.task.load(big.seeds))
    down = [message for messages in traffic(plan).played for message in messages if message.direction == "down"]
    assert down
    assert all(message.total < 18_000 for message in down)


def test_order_and_kills_do_not_matter(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    class Dying(Wrapped):
        left = 5

        def exchange(
            self, downs: Mapping[str, bytes], deadline: float | None, min_ok: int, on_reply: OnReply
        ) -> Outcome:
            Dying.left -= 1
            if not Dying.left:
                raise Stop
            return self.inner.exchange(downs, deadline, min_ok, on_reply)

    Recorded.sent = {}
    first = theta(row(), tmp_path / "first")
    assert theta(row(), tmp_path / "reordered", make_engine=Recorded) == first
    with pytest.raises(Stop):
        play(row(), tmp_path / "killed", make_engine=Dying)
    assert theta(row(), tmp_path / "killed", resume=True) == first


def sent(client: int) -> dict[str, Tensor]:
    generator = torch_generator(derive(3, client))
    found = {}
    for key in ("0", "1"):
        found[f"sign/{key}"] = torch.randint(-400, 400, (3, 2), generator=generator, dtype=torch.int32)
        found[f"candidate/{key}"] = torch.randint(0, SIZE, (3, 2), generator=generator, dtype=torch.int32)
    return found


def test_numbers_are_weighted_means_rounded_to_ticks_and_add_up_over_rounds() -> None:
    start = Theta({e.name: torch.randn(e.shape, generator=torch_generator(derive(1, e.name))) for e in SPEC})
    pool, weights, now, aux = Pool(size=SIZE), (3.0, 1.0, 7.0), start, dict[str, Tensor]()
    expected = {block: torch.zeros(SIZE, dtype=torch.float64) for block in (0, 1)}
    for round_ in range(3):
        fold = pool.init(now, Server(round_ + 1, 3, SPEC, SPEC.names, aux=aux))
        mean = {block: torch.zeros(SIZE, dtype=torch.float64) for block in (0, 1)}
        for client, weight in enumerate(weights):
            scalars = sent(10 * round_ + client)
            change = UPLINK.open({"scalars": scalars}, Origin(now, 1, 1.0, SPEC, SCOPE))
            fold = pool.add(fold, Contribution(str(client), weight, change, SPEC))
            for block, numbers in mean.items():
                pairs = zip(scalars[f"candidate/{block}"].flatten(), scalars[f"sign/{block}"].flatten(), strict=True)
                for j, n in pairs:
                    numbers[int(j)] += weight * int(n)
        commit = pool.finish(fold)
        now, aux = commit.theta, dict(commit.aux)
        for block, numbers in mean.items():
            expected[block] += torch.tensor([round(float(n) / sum(weights)) for n in numbers])
            assert torch.equal(aux[counts(block)].double(), expected[block])
    for entry in SPEC:
        total = (start[entry.name].double() * 2**18).round().view(-1)
        for j, number in enumerate(expected[entry.block].tolist()):
            total += number * signs(CANDIDATES, entry.block * 2**32 + j, 0, entry.numel)
        assert torch.equal(now[entry.name].double(), (total / 2**18).view(entry.shape))


@pytest.mark.parametrize(
    ("number", "fine"), [(0, True), (SIZE - 1, True), (SIZE, False), (-1, False), (2**31 - 1, False)]
)
def test_a_candidate_outside_the_pool_is_refused_and_leaves_the_fold(number: int, *, fine: bool) -> None:
    theta_ = Theta({e.name: torch.zeros(e.shape) for e in SPEC})
    fold = Pool(size=SIZE).init(theta_, Server(1, 1, SPEC, SPEC.names))
    scalars = {**sent(1), "candidate/0": torch.full((3, 2), number, dtype=torch.int32)}
    change = UPLINK.open({"scalars": scalars}, Origin(theta_, 1, 1.0, SPEC, SCOPE))
    if fine:
        assert Pool(size=SIZE).add(fold, Contribution("a", 1.0, change, SPEC)).weight == 1
        return
    with pytest.raises(CotuneError) as caught:
        Pool(size=SIZE).add(fold, Contribution("a", 1.0, change, SPEC))
    assert caught.value.code is Code.SCALAR
    assert not any(bool(total.any()) for total in fold.sums.values())


@pytest.mark.parametrize(("ticks", "theta_", "fine"), [(2**18, 0.0, True), (900, 63.0, True), (900, 63.999, False)])
def test_ticks_that_could_leave_the_range_are_refused(ticks: int, theta_: float, *, fine: bool) -> None:
    start = Theta({e.name: torch.full(e.shape, theta_) for e in SPEC})
    named = {
        "sign/0": torch.full((1, 1), ticks, dtype=torch.int32),
        "candidate/0": torch.zeros(1, 1, dtype=torch.int32),
    }
    if fine:
        moved = UPLINK.open({"scalars": named}, Origin(start, 1, 1.0, SPEC, SCOPE)).dense()
        assert float((moved["a"] - theta_).abs().max()) == ticks * UPLINK.tick
        return
    with pytest.raises(CotuneError) as caught:
        UPLINK.open({"scalars": named}, Origin(start, 1, 1.0, SPEC, SCOPE))
    assert caught.value.code is Code.SCALAR


@pytest.mark.parametrize("wrong", [2**18 + 1, 2**31 - 1, -(2**31)])
def test_more_ticks_than_the_largest_coefficient_has_are_refused(wrong: int) -> None:
    start = Theta({e.name: torch.zeros(e.shape) for e in SPEC})
    with pytest.raises(CotuneError) as caught:
        UPLINK.open(
            {"scalars": {**sent(1), "sign/1": torch.full((3, 2), wrong, dtype=torch.int32)}},
            Origin(start, 1, 1.0, SPEC, SCOPE),
        )
    assert caught.value.code is Code.SCALAR


def test_a_lie_costs_its_client_and_never_the_round(tmp_path: Path) -> None:
    any_size = Limits(bytes=10**9)

    class Lying(Wrapped):
        def exchange(
            self, downs: Mapping[str, bytes], deadline: float | None, min_ok: int, on_reply: OnReply
        ) -> Outcome:
            def receive(client: str, reply: bytes | CotuneError) -> None:
                if client == min(downs) and isinstance(reply, bytes):
                    envelope = wire.decode(reply, any_size)
                    named = {n: torch.full_like(t, SIZE) for n, t in envelope.part("scalars").items()}
                    reply = wire.encode(replace(envelope, parts={"scalars": named}) if named else envelope)
                on_reply(client, reply)

            return self.inner.exchange(downs, deadline, min_ok, receive)

    run = play(row(federation={"rounds": 1}), tmp_path, make_engine=Lying)
    assert run.rounds[0].cohort.dropped == {Code.SCALAR.value: ("domain-0",)}
    assert run.rounds[0].abandoned is None


def test_numbers_that_could_leave_the_range_of_the_ticks_make_no_theta() -> None:
    theta_ = Theta({e.name: torch.full(e.shape, 60.0) for e in SPEC})  # of 64
    pool = Pool(size=4)
    for earlier, fits in ((0.0, True), (1.0, False)):
        aux = {counts(block): torch.full((4,), earlier * 2**18) for block in (0, 1)} | {COMMITS: torch.ones(())}
        change = UPLINK.open({"scalars": {}}, Origin(theta_, 1, 1.0, SPEC, SCOPE))
        fold = pool.add(
            pool.init(theta_, Server(2, 1, SPEC, SPEC.names, aux=aux)), Contribution("a", 1.0, change, SPEC)
        )
        if fits:
            assert pool.finish(fold).theta.sha256() == theta_.sha256()
        else:
            with pytest.raises(CotuneError) as caught:
                pool.finish(fold)
            assert caught.value.code is Code.SCALAR


def test_parts_that_a_pool_cannot_count_are_refused_before_anything_runs() -> None:
    with pytest.raises(CotuneError, match="aggregator needs 'pool'"):
        row(method__uplink={"kind": "scalars"})
    with pytest.raises(CotuneError, match="needs 'candidates'"):
        row(method__aggregator={"kind": "mean"})
    for trainable in ({"kind": "lora", "rank": 2, "train": "B"}, {"kind": "lora", "rank": 2, "train": "alternate"}):
        with pytest.raises(CotuneError) as caught:
            traffic(row(method__trainable=trainable).blueprint().build())
        assert caught.value.code is Code.CONFLICT
    with pytest.raises(CotuneError, match="candidates are signs"):
        traffic(row(method__optimizer__direction="rank1").blueprint().build())
    with pytest.raises(CotuneError) as caught:
        Pool().add(
            Pool().init(Theta({e.name: torch.zeros(e.shape) for e in SPEC}), Server(1, 1, SPEC, SPEC.names)),
            Contribution("a", 1.0, Tensors(Theta({e.name: torch.zeros(e.shape) for e in SPEC})), SPEC),
        )
    assert caught.value.code is Code.CONFLICT
