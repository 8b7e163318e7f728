"""A report of one run or several: one HTML file, from the files of run folders alone; never torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cotune.report import folders
from cotune.report.document import document
from cotune.report.shown import shown
from cotune.store import write_atomic

__all__ = ["document", "shown", "write"]


def write(places: Sequence[Path], out: Path | None = None) -> Path:
    """Where the report of these runs was written.

    Args:
        places: run folders, or folders of them.
        out: the file, or the folder of a `report.html`; None for the one place, or the folder where all places meet.

    Raises:
        CotuneError: E_CKPT for a place without runs or with files that cannot be read, E_DISK when the report cannot be
            written.
    """
    text = document(shown(folders.runs(places)))
    path = folders.target(places, out)
    write_atomic(path, text.encode("utf-8", "replace"))
    return path
