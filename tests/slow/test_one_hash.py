"""One experiment file, one theta: in this process, in a pool, in Flower's simulation, and on nodes behind TLS."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from federated import CLIENTS, config, one, project

from cotune import experiment as experiments
from cotune.core.errors import CotuneError
from cotune.engine import PoolEngine
from cotune.flower import certificates
from cotune.flower.loopback import Loopback, Simulation
from cotune.flower.programs import Program, environment, program
from cotune.flower.superlink import free_ports
from cotune.store import Run


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    with Loopback(tmp_path_factory.mktemp("loop"), CLIENTS, say=print) as up:
        yield up


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    return experiments.run(one(), tmp_path_factory.mktemp("inline")).theta_sha256


def test_a_pool_comes_to_the_hash_of_one_process(expected: str, tmp_path: Path) -> None:
    assert experiments.run(one(), tmp_path, make_engine=partial(PoolEngine, workers=2)).theta_sha256 == expected


def test_nodes_behind_tls_come_to_the_hash_of_one_process(deployment: Loopback, expected: str, tmp_path: Path) -> None:
    app = project(tmp_path / "project", one())
    finished = deployment.run(app, config(tmp_path / "runs"), 400)
    assert finished.completed, finished.log
    run = Run(one().folder(tmp_path / "runs"))
    assert run.theta_sha256 == expected
    assert f"theta_sha256 {expected}" in finished.log
    for record in run.rounds:
        assert record.cohort.dropped == {}


def test_a_node_whose_key_nobody_registered_is_refused(deployment: Loopback, tmp_path: Path) -> None:
    key = tmp_path / "key"
    certificates.make_node_key(key)
    last = last_words(deployment, key, deployment.folder / certificates.AUTHORITY, tmp_path)
    assert "Failed to activate SuperNode" in last
    assert deployment.online() == CLIENTS


def test_a_node_that_trusts_another_authority_never_gets_in(deployment: Loopback, tmp_path: Path) -> None:
    certificates.make_authority(tmp_path)
    last = last_words(deployment, deployment.home(0) / "key", tmp_path / certificates.AUTHORITY, tmp_path)
    assert "certificate verify failed" in last
    assert deployment.online() == CLIENTS


def last_words(deployment: Loopback, key: Path, authority: Path, folder: Path) -> str:
    """The log of one more SuperNode, with this key and this authority, which has to end by itself."""
    command = [program("flower-supernode"), "--root-certificates", str(authority), "--superlink"]
    command += [deployment.link.address, "--auth-supernode-private-key", str(key), "--port", str(free_ports(1)[0])]
    stranger = Program("stranger", command, folder / "node.log", environment(folder / "home", str(folder)))
    try:
        ends = time.monotonic() + 60
        while stranger.alive and time.monotonic() < ends:
            time.sleep(0.2)
        assert not stranger.alive
        return stranger.log.read_text("utf-8", "replace")
    finally:
        stranger.kill()


def test_a_simulation_comes_to_the_hash_of_one_process(expected: str, tmp_path: Path) -> None:
    app = project(tmp_path / "project", one())
    with Simulation(tmp_path / "simulation", CLIENTS, say=print) as up:
        try:
            finished = up.run(app, config(tmp_path / "runs"), 300)
        except CotuneError as error:
            pytest.fail(str(error))
    assert finished.completed, finished.log
    assert Run(one().folder(tmp_path / "runs")).theta_sha256 == expected
