"""What the slow tests share: an experiment of seconds as a project, and the hash that every engine must come to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tiny import experiment

import cotune as ct
from cotune.cli.toml import dump
from cotune.flower.scaffold import write

CLIENTS = 2
DATA = f"synth:sentiment?clients={CLIENTS}&rows=48"


def one(**sets: Any) -> ct.Experiment:
    """Control variates, so that clients have private state; nothing is asked of them but to train."""
    given = {"task__data": DATA, "federation": {"rounds": 3}, "evaluation__which": "global"}
    return experiment("scaffold", **{**given, **sets})


def project(folder: Path, experiment_: ct.Experiment) -> Path:
    """The experiment as a project of Flower's."""
    write(folder, dump(experiment_.resolved()))
    return folder


def config(out: Path) -> Mapping[str, str | int]:
    """The run config of a run on all nodes."""
    return {"nodes": CLIENTS, "wait": 240, "out": str(out)}
