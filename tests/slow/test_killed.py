"""What is killed in a deployment with workers: a node costs a round its client, a SuperLink costs nothing but time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from federated import CLIENTS, config, one, project

import cotune as ct
from cotune import experiment as experiments
from cotune.flower.control import Submitted
from cotune.flower.loopback import Loopback
from cotune.flower.programs import members
from cotune.store import Lines, Run

ROUNDS, MANY = 4, 60


def of(rounds: int) -> ct.Experiment:
    return one(federation={"rounds": rounds, "min_replies": 1})


@pytest.fixture
def deployment(rounds: int, tmp_path: Path) -> Iterator[Loopback]:
    app = project(tmp_path / "project", of(rounds))
    with Loopback(tmp_path / "loop", CLIENTS, worker=(app / "experiment.toml", ()), say=print) as up:
        yield up


def until(true: Callable[[], object], submitted: Submitted, seconds: float = 120.0) -> None:
    ends = time.monotonic() + seconds
    while not true():
        assert not submitted.ended, submitted.log
        assert time.monotonic() < ends, submitted.log
        time.sleep(0.05)


def working(deployment: Loopback, node: int) -> bool:
    """Whether a process of a SuperNode answers a message at this moment."""
    tag = f"{deployment.folder}/node-{node}"
    return any("flwr-clientapp" in " ".join(process.cmdline()) for process in members([tag]))


@pytest.mark.parametrize("rounds", [ROUNDS])
def test_a_killed_superlink_costs_nothing_a_new_run_goes_on_to_the_same_bits(
    deployment: Loopback, tmp_path: Path
) -> None:
    app = tmp_path / "project"
    submitted = deployment.submit(app, config(tmp_path / "runs"))
    until(lambda: "round 2 ·" in submitted.log, submitted)
    deployment.kill_link()
    submitted.stop()
    run = Run(of(ROUNDS).folder(tmp_path / "runs"))
    assert 2 <= len(run.rounds) < ROUNDS
    deployment.start_link()
    deployment.wait_online(CLIENTS)
    finished = deployment.run(app, config(tmp_path / "runs"), 240)
    assert finished.completed, finished.log
    assert "resumed after round" in finished.log
    assert "round 1 ·" not in finished.log
    assert run.theta_sha256 == experiments.run(of(ROUNDS), tmp_path / "here").theta_sha256
    assert all(record.cohort.dropped == {} for record in run.rounds)


@pytest.mark.parametrize("rounds", [MANY])
def test_a_node_that_is_killed_at_work_costs_its_client_the_round_and_joins_again_with_its_state(
    deployment: Loopback, tmp_path: Path
) -> None:
    submitted = deployment.submit(tmp_path / "project", config(tmp_path / "runs"))
    until(lambda: "round 1 ·" in submitted.log, submitted)
    run = Run(of(MANY).folder(tmp_path / "runs"))
    until(lambda: working(deployment, 1), submitted)
    deployment.kill_node(1)
    assert not working(deployment, 1)  # nothing of it goes on computing
    deployment.start_node(1)
    until(lambda: any(r.cohort.dropped for r in run.rounds) and not run.rounds[-1].cohort.dropped, submitted)
    submitted.stop()
    lost = [record for record in run.rounds if record.cohort.dropped]
    for record in lost:
        assert record.cohort.accepted == ("domain-0",)
        assert record.cohort.dropped == {"E_ENGINE": ("domain-1",)}
    assert run.rounds[-1].cohort.accepted == ("domain-0", "domain-1")
    last = [line for line in Lines(run.folder / "ledger.jsonl").read() if line["round"] == run.rounds[-1].round]
    assert [line["direction"] for line in last if line["client"] == "domain-1"] == ["down", "up"]  # it held its state
