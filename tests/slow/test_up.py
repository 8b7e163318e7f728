"""`cotune flower up`, as it is typed: interrupted it leaves nothing behind, and repeated it comes to the same hash."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from federated import one, project

from cotune import experiment as experiments
from cotune.flower.programs import end_families, members
from cotune.store import Run

# A shell makes what it runs in the background ignore interrupts, and what that starts in turn.
TYPED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from cotune.cli import main
sys.exit(main())
"""


def typed(*words: str, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen([sys.executable, "-c", TYPED, "flower", *words], stdout=out, stderr=subprocess.STDOUT)


def until(word: str, log: Path, process: subprocess.Popen[bytes], seconds: float = 240.0) -> None:
    ends = time.monotonic() + seconds
    while word not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < ends, log.read_text()
        time.sleep(0.1)


def test_up_is_interrupted_leaves_nothing_and_goes_on_to_the_hash_of_one_process(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    root = tmp_path_factory.mktemp("u")  # short: a socket's path is
    folder = project(root / "p", one())
    tag, log = str((folder / ".flower").resolve()), root / "up.log"
    try:
        first = typed("up", str(folder), "--workers", log=log)
        until("round 1 ·", log, first)
        first.send_signal(signal.SIGINT)
        assert first.wait(60) == 128 + signal.SIGINT
        assert log.read_text().endswith("everything has been ended; repeat the command to go on\n")
        assert members([tag]) == []
        run = Run(one().folder(folder / "runs"))
        played = len(run.rounds)

        second = typed("up", str(folder), "--workers", log=log)
        until("SuperLink on", log, second)
        os.kill(second.pid, signal.SIGKILL)  # nobody is left to tidy up
        second.wait()
        assert members([tag])

        third = typed("up", str(folder), "--workers", log=log)
        assert third.wait(400) == 0, log.read_text()
        said = log.read_text()
        assert "of an earlier deployment that was killed" in said
        assert played == len(run.rounds) or "resumed after round" in said
        expected = experiments.run(one(), root / "here").theta_sha256
        assert said.endswith(f"theta_sha256 {expected}\nfolder {run.folder.resolve()}\n")
        assert members([tag]) == []
    finally:
        end_families([tag], grace=0.0)
