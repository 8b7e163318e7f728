"""Runs as a user starts, repeats, interrupts and resumes them, and what a bad input comes to."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from typed import BACKBONE, ON, TASK, Said, Type, cotune, refused, typing

from cotune.store import Run

LONG = ("run", "fedprox", *ON, "--rounds", "12", "--set", "method.budget.steps=3", "--set", "method.budget.batch=8")
PART = '''
from typing import ClassVar
from cotune.core.contracts import Penalty

class Failing(Penalty):
    """Fails for one client."""
    kind: ClassVar[str] = "failing"
    client: str = ""

    def __call__(self, tensors, view):
        if view.client.startswith(self.client):
            raise ValueError("a row of somebody")
        return next(iter(tensors.values())).sum() * 0
'''


@pytest.fixture
def type_(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Type:
    monkeypatch.chdir(tmp_path)
    return typing(capfd)


def with_set(*assignments: str) -> list[str]:
    return ["run", "fedprox", *ON, *(word for assignment in assignments for word in ("--set", assignment))]


def with_file(text: str) -> list[str]:
    Path("bad.toml").write_text(text)
    return ["run", "bad.toml", *ON]


BAD: dict[str, tuple[Callable[[], list[str]], str, str]] = {
    "an unknown key": (lambda: with_set("method.optimizer.lrr=1"), "E_CONFIG", "did you mean 'lr'?"),
    "an unknown table": (lambda: with_set("federatoin.rounds=3"), "E_CONFIG", "did you mean 'federation'?"),
    "an unknown key of a table": (lambda: with_set("federation.round=3"), "E_CONFIG", "did you mean 'rounds'?"),
    "an unknown kind": (lambda: with_set("method.optimizer.kind=adam"), "E_CONFIG", "did you mean 'adamw'?"),
    "a value out of range": (lambda: with_set("federation.rounds=0"), "E_CONFIG", "federation.rounds"),
    "a wrong type": (lambda: with_set("method.budget.steps='ten'"), "E_CONFIG", "budget.steps"),
    "a learning rate that is no number": (lambda: with_set("method.optimizer.lr=nan"), "E_CONFIG", "finite"),
    "a negative rank": (lambda: with_set("method.trainable.rank=-1"), "E_CONFIG", "trainable.rank"),
    "an assignment without a value": (lambda: with_set("method.optimizer.lr"), "E_CONFIG", "a.b=c"),
    "a value that is no TOML": (lambda: with_set("method.optimizer.lr={"), "E_CONFIG", "TOML"),
    "a place that is not there": (lambda: with_set("method.penalties.7.mu=1"), "E_CONFIG", "method.penalties.7.mu"),
    "parts that do not fit": (
        lambda: ["run", "local", *ON, "--set", 'method.penalties=[{kind="proximal", mu=1}]'],
        "E_CONFLICT",
        "anchor",
    ),
    "an empty file": (lambda: with_file(""), "E_CONFIG", "method"),
    "a key twice": (lambda: with_file('recipe = "local"\nrecipe = "fedavg"\n'), "E_CONFIG", "line 2"),
    "no TOML": (lambda: with_file("recipe: local\n"), "E_CONFIG", "not a TOML file"),
    "a missing file": (lambda: ["run", "nothing.toml", *ON], "E_CONFIG", "nothing.toml"),
    "an unknown recipe": (lambda: ["run", "fedporx", *ON], "E_CONFIG", "did you mean 'fedprox'?"),
    "a folder in place of a file": (lambda: ["run", ".", *ON], "E_CONFIG", "no recipe or file '.'"),
    "no backbone": (lambda: ["run", "local", "--task", "classify:./mine.jsonl"], "E_CONFIG", "--backbone"),
    "no data": (lambda: ["run", "local", "--backbone", BACKBONE], "E_CONFIG", "--task"),
    "a bare backbone": (lambda: ["run", "local", "--task", TASK, "--backbone", "bert"], "E_CONFIG", "ORG/bert"),
    "an unknown option of a backbone": (
        lambda: ["run", "local", "--task", TASK, "--backbone", "random:bert?layer=1"],
        "E_CONFIG",
        "did you mean 'layers'?",
    ),
    "a device that is not here": (lambda: ["run", "local", *ON, "--device", "tpu"], "E_CONFIG", "tpu"),
    "a missing data file": (
        lambda: ["run", "local", "--backbone", BACKBONE, "--task", "./nothing.jsonl"],
        "E_DATA",
        "./nothing.jsonl",
    ),
    "an unknown data set": (
        lambda: ["run", "local", "--backbone", BACKBONE, "--task", "synth:sentimant"],
        "E_DATA",
        "synth:sentiment",
    ),
    "a cohort larger than the clients": (lambda: with_set("federation.cohort=9"), "E_CONFLICT", "at most 4"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_input_is_one_line_that_names_it(type_: Type, what: str) -> None:
    words, code, hint = BAD[what]
    assert hint in refused(type_(*words()), code, 3 if code == "E_DATA" else 2)


def test_a_bad_input_is_one_line_in_a_process_of_its_own_too(tmp_path: Path) -> None:
    done = cotune(*with_set("method.optimizer.lrr=1"), "--out", str(tmp_path))
    out, err = done.communicate()
    assert "lrr" in refused(Said(done.returncode, out, err), "E_CONFIG", 2)


def test_a_run_says_what_it_loads_each_round_and_what_it_came_to(type_: Type) -> None:
    said = type_("run", "fedprox", *ON, "--rounds", "2", "--out", "here")
    assert (said.status, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[0] == "loading fedprox"
    assert f"data {TASK} · 4 clients · 120 rows · 24 of them for testing" in lines
    assert [line.partition(" · ")[0] for line in lines if line.startswith("round ")][:2] == ["round 1/2", "round 2/2"]
    folder = Path(lines[-2].removeprefix("folder "))
    assert folder.parent == Path("here")
    assert lines[-3] == f"theta_sha256 {Run(folder).theta_sha256}"
    assert any(line.startswith("accuracy ") and "95 % interval" in line for line in lines)


def test_a_finished_run_is_reused_until_it_is_asked_for_afresh(type_: Type) -> None:
    folder = Path(type_("run", "local", *ON, "--rounds", "1", "--quiet").out.strip())
    made = (folder / "rounds.jsonl").stat().st_mtime_ns
    said = type_("run", "local", *ON, "--rounds", "1")
    assert "reused" in said.out
    assert (folder / "rounds.jsonl").stat().st_mtime_ns == made
    fresh = type_("run", "local", *ON, "--rounds", "1", "--fresh")
    assert "reused" not in fresh.out
    assert (folder / "rounds.jsonl").stat().st_mtime_ns > made
    assert fresh.out.splitlines()[-1] == said.out.splitlines()[-1]


def test_quiet_prints_the_folder_alone(type_: Type) -> None:
    said = type_("run", "local", *ON, "--rounds", "1", "--quiet")
    assert said.err == ""
    assert Run(said.out.removesuffix("\n")).status == "finished"


def test_a_terminal_gets_a_bar_and_no_colour_if_it_wants_none(type_: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    said = type_("run", "local", *ON, "--rounds", "2")
    assert said.status == 0
    assert "\x1b[" in said.out
    assert "\x1b[3" not in said.out.replace("\x1b[3A", "")
    assert "round 2/2 · train loss" in said.out


def test_a_client_that_fails_is_named_with_its_reason_and_without_its_rows(type_: Type) -> None:
    Path("failing.py").write_text(PART)
    one = 'method.penalties=[{kind="failing:Failing", client="domain-1"}]'
    said = type_("run", "lora-fedavg", *ON, "--rounds", "1", "--set", one)
    dropped = [line for line in said.out.splitlines() if line.startswith("dropped ")]
    assert (said.status, len(dropped)) == (0, 1)
    assert dropped[0].startswith("dropped domain-1 · error[E_CLIENT] client failed")
    assert "ValueError at failing.py" in dropped[0]
    everybody = type_("run", "lora-fedavg", *ON, "--set", 'method.penalties=[{kind="failing:Failing"}]')
    refused(everybody, "E_QUORUM", 5)
    assert "somebody" not in said.out + everybody.out + everybody.err


def test_rows_that_were_skipped_or_cut_are_reported(type_: Type) -> None:
    rows = [
        {"text": text, "label": i % 2} for i, text in enumerate(["good " * 9, "bad", "", "so", "la", " ", "x", "y"])
    ]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sets = ("task.partition={kind='iid', clients=2}", "task.max_tokens=4", "task.test=3")
    words = [word for assignment in sets for word in ("--set", assignment)]
    said = type_("run", "local", "--backbone", BACKBONE, "--task", "./rows.jsonl", "--rounds", "1", *words)
    assert "skipped 2 rows · 1 empty, 1 whitespace" in said.out
    truncated = json.loads((Path(said.out.splitlines()[-2].removeprefix("folder ")) / "experiment.json").read_text())
    cut = truncated["test"]["truncated"]
    assert (f"{cut} of 3 test rows were cut" in said.out) is (cut > 0)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Said]:
    """The folder of a run that was interrupted after its second round, and what was said."""
    out = tmp_path_factory.mktemp("interrupted")
    process = cotune(*LONG, "--out", str(out))
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("round 2/12"):
            process.send_signal(signal.SIGINT)
            break
    rest, err = process.communicate(timeout=60)
    return out, Said(process.returncode, "".join(lines) + rest, err)


@pytest.fixture
def unfinished(interrupted: tuple[Path, Said], tmp_path: Path) -> str:
    """A copy of the interrupted run's folder of runs."""
    shutil.copytree(interrupted[0], tmp_path / "copy")
    return str(tmp_path / "copy")


