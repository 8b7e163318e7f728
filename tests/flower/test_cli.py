"""The commands of `cotune flower`: files that Flower takes, one line for every mistake, with and without Flower."""

from __future__ import annotations

import os
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from typed import BACKBONE, TASK, Type, refused, typing
from written import FINISHED, record

from cotune import resolve
from cotune.cli.flower import Relay
from cotune.core.errors import Code
from cotune.flower.project import config_of, experiment_of
from cotune.flower.scaffold import name_of
from cotune.store import Lines, write_json

ON = ("--backbone", BACKBONE, "--task", TASK)


@pytest.fixture
def type_(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Type:
    monkeypatch.chdir(tmp_path)
    return typing(capfd)


@pytest.fixture
def without_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which flwr is not installed."""
    before = metadata.version

    def version(name: str) -> str:
        if name == "flwr":
            raise metadata.PackageNotFoundError(name)
        return before(name)

    monkeypatch.setattr(metadata, "version", version)


@pytest.mark.usefixtures("without_flower")
@pytest.mark.parametrize(
    "words", [["init", "project"], ["up", "."], ["certify", "keys"], ["key", "site-a"], ["doctor"], ["doctor", "."]]
)
def test_without_flower_a_command_is_one_line_that_says_how_to_get_it(type_: Type, words: list[str]) -> None:
    line = refused(type_("flower", *words), "E_CONFIG", 2)
    assert "Flower is not installed" in line
    assert line.endswith("pip install 'cotune[flower]'")
    assert not [*Path().iterdir()]


@pytest.mark.usefixtures("without_flower")
def test_help_needs_no_flower(type_: Type) -> None:
    assert "flower" in type_("--help").out
    for command in ("init", "up", "certify", "key", "doctor"):
        assert f"Usage: cotune flower {command}" in type_("flower", command, "--help").out


def with_flower() -> None:
    pytest.importorskip("flwr")


def test_a_new_project_is_the_experiment_that_was_asked_for(type_: Type) -> None:
    with_flower()
    said = type_("flower", "init", "two_sites", "--recipe", "fedprox", *ON, "--rounds", "3", "--seed", "4")
    assert (said.status, said.err) == (0, "")
    assert said.out.splitlines()[-1] == "next: cotune flower up two_sites"
    made = experiment_of(Path("two_sites"), config_of(Path("two_sites")))
    asked = resolve.load("fedprox", backbone=BACKBONE, task=TASK, rounds=3, seed=4)
    assert (made.hash, made.name) == (asked.hash, "two-sites")
    assert "since none was named" not in said.out


def test_what_was_not_named_is_chosen_and_said(type_: Type) -> None:
    with_flower()
    said = type_("flower", "init", "new")
    assert "backbone builtin:tiny-llama, since none was named" in said.out
    assert "task sft:synth:instructions?clients=4, since none was named" in said.out
    assert experiment_of(Path("new"), {}).backbone.ref == "builtin:tiny-llama"


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
def test_flower_takes_the_project_and_bundles_its_code_and_nothing_else(type_: Type) -> None:
    pytest.importorskip("flwr")
    from flwr.cli.build import build_fab_from_disk
    from flwr.cli.config_utils import load_and_validate
    from flwr.common.config import get_fab_config

    type_("flower", "init", "new")
    folder = Path("new")
    for name in ("rows.jsonl", "clinic.json", ".flower/ca.key", "runs/x/experiment.json", "notes.md"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("a secret")
    config, warnings = load_and_validate(folder / "pyproject.toml")
    assert warnings == []
    assert config["tool"]["flwr"]["app"]["components"] == {
        "serverapp": "federation.server_app:app",
        "clientapp": "federation.client_app:app",
    }
    bundle = folder.with_suffix(".fab")
    bundle.write_bytes(build_fab_from_disk(folder))
    assert get_fab_config(bundle)["project"]["name"] == "new"
    from zipfile import ZipFile

    with ZipFile(bundle) as archive:
        assert sorted(archive.namelist()) == [
            ".info/CONTENT",
            "experiment.toml",
            "federation/__init__.py",
            "federation/client_app.py",
            "federation/server_app.py",
            "pyproject.toml",
        ]


def test_the_apps_of_a_project_are_flowers(type_: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr")
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

    type_("flower", "init", "new")
    for side, kind in (("server", ServerApp), ("client", ClientApp)):
        path = Path("new") / "federation" / f"{side}_app.py"
        names: dict[str, Any] = {"__file__": str(path.resolve())}
        exec(compile(path.read_text(), str(path), "exec"), names)
        assert isinstance(names["app"], kind)


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("a_b", "a-b"),
        ("42 sites", "federation-42-sites"),
        ("x" * 40, "x" * 32),
        ("Ünï", "n"),
        ("--", "federation"),
    ],
)
def test_a_folders_name_becomes_one_that_flower_takes(tmp_path: Path, folder: str, name: str) -> None:
    assert name_of(tmp_path / folder) == name


def test_nothing_is_ever_written_over(type_: Type) -> None:
    with_flower()
    folder = Path("new")
    folder.mkdir()
    (folder / "experiment.toml").write_text("mine")
    (folder / "rows.jsonl").write_text("mine too")
    line = refused(type_("flower", "init", "new", *ON), "E_CONFIG", 2)
    assert "got experiment.toml" in line
    assert sorted(path.name for path in folder.iterdir()) == ["experiment.toml", "rows.jsonl"]
    (folder / "experiment.toml").unlink()
    assert type_("flower", "init", "new", *ON).status == 0
    assert (folder / "rows.jsonl").read_text() == "mine too"


def test_what_is_no_experiment_makes_no_project(type_: Type) -> None:
    with_flower()
    assert "did you mean 'fedprox'?" in refused(type_("flower", "init", "new", "--recipe", "fedprx"), "E_CONFIG", 2)
    refused(type_("flower", "init", "new", "--backbone", "nothing"), "E_CONFIG", 2)
    assert not Path("new").exists()


def test_keys_and_certificates_are_made_by_commands(type_: Type) -> None:
    with_flower()
    said = type_("flower", "certify", "keys", "--host", "federation.example.org", "--host", "10.0.0.7")
    assert said.status == 0
    assert "for localhost, federation.example.org, 127.0.0.1, 10.0.0.7" in said.out
    authority = Path("keys/ca.crt").read_bytes()
    refused(type_("flower", "certify", "keys"), "E_CONFIG", 2)
    Path("keys/server.pem").unlink()
    Path("keys/server.key").unlink()
    assert type_("flower", "certify", "keys").status == 0
    assert Path("keys/ca.crt").read_bytes() == authority
    assert "flwr supernode register" in type_("flower", "key", "site-a").out
    assert Path("site-a.pub").read_text().startswith("ecdsa-sha2-nistp384 ")
    refused(type_("flower", "key", "site-a"), "E_CONFIG", 2)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["up", "nothing"], "no project here"),
        (["up", "new", "--set", "federation.ruonds=3"], "did you mean 'rounds'?"),
        (["up", "new", "--set", "rounds"], "a.b=c"),
        (["up", "new", "--nodes", "0"], "--nodes"),
        (["dwon", "new"], "known: certify, doctor, init, key, up"),
        (["doctor", "nothing"], "no such folder"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_started(type_: Type, words: list[str], hint: str) -> None:
    with_flower()
    type_("flower", "init", "new", *ON)
    assert hint in refused(type_("flower", *words), "E_CONFIG", 2)
    assert not Path("new/.flower").exists()


def test_a_setting_that_flower_would_refuse_is_refused_first(type_: Type) -> None:
    with_flower()
    type_("flower", "init", "new", *ON)
    project = Path("new/pyproject.toml")
    project.write_text(project.read_text().replace('set = ""\n', ""))
    line = refused(type_("flower", "up", "new", "--set", "federation.rounds=3"), "E_CONFIG", 2)
    assert "add `set = ...` to [tool.flwr.app.config]" in line


def test_a_run_that_is_finished_is_not_repeated(type_: Type) -> None:
    with_flower()
    type_("flower", "init", "new", *ON)
    folder = experiment_of(Path("new"), {}).folder(Path("new/runs"))
    write_json(folder / "status.json", FINISHED)
    Lines(folder / "rounds.jsonl").append([record(1, ["a", "b"]).model_dump(mode="json")])
    said = type_("flower", "up", "new")
    assert said.out.splitlines() == [
        f"finished already: {folder.name}",
        f"theta_sha256 {1:064x}",
        f"folder {folder.resolve()}",
    ]
    assert not Path("new/.flower").exists()


def test_of_a_run_that_failed_the_server_apps_own_error_is_what_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    relay = Relay()
    assert relay.failure("finished:failed").code is Code.ENGINE
    for line in (
        "Using SuperLink: cotune (127.0.0.1:1)",
        "INFO :      Start `flwr-serverapp` process",
        "node 1 does not take part · error[E_CONFIG] no client for this site",
        "error[E_QUORUM] no reply was accepted in any round · see `reasons`",
        "ERROR :     ServerApp raised an exception",
        "Traceback (most recent call last):",
        "cotune.core.errors.CotuneError: error[E_QUORUM] no reply was accepted in any round · see `reasons`",
    ):
        relay(line)
    told = relay.failure("finished:failed")
    assert str(told) == "error[E_QUORUM] no reply was accepted in any round · see `reasons`"
    assert told.status == 5
    assert capfd.readouterr().out == "node 1 does not take part · error[E_CONFIG] no client for this site\n"


def test_the_doctor_looks_at_the_project_too(type_: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    with_flower()
    monkeypatch.setenv("HOME", os.getcwd())
    found = subprocess.CompletedProcess(["python"], 0, "somewhere", "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: found)
    type_("flower", "init", "new", *ON)
    name = f"new-{experiment_of(Path('new'), {}).hash[:8]}"
    assert f"project new · experiment {name}" in type_("flower", "doctor", "new").out
    Path("new/experiment.toml").write_text("recipe = 'fedprx'")
    assert "warning: no recipe or file 'fedprx'" in type_("flower", "doctor", "new").out
