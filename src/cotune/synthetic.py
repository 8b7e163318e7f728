"""What an experiment on synthetic data runs on where nobody names a backbone: a small one that comes with cotune."""

from __future__ import annotations

from collections.abc import Mapping

from cotune.core.contracts import Task

BACKBONES: Mapping[str, str] = {"causal": "builtin:tiny-llama", "classification": "builtin:tiny-llama"}  # by head
OF_A_TASK: Mapping[str, str] = {"recall": "builtin:tiny-recall"}  # by kind: its words are tokens of this one alone
TOKENS = 256  # the most that tiny-llama reads
# What a comparison of rows has by default on it, so that rows learn in minutes; recipes' learning rates are for models
# that are larger by far, and forward passes alone diverge at ten times theirs.
ROUNDS, COHORT, STEPS, FASTER = 50, 2, 5, 3.0
_MARK, _OWN = "synth:", "synthetic"  # of a reference, and of filler that a task draws itself


def is_synthetic(task: Task) -> bool:
    """Whether every text that a task is trained and scored on is generated: `synth:` data, or rows that it draws."""
    named = [value for name in ("data", "filler") if isinstance(value := getattr(task, name, None), str)]
    return bool(named or task.kind in OF_A_TASK) and all(name.startswith(_MARK) or name == _OWN for name in named)


def backbone(task: Task) -> str | None:
    """The reference of a backbone that fits a synthetic task; None for real data, or where none fits."""
    if not is_synthetic(task) or max((*getattr(task, "lengths", ()), *getattr(task, "long", ())), default=0) > TOKENS:
        return None
    return OF_A_TASK.get(task.kind, BACKBONES.get(task.head))
