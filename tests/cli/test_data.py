"""`cotune data show` says who holds what, and nothing of what the rows say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typed import refused, typing


def folders(root: Path) -> Path:
    """Three folders, a client each, with a secret in every row."""
    for client, rows in (("north", 10), ("south", 20), ("west", 5)):
        (root / client).mkdir()
        lines = [json.dumps({"text": f"the secret {i} of {client}", "label": i % 2}) for i in range(rows)]
        (root / client / "rows.jsonl").write_text("\n".join(lines))
    return root


def test_it_shows_each_clients_rows_and_labels_and_no_text(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    said = typing(capfd)("data", "show", str(folders(tmp_path)), "--set", "test=0", "--set", "held=0.2")
    assert said.status == 0
    assert "task classify, from columns text, label" in said.out
    assert [line.split()[:4] for line in said.out.splitlines() if line.startswith(("north", "south", "west"))] == [
        ["north", "8", "+", "2"],
        ["south", "16", "+", "4"],
        ["west", "4", "+", "1"],
    ]
    assert "0 5, 1 5" in said.out
    assert "secret" not in said.out


def test_the_division_can_be_tried_before_it_is_used(capfd: pytest.CaptureFixture[str]) -> None:
    partition = 'partition={kind = "dirichlet", clients = 3, alpha = 0.1}'
    said = typing(capfd)("data", "show", "synth:sentiment?clients=3&rows=90", "--set", partition)
    assert "partition kind=dirichlet clients=3 alpha=0.1" in said.out
    other = typing(capfd)("data", "show", "synth:sentiment?clients=3&rows=90", "--set", partition, "--seed", "5")
    assert other.out != said.out


@pytest.mark.parametrize(
    ("words", "code", "status"),
    [
        (("data", "shw"), "E_CONFIG", 2),
        (("data", "show", "./nothing"), "E_DATA", 3),
        (("data", "show", "synth:sentiment", "--set", "txet=x"), "E_CONFIG", 2),
    ],
)
def test_mistakes_are_one_line(
    words: tuple[str, ...], code: str, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    refused(typing(capfd)(*words), code, status)
