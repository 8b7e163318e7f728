"""Who would hold what, before there is a run: the same bars and tables as in the report of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cotune.report import series
from cotune.report.document import file
from cotune.report.html import tag
from cotune.report.pages.holdings import holdings
from cotune.report.plot import Columns, Page
from cotune.report.shown import Shown


def division(title: str, about: Mapping[str, Any], said: Sequence[str]) -> str:
    """The whole file.

    Args:
        title: the task, as it was named.
        about: `data`, `clients` and `labels`, as experiment.json has them.
        said: lines about the data.
    """
    data = Shown("r0", title, "run-0", "solid", "circle", Path(), "planned", None, None, about, (), ())
    columns: Columns = {}
    which = series.which([data])
    notes = tag("ul", *(tag("li", line) for line in said), class_="notes")
    blocks = [notes, *holdings([data], which, columns)]
    page = Page("data", "Who holds what", blocks, columns, (which,))
    return file(title, tag("p", "Nothing has been trained."), [page], "the data")
