"""`cotune export`: one line an error, and the same bytes from any process."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import experiment, play
from typed import Type, cotune, refused, typing

from cotune.store import Run


@pytest.fixture
def type_(capfd: pytest.CaptureFixture[str]) -> Type:
    return typing(capfd)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return play(experiment(federation={"rounds": 1}), tmp_path_factory.mktemp("shared"))


@pytest.fixture(scope="module")
def personal(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return play(experiment("local", federation={"rounds": 1}), tmp_path_factory.mktemp("personal"))


def test_another_process_writes_the_same_bytes_and_says_what_they_are(shared: Run, tmp_path: Path) -> None:
    child = cotune("export", str(shared.folder), str(tmp_path / "one"), PYTHONHASHSEED="7")
    out, err = child.communicate()
    assert (child.returncode, err) == (0, "")
    assert out.splitlines() == [
        f"loading random:bert?layers=1&hidden=16&heads=2 · {shared.folder}",
        "adapter of rank 8 for random:bert?layers=1&hidden=16&heads=2",
        "random:bert?layers=1&hidden=16&heads=2 is no folder or hub id: --with-backbone writes one beside",
        f"folder {tmp_path / 'one'}",
    ]
    for file in ("README.md", "adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "one" / file).read_bytes() == (shared.folder / "adapter" / file).read_bytes()


def test_the_whole_model_and_one_clients_model(type_: Type, shared: Run, personal: Run, tmp_path: Path) -> None:
    said = type_("export", str(shared.folder), str(tmp_path / "whole"), "--merge")
    assert said.status == 0, said.err
    assert "whole model · its logits differ by at most" in said.out
    client = personal.rounds[0].cohort.accepted[0]
    said = type_("export", str(personal.folder), str(tmp_path / "one"), "--client", client, "--with-backbone")
    assert said.status == 0, said.err
    assert f"this is the model of client {client}, which only a simulation can read" in said.out
    assert {path.name for path in (tmp_path / "one").iterdir()} == {
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
        "backbone",
    }


def test_what_cannot_be_is_one_line(type_: Type, shared: Run, personal: Run, tmp_path: Path) -> None:
    run, own, new = str(shared.folder), str(personal.folder), str(tmp_path / "new")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for args, code, status, what in (
        ((str(tmp_path), new), "E_CKPT", 4, "no run is here"),
        ((run, str(tmp_path / "full")), "E_CONFLICT", 2, "not empty"),
        ((run, new, "--merge", "--with-backbone"), "E_CONFIG", 2, "exclude each other"),
        ((run, new, "--client", "domain-0"), "E_CONFLICT", 2, "all clients have one model"),
        ((own, new), "E_CONFLICT", 2, "--client ID"),
        ((own, new, "--client", "domain0"), "E_CONFIG", 2, "did you mean 'domain-0'"),
        ((run,), "E_CONFIG", 2, "missing argument 'DIR'"),
    ):
        assert what in refused(type_("export", *args), code, status)
    assert not (tmp_path / "new").exists()
