"""Every command of the quick-start page does what the page says, in order, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "quickstart.md"
BLOCKS = re.findall(r"```(sh|python)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("new-user")


def type_in(folder: Path, kind: str, text: str) -> str:
    """What a new user sees after typing a block of the page."""
    commands = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"}
    words = ["sh", "-ec", text] if kind == "sh" else [sys.executable, "-c", text]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_page_works_block_by_block(number: int, folder: Path) -> None:
    kind, text = BLOCKS[number]
    said = type_in(folder, kind, text)
    for words in EXPECTED[number]:
        assert words in said


EXPECTED: tuple[tuple[str, ...], ...] = (
    (),
    ("task sft, from columns prompt, completion", "north", "lora-fedavg  causal", "messages in bytes"),
    ("round 4/4", "perplexity", "theta_sha256"),
    ("report.html", "folder my-adapter"),
    ("Bed 7 holds the otter. Who is in it?",),
    ("fedprox", "local", "can see", "report"),
)


def test_every_block_has_its_expectation_and_the_report_is_there(folder: Path) -> None:
    assert len(BLOCKS) == len(EXPECTED)
    (run,) = (folder / "runs").glob("lora-fedavg-*")
    assert (run / "report.html").stat().st_size > 10**6
    assert sorted(path.name for path in (run / "adapter").iterdir())[:2] == ["README.md", "adapter_config.json"]
