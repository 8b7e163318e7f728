"""Which folders are runs, and where their report goes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from cotune.core.errors import Code, CotuneError

STATUS = "status.json"
REPORT = "report.html"


def runs(places: Sequence[Path]) -> list[Path]:
    """The run folders among `places` and below them, each once: in the given order, and by name in each place.

    Raises:
        CotuneError: E_CKPT for a place without a run.
    """
    found: dict[Path, None] = {}
    for place in places:
        here = [place] if (place / STATUS).is_file() else sorted(path.parent for path in place.rglob(STATUS))
        if not here:
            raise CotuneError(
                Code.CHECKPOINT, "no run is here", where=str(place), fix="name a run's folder, or a folder of them"
            )
        found |= dict.fromkeys(path.resolve() for path in here)
    return list(found)


def target(places: Sequence[Path], out: Path | None) -> Path:
    """Where the report goes: `out`, else into the one place that was named, else where the named ones meet."""
    if out is not None:
        return out / REPORT if out.is_dir() else out
    if len(places) == 1:
        return places[0] / REPORT
    return Path(os.path.commonpath([place.resolve() for place in places])) / REPORT
