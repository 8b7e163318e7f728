"""`cotune report`: runs as one page that opens anywhere."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from pathlib import Path

from cotune.report import write


def report(places: Sequence[Path], out: Path | None, *, show: bool) -> None:
    """Write the report, print where it is, and open it when asked to.

    Args:
        places: run folders, or folders of them.
        out: where to; None for beside the runs.
        show: open it in the browser.

    Raises:
        CotuneError: whatever reading the runs and writing the file raise.
    """
    path = write(places, out)
    print(path, flush=True)
    if show:
        webbrowser.open(path.resolve().as_uri())
