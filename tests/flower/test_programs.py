"""Programs in the background: logged, found again by what they carry, and never left behind."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import psutil
import pytest

from cotune.core.errors import Code, CotuneError
from cotune.flower import programs
from cotune.flower.control import Node, Submitted, Value, pairs, quoted
from cotune.flower.programs import TAG, Program, check_installed, end_families, ending, environment, members
from cotune.flower.superlink import HOST, free_ports, half_migrated, is_free, waiting

# A program that starts another in a session of its own and prints both numbers: a process group does not hold these.
FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print("started", child.pid, flush=True)
time.sleep(60)
"""
# One that does not listen when it is asked to end.
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('here', flush=True); time.sleep(60)"
)


Start = Callable[[str, str], Program]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    programs: list[Program] = []

    def started(name: str, script: str) -> Program:
        env = environment(tmp_path / "home", f"{tmp_path}/{name}")
        program = Program(f"the {name}", [sys.executable, "-c", script], tmp_path / f"{name}.log", env)
        programs.append(program)
        return program

    yield started
    end_families([str(tmp_path)], grace=0.0)
    for program in programs:
        program.reap()


def said(program: Program, word: str) -> str:
    for _ in range(500):
        if word in (text := program.log.read_text()):
            return text
        time.sleep(0.02)
    raise AssertionError(program.log.read_text())


def runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)


def test_killing_a_program_ends_what_it_started_in_other_sessions_too(tmp_path: Path, start: Start) -> None:
    program = start("link", FAMILY)
    child = int(said(program, "started").split()[1])
    assert {process.pid for process in members([f"{tmp_path}/link"])} == {program.pid, child}
    program.kill()
    assert not program.alive
    assert not runs(child)
    assert members([str(tmp_path)]) == []


def test_a_child_that_outlived_its_parent_is_still_of_the_family(tmp_path: Path, start: Start) -> None:
    program = start("node-1", FAMILY)
    child = int(said(program, "started").split()[1])
    psutil.Process(program.pid).kill()
    program.reap()
    assert [process.pid for process in members([str(tmp_path)])] == [child]
    end_families([str(tmp_path)])
    assert not runs(child)


def test_other_families_and_this_process_are_left_alone(tmp_path: Path, start: Start) -> None:
    one, other = start("node-1", FAMILY), start("node-10", FAMILY)
    said(one, "started")
    said(other, "started")
    one.kill()
    assert other.alive
    assert len(members([f"{tmp_path}/node-10"])) == 2


def test_what_does_not_end_when_asked_is_ended_after_its_grace(tmp_path: Path, start: Start) -> None:
    program = start("node-0", STUBBORN)
    said(program, "here")
    before = time.monotonic()
    end_families([str(tmp_path)], grace=0.4)
    assert time.monotonic() - before >= 0.4
    program.reap()
    assert not program.alive


def test_a_program_that_has_ended_says_how_and_with_which_last_words(tmp_path: Path, start: Start) -> None:
    program = start("link", "print('\\x1b[91mERROR\\x1b[0m: the port is taken'); raise SystemExit(3)")
    program.reap()
    with pytest.raises(CotuneError, match="exit status 3: ERROR: the port is taken") as refused:
        program.check()
    assert refused.value.code is Code.ENGINE
    killed = start("node-0", "import os; os.kill(os.getpid(), 9)")
    killed.reap()
    with pytest.raises(CotuneError, match="SIGKILL"):
        killed.check()


def test_a_program_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CotuneError) as refused:
        Program("nothing", ["/nothing/of/this/name"], tmp_path / "log", {TAG: str(tmp_path)})
    assert refused.value.code is Code.ENGINE
    with pytest.raises(CotuneError, match="pip install"):
        programs.program("flower-of-no-name")


def test_the_log_before_is_kept_beside_the_new_one(tmp_path: Path, start: Start) -> None:
    for word in ("first", "second"):
        start("link", f"print('{word}')").reap()
    assert (tmp_path / "link.log").read_text() == "second\n"
    assert (tmp_path / "link.log.1").read_text() == "first\n"


