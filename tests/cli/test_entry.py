"""The edges of the command line: help is cheap, a mistake is one line, a signal is an exit status."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from typed import ON, Type, cotune, refused, typing

from cotune.cli import main

HELP = "import sys; from cotune.cli import main; status = main(['--help']); "


@pytest.fixture
def type_(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Type:
    monkeypatch.chdir(tmp_path)
    return typing(capfd)


def test_help_imports_neither_torch_nor_transformers() -> None:
    script = HELP + "print([name for name in ('torch', 'transformers', 'peft', 'datasets') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "run" in done.stdout


def test_help_takes_less_than_seven_tenths_of_a_second_of_processor_time() -> None:
    spent = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", HELP + "sys.exit(status)"], stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert statistics.median(spent) < 0.7


def test_no_arguments_print_the_help(type_: Type) -> None:
    assert type_() == type_("--help")
    assert type_().status == 0


def test_every_command_has_help(type_: Type) -> None:
    for command in ("list", "show", "run", "compare", "check", "fetch", "doctor"):
        assert command in type_("--help").out
        said = type_(command, "--help")
        assert said.status == 0
        assert f"Usage: cotune {command}" in said.out


def test_the_version_is_the_installed_one(type_: Type) -> None:
    assert type_("--version").out.startswith("cotune 0.")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["rnu", "fedprox"], "did you mean 'run'?"),
        (["run", "fedprox", "--ruonds", "3"], "did you mean '--rounds'?"),
        (["--verison"], "did you mean '--version'?"),
        (["list", "penalties"], "did you mean 'penalty'?"),
        (["run"], "RECIPE|FILE"),
        (["run", "fedprox", "--rounds", "many"], "--rounds"),
        (["run", "fedprox", "--rounds"], "--rounds"),
        (["list", "penalty", "optimizer"], "see `cotune list --help`"),
        (["run", "fedprox", "--resume", "--fresh"], "exclude each other"),
        (["show", "fedprox", "--shapes-only"], "--backbone"),
    ],
)
def test_a_mistake_in_the_arguments_is_one_line_with_the_way_out(type_: Type, words: list[str], hint: str) -> None:
    assert hint in refused(type_(*words), "E_CONFIG", 2)


def test_an_unexpected_failure_shows_its_type_and_never_its_text(type_: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_room: object) -> str:
        raise ValueError("a row of somebody")

    monkeypatch.setattr("cotune.cli.rooms.listing", fail)
    line = refused(type_("list"), "E_ENGINE", 7)
    assert "ValueError at test_entry.py:" in line
    assert "run again with --debug" in line
    assert "somebody" not in line
    assert "somebody" in type_("list", "--debug").err


@pytest.mark.parametrize("words", [["--debug", "list", "nothing"], ["list", "nothing", "--debug"]])
def test_debug_before_or_after_the_command_adds_the_traceback(type_: Type, words: list[str]) -> None:
    said = type_(*words)
    assert "Traceback" in said.err
    assert said.err.splitlines()[-1].startswith("error[E_CONFIG] no room 'nothing'")
    assert said.status == 2


def test_a_file_that_the_system_refuses_is_a_disk_error(type_: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_room: object) -> str:
        raise PermissionError(13, "Permission denied", "runs/x")

    monkeypatch.setattr("cotune.cli.rooms.listing", fail)
    assert "runs/x · got Permission denied" in refused(type_("list"), "E_DISK", 4)
    Path("taken").write_text("a file, not a folder")
    refused(type_("run", "local", *ON, "--out", "taken"), "E_DISK", 4)


def test_the_search_path_and_the_signals_are_as_before(type_: Type) -> None:
    before = list(sys.path)
    type_("list", "task")
    assert sys.path == before


def test_a_reader_who_leaves_early_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    script = "import sys; from cotune.cli import main; sys.exit(main(['list']))"
    done = subprocess.run(
        [sys.executable, "-c", script], stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_signs_that_the_terminal_does_not_know_are_no_error() -> None:
    done = cotune("list", "penalty", PYTHONIOENCODING="ascii")
    out, err = done.communicate()
    assert (done.returncode, err) == (0, "")
    assert "proximal" in out


def test_arguments_default_to_those_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["cotune", "--version"])
    assert main() == 0
