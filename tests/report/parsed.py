"""A report's HTML as tables, data and scripts."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from cotune.report import document, shown


@dataclass
class Table:
    """A table as it is in the page.

    Attributes:
        when: the choices for which it is there.
        caption: of the table.
        heads: of the columns.
        rows: of (text, full value or None).
    """

    when: str = ""
    caption: str = ""
    heads: list[str] = field(default_factory=list)
    rows: list[list[tuple[str, float | None]]] = field(default_factory=list)

    def column(self, head: str) -> list[float | None]:
        """The full values of a column."""
        place = self.heads.index(head)
        return [row[place][1] for row in self.rows]

    def texts(self, head: str) -> list[str]:
        """What a column shows."""
        place = self.heads.index(head)
        return [row[place][0] for row in self.rows]


class Page(HTMLParser):
    """What a report's HTML holds."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.html = text
        self.tables: list[Table] = []
        self.scripts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.values: list[tuple[dict[str, str | None], float]] = []
        self.text = ""
        self._inside: list[str] = []
        self._when = ""
        self.feed(text)
        self.close()
        self.data: dict[str, Any] = json.loads(self.scripts[0])

    def table(self, caption: str, when: str | None = None) -> Table:
        """The one table of this caption, and of these choices."""
        found = [one for one in self.tables if caption in one.caption and (when is None or one.when == when)]
        assert len(found) == 1, [one.caption for one in self.tables]
        return found[0]

    def column(self, key: str) -> list[Any]:
        """A column of the data that plots bind."""
        return list(self.data["columns"][key])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note every element; open tables, cells and scripts."""
        given = dict(attrs)
        self.tags.append((tag, given))
        value = given.get("data-value")
        if tag == "div" and given.get("class") == "scroll":
            self._when = given.get("data-when") or ""
        if tag == "table":
            self.tables.append(Table(when=self._when))
        if tag == "script":
            self.scripts.append("")
        if tag == "tr" and "tbody" in self._inside:
            self.tables[-1].rows.append([])
        if tag in ("td", "th") and "tbody" in self._inside:
            self.tables[-1].rows[-1].append(("", None if value is None else float(value)))
        if tag == "th" and "thead" in self._inside:
            self.tables[-1].heads.append("")
        if tag not in ("meta", "input"):
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost element, which must be this one."""
        assert self._inside.pop() == tag

    def handle_data(self, data: str) -> None:
        """Text of a script, a caption, a cell, or of the page."""
        if "script" in self._inside:
            self.scripts[-1] += data
        elif "style" not in self._inside:
            self.text += data
        if "caption" in self._inside:
            self.tables[-1].caption += data
        if "thead" in self._inside:
            self.tables[-1].heads[-1] += data
        if "tbody" in self._inside and ("td" in self._inside or "th" in self._inside):
            text, value = self.tables[-1].rows[-1][-1]
            self.tables[-1].rows[-1][-1] = (text + data, value)


def page(*folders: Path) -> Page:
    """The report of these runs."""
    return Page(document(shown(folders)))
