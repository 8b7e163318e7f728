"""Clients on Flower's nodes: the same theta as anywhere, and whatever goes wrong costs its client, with its cause."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.node_pb2 import NodeInfo
from grid import Fault, LocalGrid
from tiny import experiment

import cotune as ct
from cotune import experiment as experiments
from cotune.core.errors import Code, CotuneError
from cotune.engine.service import listening, seated, serve
from cotune.engine.site import Site
from cotune.flower import FlowerEngine, make_client_app
from cotune.flower.records import ABOUT, BLOB, STEP, WHO
from cotune.store import Run

TWO_LAYERS = "random:bert?layers=2&hidden=16&heads=2"
NODES = 2


class Nodes(LocalGrid):
    """Nodes with workers, which tell since when they are there."""

    def __init__(self, one: ct.Experiment, folder: Path, **options: Any) -> None:
        self.sockets = [folder / f"{place}.sock" for place in range(NODES)]
        self.experiment, self.folder = one, folder
        self.since: dict[int, str] = {}
        super().__init__(make_client_app(folder), [{"worker": str(path)} for path in self.sockets], **options)

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=n, last_activated_at=self.since.get(n, "noon")) for n in self.get_node_ids()]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Callable[[ct.Experiment], Nodes]]:
    """A grid of two nodes, each with a worker for its half of the clients."""
    listeners = []

    def start(one: ct.Experiment, places: int = NODES) -> Nodes:
        grid = Nodes(one, tmp_path)
        for place, path in enumerate(grid.sockets):
            seat = seated(one.blueprint(), Site(place=place % places, places=places), tmp_path / "state" / str(place))
            context = listening(path)
            listeners.append(context)
            threading.Thread(target=serve, args=(seat, context.__enter__()), daemon=True).start()
        return grid

    yield start
    for context in listeners:
        context.__exit__(None, None, None)


def play(one: ct.Experiment, grid: LocalGrid, out: Path, **options: Any) -> Run:
    said: list[str] = []
    engine = partial(FlowerEngine, grid=grid, **{"nodes": NODES, "wait": 20.0, "say": said.append, **options})
    return experiments.run(one, out, make_engine=engine)


@pytest.mark.parametrize(
    ("recipe", "sets"),
    [
        ("lora-fedavg", {}),
        ("scaffold", {}),
        ("fedsa-lora", {}),
        ("flora", {}),
        ("fedspzo", {"backbone__ref": TWO_LAYERS}),
    ],
)
def test_theta_and_ledger_are_those_of_the_inline_engine(
    recipe: str, sets: Mapping[str, Any], nodes: Callable[[ct.Experiment], Nodes], tmp_path: Path
) -> None:
    one = experiment(recipe, **sets)
    here = experiments.run(one, tmp_path / "here")
    there = play(one, nodes(one), tmp_path / "there")
    assert there.theta_sha256 == here.theta_sha256
    ledgers = [tmp_path / place / here.folder.name / "ledger.jsonl" for place in ("here", "there")]
    lines = [sorted(ledger.read_text().splitlines()) for ledger in ledgers]  # written as replies arrive
    assert lines[0] == lines[1]
    assert [r.global_metrics for r in there.rounds] == [r.global_metrics for r in here.rounds]


def test_every_message_is_one_array_and_lives_no_longer_than_its_round(
    nodes: Callable[[ct.Experiment], Nodes], tmp_path: Path
) -> None:
    one = experiment(federation={"rounds": 1, "cohort": 2, "deadline": 40.0})
    grid = nodes(one)
    play(one, grid, tmp_path / "runs")
    steps = [message for message in grid.pushed if message.metadata.message_type == STEP]
    assert steps
    for message in steps:
        (record,) = message.content.array_records.values()
        (array,) = record.values()
        assert array.stype == "safetensors"
        assert set(message.content) == {ABOUT, BLOB}
        assert 40.0 < message.metadata.ttl < 120.0


def only(fault: Fault, client: str, kind: str = "train") -> Fault:
    """The fault in the training messages of one client."""

    def concerns(message: Message) -> bool:
        about = message.content.config_records.get(ABOUT, ConfigRecord())
        return message.metadata.message_type == STEP and about.get("client") == client and kind == "train"

    return Fault(fault.error, fault.delay, fault.spoil, concerns)


def emptied(_: RecordDict) -> RecordDict:
    return RecordDict()


def garbage(_: RecordDict) -> RecordDict:
    return swapped(b"\x93NUMPY not ours")


def oversized(_: RecordDict) -> RecordDict:
    return swapped(b"\0" * 3_000_000)


def lied(_: RecordDict) -> RecordDict:
    return RecordDict({"error": ConfigRecord({"code": "E_NONSENSE", "text": "x"})})


def swapped(data: bytes) -> RecordDict:
    array = Array(dtype="uint8", shape=(len(data),), stype="safetensors", data=data)
    return RecordDict({ABOUT: ConfigRecord({"client": "domain-1"}), BLOB: ArrayRecord({BLOB: array})})


@pytest.mark.parametrize(
    ("fault", "code", "what"),
    [
        (Fault(error=ErrorCode.NODE_UNAVAILABLE), Code.ENGINE, "its node is gone"),
        (Fault(error=ErrorCode.CLIENT_APP_CRASHED), Code.ENGINE, "its process ended"),
        (Fault(error=ErrorCode.CLIENT_APP_RAISED_EXCEPTION), Code.CLIENT, "its app raised an exception"),
        (Fault(error=ErrorCode.MOD_FAILED_PRECONDITION), Code.CLIENT, "a mod refused its message"),
        (Fault(error=ErrorCode.LOAD_CLIENT_APP_EXCEPTION), Code.ENGINE, "its app cannot be loaded"),
        (Fault(error=ErrorCode.INVALID_FAB), Code.ENGINE, "its node refuses the app"),
        (Fault(error=99), Code.ENGINE, "no reply"),
        (Fault(delay=float("inf")), Code.LATE, "no reply by the deadline"),
        (Fault(spoil=emptied), Code.FORMAT, "not the records of a message"),
        (Fault(spoil=garbage), Code.FORMAT, "not a message"),
        (Fault(spoil=oversized), Code.SIZE, "message too large"),
        (Fault(spoil=lied), Code.FORMAT, "not the records of a message"),
    ],
)
def test_a_fault_costs_its_client_and_theta_is_as_if_it_had_not_been_asked(
    fault: Fault, code: Code, what: str, nodes: Callable[[ct.Experiment], Nodes], tmp_path: Path
) -> None:
    federation = {"rounds": 1, "deadline": 3.0 if fault.delay else 60.0}
    one = experiment(federation=federation, evaluation__which="none")
    grid = nodes(one)
    for node in grid.ids:
        grid.faults[node] = only(fault, "domain-1")
    run = play(one, grid, tmp_path / "runs")
    (record,) = run.rounds
    assert record.cohort.dropped == {code.value: ("domain-1",)}
    assert what in record.cohort.reasons["domain-1"]
    assert "fault of this test" not in record.cohort.reasons["domain-1"]  # what Flower reports may hold a row

    class Without(FlowerEngine):
        def exchange(self, downs: Any, deadline: Any, min_ok: int, on_reply: Any) -> Any:
            rest = {client: downs[client] for client in downs if client != "domain-1"}
            on_reply("domain-1", CotuneError(Code.CLIENT, "not asked"))
            return super().exchange(rest, deadline, min_ok, on_reply)

    grid.faults.clear()
    make = partial(Without, grid=grid, nodes=NODES, wait=20.0)
    other = experiments.run(one, tmp_path / "without", make_engine=make)
    assert run.theta_sha256 == other.theta_sha256


def test_an_offline_node_costs_its_clients_at_once_and_the_rest_go_on(
    nodes: Callable[[ct.Experiment], Nodes], tmp_path: Path
) -> None:
    one = experiment(federation={"rounds": 2}, evaluation__which="none")
    grid = nodes(one)

    class Leaving(FlowerEngine):
        def exchange(self, downs: Any, deadline: Any, min_ok: int, on_reply: Any) -> Any:
            grid.offline = {grid.ids[1]} if not grid.offline else set()
            return super().exchange(downs, deadline, min_ok, on_reply)

    started = time.monotonic()
    run = experiments.run(one, tmp_path / "runs", make_engine=partial(Leaving, grid=grid, nodes=NODES))
    first, second = run.rounds
    assert first.cohort.dropped == {"E_ENGINE": ("domain-1", "domain-3")}
    assert "its node is offline" in first.cohort.reasons["domain-1"]
    assert second.cohort.accepted == ("domain-0", "domain-1", "domain-2", "domain-3")
    assert time.monotonic() - started < 60


def test_a_node_that_came_back_has_forgotten_its_message_and_nobody_waits_for_it(
    nodes: Callable[[ct.Experiment], Nodes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cotune.flower.engine.LOOK", 0.05)
    one = experiment(federation={"rounds": 1}, evaluation__which="none")  # and no deadline
    grid = nodes(one)
    for node in grid.ids:
        grid.faults[node] = only(Fault(delay=float("inf")), "domain-1")
    threading.Timer(0.5, lambda: grid.since.update({grid.ids[1]: "later"})).start()
    (record,) = play(one, grid, tmp_path / "runs").rounds
    assert "its node came back without it" in record.cohort.reasons["domain-1"]


def test_a_message_of_a_round_that_is_over_is_refused_by_the_client(
    nodes: Callable[[ct.Experiment], Nodes], tmp_path: Path
) -> None:
    one = experiment(federation={"rounds": 2}, evaluation__which="none")
    grid = nodes(one)
    play(one, grid, tmp_path / "runs")
    steps = [m for m in grid.pushed if m.metadata.message_type == STEP]
    stale, *_ = (m for m in steps if m.content.config_records[ABOUT]["round"] == 1)
    (reply,) = grid.send_and_receive([Message(stale.content, stale.metadata.dst_node_id, STEP)], timeout=20)
    told = reply.content.config_records["error"]
    assert told["code"] == "E_ROUND"
    assert "of a round that is over" in str(told["text"])


def test_too_few_nodes_end_the_wait_with_what_is_wrong_with_those_that_came(
    nodes: Callable[[ct.Experiment], Nodes], tmp_path: Path
) -> None:
    one = experiment()
    grid = nodes(one)
    grid.faults[grid.ids[0]] = Fault(error=ErrorCode.CLIENT_APP_CRASHED)
    with pytest.raises(CotuneError, match="too few nodes") as caught:
        play(one, grid, tmp_path / "runs", wait=1.0)
    assert caught.value.code is Code.ENGINE
    assert "its process ended" in str(caught.value)
    assert "got 1, expected 2" in str(caught.value)


def test_a_worker_with_another_experiment_does_not_take_part(
    nodes: Callable[[ct.Experiment], Nodes], tmp_path: Path
) -> None:
    grid = nodes(experiment())
    with pytest.raises(CotuneError, match="another experiment"):
        play(experiment(seeds={"seed": 7}), grid, tmp_path / "runs", wait=1.0)


def test_two_nodes_with_one_client_are_a_conflict(nodes: Callable[..., Nodes], tmp_path: Path) -> None:
    one = experiment()
    grid = nodes(one, places=1)
    with pytest.raises(CotuneError, match="two nodes have the same client") as caught:
        play(one, grid, tmp_path / "runs")
    assert caught.value.code is Code.CONFLICT


@pytest.mark.parametrize(
    "said", ['{"run": 1}', "[]", "null", "not json", '{"run": "R", "clients": {"a": [-1, 0]}, "facts": {}}']
)
def test_a_node_that_does_not_say_who_is_there_does_not_take_part(
    said: str, nodes: Callable[[ct.Experiment], Nodes], tmp_path: Path
) -> None:
    one = experiment()
    grid = nodes(one)

    def lie(_: RecordDict) -> RecordDict:
        return RecordDict({ABOUT: ConfigRecord({"who": said.replace('"R"', f'"{one.hash}"')})})

    grid.faults[grid.ids[1]] = Fault(spoil=lie, on=lambda message: message.metadata.message_type == WHO)
    with pytest.raises(CotuneError, match="too few nodes"):
        play(one, grid, tmp_path / "runs", wait=0.5)
