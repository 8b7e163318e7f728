"""Every command of a documentation page does what the page says, in order, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
# Page -> what each of its blocks has to say.
EXPECTED: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "flower": (),  # its commands take several machines: tests/slow/test_two_sites.py
    "quickstart": (
        (),
        ("task sft, from columns prompt, completion", "north", "lora-fedavg  causal", "messages in bytes"),
        ("round 4/4", "perplexity", "theta_sha256"),
        ("report.html", "folder my-adapter"),
        ("Bed 7 holds the otter. Who is in it?",),
        ("fedprox", "local", "can see", "report"),
    ),
    "memory": (
        ("messages in bytes", "rule"),
        (),
        ("memory", "forgotten"),
        ("folder my-memory",),
        (
            "<MemorySession>",
            "8",
        ),
    ),
    "scale": (),  # its command is a bench, with tests of its own
}


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, text) of every block that is executed."""
    return re.findall(r"```(sh|python)\n(.*?)```", (DOCS / f"{page}.md").read_text("utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return {page: tmp_path_factory.mktemp("new-user") for page in EXPECTED}


def type_in(folder: Path, kind: str, text: str) -> str:
    """What a new user sees after typing a block of the page."""
    commands = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"}
    words = ["sh", "-ec", text] if kind == "sh" else [sys.executable, "-c", text]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.parametrize(("page", "number"), [(page, n) for page in EXPECTED for n in range(len(blocks(page)))])
def test_a_page_works_block_by_block(page: str, number: int, folders: Mapping[str, Path]) -> None:
    kind, text = blocks(page)[number]
    said = type_in(folders[page], kind, text)
    for words in EXPECTED[page][number]:
        assert words in said


def test_every_page_and_block_has_its_expectation_and_the_report_is_there(folders: Mapping[str, Path]) -> None:
    assert {path.stem for path in DOCS.glob("*.md")} == set(EXPECTED)
    assert all(len(blocks(page)) == len(expected) for page, expected in EXPECTED.items())
    (run,) = (folders["quickstart"] / "runs").glob("lora-fedavg-*")
    assert (run / "report.html").stat().st_size > 10**6
    assert sorted(path.name for path in (run / "adapter").iterdir())[:2] == ["README.md", "adapter_config.json"]
