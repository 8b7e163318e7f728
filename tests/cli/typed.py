"""What a user types, and what comes back: in this process, or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from cotune.cli import main

BACKBONE = "random:bert?layers=1&hidden=16"
TASK = "synth:sentiment?clients=4&rows=120"
ON = ("--backbone", BACKBONE, "--task", TASK)


class Said(NamedTuple):
    """How a command ended, and what it wrote."""

    status: int
    out: str
    err: str


Type = Callable[..., Said]


def typing(capfd: pytest.CaptureFixture[str]) -> Type:
    """A function that carries out a command line in this process."""

    def type_(*args: str) -> Said:
        capfd.readouterr()
        status = main(args)
        return Said(status, *capfd.readouterr())

    return type_


def cotune(*args: str, **environment: str) -> subprocess.Popen[str]:
    """A command line in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", "import sys; from cotune.cli import main; sys.exit(main())", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def refused(said: Said, code: str, status: int) -> str:
    """The one line of an error, after checking that there is nothing else."""
    lines = said.err.splitlines()
    assert len(lines) == 1, said.err
    assert lines[0].startswith(f"error[{code}] ")
    assert said.status == status
    assert "Traceback" not in said.err
    return lines[0]
