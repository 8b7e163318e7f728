"""What the doctor says about this machine."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest
from typed import typing

from cotune import resolve
from cotune.cli.doctor import extras, torch_warnings


def test_the_doctor_names_versions_devices_cache_extras_and_recipes(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "cotune" / "packages" / "thing-1.0-abc").mkdir(parents=True)
    said = typing(capfd)("doctor")
    assert (said.status, said.err) == (0, "")
    for text in (
        f"torch {importlib.metadata.version('torch')}",
        "devices: cpu",
        f"cache {tmp_path / 'cotune'} · thing-1.0 (0 bytes)",
        "extra dev",
        ", ".join(resolve.recipes()),
    ):
        assert text in said.out


def test_an_extra_that_is_not_installed_says_how(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [
        "numpy>=1",
        "nothing-of-this-name>=2; extra == 'rare'",
        "numpy>=1; sys_platform == 'linux' and extra == 'rare'",
    ]
    monkeypatch.setattr("cotune.cli.doctor.metadata.requires", lambda _name: asked)
    assert extras() == {"rare": ["nothing-of-this-name", "numpy"]}
    said = typing(capfd)("doctor")
    assert "extra rare · not installed: nothing-of-this-name · pip install 'cotune[rare]'" in said.out


@pytest.mark.parametrize(
    ("cuda_build", "gpus", "gpu_here", "warned"),
    [
        (None, 0, False, False),
        ("12.4", 1, True, False),
        ("12.4", 0, False, True),
        ("12.4", 0, True, True),
        (None, 0, True, True),
    ],
)
def test_a_torch_build_that_does_not_fit_the_machine_is_a_warning(
    cuda_build: str | None, gpus: int, gpu_here: bool, warned: bool
) -> None:
    assert bool(torch_warnings(cuda_build, gpus, gpu_here)) is warned
