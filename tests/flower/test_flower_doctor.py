"""What stands between this machine, or a project, and a run on Flower."""

from __future__ import annotations

import os
import socket
import sqlite3
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from cotune.flower import certificates, doctor
from cotune.flower.doctor import examine, worker
from cotune.flower.superlink import HOST, free_ports


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other Python is started, and this user's own Flower is not looked at."""

    def ran(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert words[1] == "-c"
        return subprocess.CompletedProcess(words, 0, "somewhere", "")

    monkeypatch.setattr(subprocess, "run", ran)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(doctor, "DEFAULTS", dict.fromkeys(free_ports(1), "SuperLink"))


@pytest.fixture
def deployed(tmp_path: Path) -> Path:
    """A project's folder with what `cotune flower up` leaves there."""
    folder = tmp_path / "project" / ".flower"
    certificates.make_authority(folder)
    certificates.make_server(folder, ["federation.example.org"])
    certificates.make_node_key(folder / "nodes" / "0" / "key")
    with sqlite3.connect(folder / "state.db") as connection:
        connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
        connection.execute("INSERT INTO alembic_version VALUES ('abc')")
    connection.close()
    return folder


@pytest.fixture
def listening() -> Iterator[Path]:
    """A socket for this user alone at which somebody listens; its path is short, as systems want it."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        path = Path(folder) / "worker.sock"
        server.bind(str(path))
        path.chmod(0o600)
        server.listen()
        yield path


def warned(folder: Path | None, now: datetime | None = None) -> list[str]:
    return [line for line in examine(folder, now) if line.startswith("warning")]


def test_a_machine_without_fault_has_no_warning() -> None:
    lines = list(examine(None))
    assert f"flwr {metadata.version('flwr')}" in lines
    assert any("openssl is not needed" in line for line in lines)
    assert any(line.endswith("its Python has cotune") for line in lines)
    assert not [line for line in lines if line.startswith("warning")]


def test_a_deployment_without_fault_has_no_warning(deployed: Path) -> None:
    lines = list(examine(deployed.parent))
    assert not [line for line in lines if line.startswith("warning")]
    assert any("for localhost, federation.example.org, 127.0.0.1" in line for line in lines)
    assert f"node key {deployed / 'nodes' / '0' / 'key'} · fits its public half" in lines
    assert f"database {deployed / 'state.db'} · whole" in lines


def test_another_minor_of_flower_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    before = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "1.43.0" if name == "flwr" else before(name))
    assert any("cotune knows flwr 1.42" in line for line in warned(None))


def test_a_taken_port_is_a_warning() -> None:
    (port,) = doctor.DEFAULTS
    with socket.socket() as taken:
        taken.bind((HOST, port))
        taken.listen()
        assert any(f"port {port} is in use" in line for line in warned(None))


def test_a_supernode_whose_python_has_no_cotune_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess(["python"], 1, "", "ModuleNotFoundError")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    assert any("has no cotune" in line for line in warned(None))


def test_programs_that_are_not_there_are_a_warning_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    assert len([line for line in warned(None) if "no program" in line]) == len(doctor.PROGRAMS)


def test_a_database_that_flower_cannot_open_again_is_a_warning(deployed: Path, tmp_path: Path) -> None:
    own = tmp_path / "home" / ".flwr" / "local-superlink" / "state.db"
    own.parent.mkdir(parents=True)
    for database in (deployed / "state.db", own):
        with sqlite3.connect(database) as connection:
            connection.execute("CREATE TABLE _alembic_tmp_connector (id INT)")
        connection.close()
    lines = [line for line in warned(deployed.parent) if "made its tables" in line]
    assert [line.rpartition(" ")[2] for line in lines] == [str(own), str(deployed / "state.db")]


@pytest.mark.parametrize(
    ("days", "hint"),
    [(-3, "is the clock right?"), (0, ""), (365 * 2 - 10, "ends on"), (365 * 2 + 10, "has ended on")],
)
def test_a_certificate_that_does_not_hold_now_is_a_warning(deployed: Path, days: int, hint: str) -> None:
    lines = warned(deployed, datetime.now(UTC) + timedelta(days=days))
    assert bool(lines) is bool(hint)
    assert not hint or any(hint in line for line in lines)


def test_a_clock_that_is_behind_is_a_warning() -> None:
    assert any("the clock is behind" in line for line in warned(None, datetime(2020, 1, 1, tzinfo=UTC)))


@pytest.mark.parametrize("name", ["ca.key", "server.key", "nodes/0/key"])
def test_a_secret_that_others_may_read_is_a_warning(deployed: Path, name: str) -> None:
    (deployed / name).chmod(0o640)
    assert warned(deployed) == [f"warning: others may read {deployed / name} · chmod 600 {deployed / name}"]


@pytest.mark.parametrize(("name", "hint"), [("ca.crt", "was not signed by"), ("server.key", "is not the key of")])
def test_certificates_that_do_not_belong_together_are_a_warning(
    deployed: Path, tmp_path: Path, name: str, hint: str
) -> None:
    certificates.make_authority(tmp_path / "other")
    certificates.make_server(tmp_path / "other")
    (deployed / name).write_bytes((tmp_path / "other" / name).read_bytes())
    assert any(hint in line for line in warned(deployed))


@pytest.mark.parametrize("name", ["server.pem", "nodes/0/key"])
def test_what_cannot_be_read_is_a_warning(deployed: Path, name: str) -> None:
    (deployed / name).write_text("nothing of this kind")
    assert any("cannot read" in line for line in warned(deployed))


def test_a_worker_answers_to_this_user_alone(listening: Path) -> None:
    assert worker(listening) == f"worker {listening} · answers, and to this user alone"
    listening.chmod(0o660)
    assert worker(listening).startswith("warning: others may use the worker")


def test_a_worker_that_is_gone_is_a_warning(deployed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(deployed)  # the path that is bound is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("worker.sock")
    os.chmod("worker.sock", stat.S_IRUSR | stat.S_IWUSR)
    assert any("nobody answers" in line for line in warned(Path()))
    (deployed / "other.sock").write_text("no socket")
    (deployed / "other.sock").chmod(0o600)
    assert any("is no socket" in line for line in warned(Path()))