def test_the_end_of_a_log_is_one_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert ending(log) == "no log"
    log.write_text("a\n╭──╮\nb\n\nc\n d\n")
    assert ending(log) == "b | c | d"


def test_flower_starts_quietly_with_the_programs_of_this_python_first(tmp_path: Path) -> None:
    env = environment(tmp_path, "here")
    assert env["FLWR_HOME"] == str(tmp_path)
    assert env["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    assert env["FLWR_TELEMETRY_ENABLED"] == "0"
    assert env["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"


def test_another_minor_of_flower_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda _name: "1.43.0")
    with pytest.raises(CotuneError) as refused:
        check_installed()
    assert refused.value.code is Code.VERSION
    monkeypatch.setattr(metadata, "version", lambda _name: "1.42.7")
    check_installed()


def test_settings_are_written_as_flower_reads_them() -> None:
    values: dict[str, Value] = {"a": 1, "b": 0.5, "c": True, "d": "two words", "e": 'say "x"', "f": "it's"}
    assert pairs(values) == "a=1 b=0.5 c=true d='two words' e='say \"x\"' f=\"it's\""
    for text in ("both ' and \"", "two\nlines", "it's a \\ path"):
        with pytest.raises(CotuneError):
            quoted(text)


def test_settings_come_back_from_flower_as_they_were() -> None:
    config = pytest.importorskip("flwr.common.config")
    values: dict[str, Value] = {
        "a": 1,
        "b": 0.5,
        "c": True,
        "d": "/tmp/a b.toml",
        "e": 'say "x"',
        "f": "it's",
        "g": "x=1; y=2",
    }
    assert config.parse_config_args([pairs(values)]) == values


def test_ports_are_free_and_different() -> None:
    import socket

    first, second = free_ports(2)
    assert first != second
    with socket.socket() as taken:
        taken.bind((HOST, first))
        taken.listen()
        assert not is_free(first)
        assert is_free(second)
    assert is_free(first)


def test_waiting_ends_with_what_was_waited_for(tmp_path: Path) -> None:
    with pytest.raises(CotuneError, match="no node came") as refused:
        list(waiting(0.1, "no node came", tmp_path))
    assert refused.value.code is Code.ENGINE


def tables(path: Path, *statements: str) -> Path:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
    return path


def test_a_database_whose_making_was_cut_short_is_seen(tmp_path: Path) -> None:
    stamp = ("CREATE TABLE alembic_version (version_num TEXT)", "INSERT INTO alembic_version VALUES ('abc')")
    assert not half_migrated(tmp_path / "none")
    assert not half_migrated(tables(tmp_path / "empty"))
    assert not half_migrated(tables(tmp_path / "whole", *stamp, "CREATE TABLE node (id INT)"))
    assert half_migrated(tables(tmp_path / "moved", *stamp, "CREATE TABLE _alembic_tmp_connector (id INT)"))
    assert half_migrated(tables(tmp_path / "unstamped", stamp[0], "CREATE TABLE node (id INT)"))
    (tmp_path / "other").write_text("no database at all, but long enough to be looked at" * 9)
    assert half_migrated(tmp_path / "other")


def test_a_node_that_was_online_before_has_not_come_back() -> None:
    earlier, later = "2026-01-31 23:59:59Z", "2026-02-01 00:00:00Z"
    assert Node("online", earlier).online()
    assert Node("online", later).online(later)
    assert not Node("online", earlier).online(later)
    assert not Node("offline", later).online(later)


def test_a_run_that_nobody_took_is_an_error_with_what_was_said(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text("╭─ Error ─╮\n│ [code: 15] Invalid run configuration. │\n")
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    heard: list[str] = []
    with pytest.raises(CotuneError, match="Invalid run configuration") as refused:
        Submitted(None, done, log).wait(5.0, heard.append)  # type: ignore[arg-type]  # nobody is asked
    assert refused.value.code is Code.ENGINE
    assert heard == ["╭─ Error ─╮", "│ [code: 15] Invalid run configuration. │"]