def test_an_interrupted_run_ends_with_130_and_one_line(interrupted: tuple[Path, Said]) -> None:
    out, said = interrupted
    assert said.status == 130
    assert said.err == "interrupted · repeat the command with --resume to go on\n"
    (folder,) = out.iterdir()
    assert Run(folder).status == "interrupted"


def test_an_unfinished_run_is_neither_repeated_nor_continued_unasked(unfinished: str, type_: Type) -> None:
    assert "--resume" in refused(type_(*LONG, "--out", unfinished), "E_CKPT", 4)


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(unfinished: str, type_: Type) -> None:
    resumed = type_(*LONG, "--out", unfinished, "--resume")
    assert resumed.status == 0
    assert "resumed after round " in resumed.out
    straight = type_(*LONG, "--out", "straight")
    assert resumed.out.splitlines()[-3].startswith("theta_sha256 ")
    assert resumed.out.splitlines()[-3] == straight.out.splitlines()[-3]


def test_resuming_with_another_value_is_refused_with_the_difference(unfinished: str, type_: Type) -> None:
    line = refused(type_(*LONG, "--out", unfinished, "--resume", "--set", "method.optimizer.lr=0.5"), "E_CONFLICT", 2)
    assert "method.optimizer.lr: 0.001 -> 0.5" in line


def test_resuming_where_nothing_is_unfinished_starts(type_: Type) -> None:
    assert type_("run", "local", *ON, "--rounds", "1", "--resume").status == 0
    assert type_("run", "local", *ON, "--rounds", "2", "--resume").status == 0


def test_a_terminated_run_marks_itself_interrupted(tmp_path: Path) -> None:
    process = cotune(*LONG, "--out", str(tmp_path))
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("round 1/12"):
            process.send_signal(signal.SIGTERM)
            break
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (143, "terminated\n")
    (folder,) = tmp_path.iterdir()
    assert Run(folder).status == "interrupted"
