"""`cotune report`: which runs it takes, and where it writes."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import pytest
from typed import Type, refused, typing
from written import write_run

from cotune.report.folders import runs, target


@pytest.fixture
def type_(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Type:
    monkeypatch.chdir(tmp_path)
    return typing(capfd)


def test_one_run_has_its_report_inside(type_: Type) -> None:
    write_run(Path("runs/toy"))
    assert type_("report", "runs/toy") == (0, "runs/toy/report.html\n", "")
    assert Path("runs/toy/report.html").read_text().startswith("<!doctype html>")


def test_a_folder_of_runs_has_one_report_of_all(type_: Type) -> None:
    for name in ("a", "b", "deeper/c"):
        write_run(Path("runs") / name, name=name[-1])
    assert type_("report", "runs") == (0, "runs/report.html\n", "")
    text = Path("runs/report.html").read_text()
    assert "runs: 3 runs" in text
    assert not list(Path("runs").glob("*/report.html"))


def test_several_places_meet_in_the_folder_above(type_: Type) -> None:
    for name in ("a", "b", "c"):
        write_run(Path("runs") / name, name=name)
    assert type_("report", "runs/a", "runs/c").status == 0
    assert "runs: 2 runs" in Path("runs/report.html").read_text()


def test_out_names_a_file_or_a_folder(type_: Type) -> None:
    write_run(Path("toy"))
    assert type_("report", "toy", "--out", "elsewhere/page.html").status == 0
    assert Path("elsewhere/page.html").exists()
    assert type_("report", "toy", "--out", "elsewhere").out == "elsewhere/report.html\n"


def test_a_place_without_runs_is_one_line(type_: Type) -> None:
    Path("empty").mkdir()
    line = refused(type_("report", "empty"), "E_CKPT", 4)
    assert "no run is here · empty" in line
    refused(type_("report", "nowhere"), "E_CKPT", 4)
    refused(type_("report"), "E_CONFIG", 2)


def test_open_shows_it_in_the_browser(type_: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    write_run(Path("toy"))
    assert type_("report", "toy", "--open").status == 0
    assert opened == [Path("toy/report.html").resolve().as_uri()]


def test_a_run_is_taken_once_and_in_order(tmp_path: Path) -> None:
    b, a = write_run(tmp_path / "b"), write_run(tmp_path / "a")
    assert runs([b, tmp_path]) == [b, a]
    assert target([b, a], None) == tmp_path / "report.html"


def test_only_the_report_is_written(tmp_path: Path, type_: Type) -> None:
    folder = write_run(tmp_path / "toy")
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert type_("report", str(folder)).status == 0
    after = {path: path.stat().st_mtime_ns for path in folder.iterdir() if path.name != "report.html"}
    assert after == before
