"""Text that nobody trains on: what a model loses on it is what it forgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cotune.core.events import Say, silent
from cotune.core.seeds import Seeds
from cotune.task.partition import Iid
from cotune.task.text import Text


@dataclass(frozen=True)
class General:
    """Windows of general text.

    Attributes:
        task: how they are scored.
        examples: as that task encodes them.
    """

    task: Text
    examples: Sequence[Mapping[str, Any]]


def general(data: str, rows: int, seeds: Seeds, *, tokenizer: Any, limit: int, say: Say = silent) -> General:
    """At most `rows` windows of as many documents, drawn by the data seed; of more windows, evenly spaced ones.

    Args:
        data: a reference with a column `text`.
        rows: the most documents, and the most windows.
        seeds: of the experiment.
        tokenizer: of the model.
        limit: the most tokens of a window.
        say: is told before a download.

    Raises:
        CotuneError: E_DATA as loading a task does.
    """
    task = Text(data=data, partition=Iid(clients=1), test=0, held=0.0, limit=max(rows, 2))
    (split,) = task.load(seeds, say).clients.values()
    windows = task.encode(split.train, tokenizer, limit).examples
    count = min(rows, len(windows))
    return General(task, [windows[i * len(windows) // count] for i in range(count)])
