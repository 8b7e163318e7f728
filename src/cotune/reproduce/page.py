"""A page of paragraphs and tables: printed, as Markdown and as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cotune.report.html import Html, joined, tag
from cotune.report.html import table as html_table
from cotune.store import Table

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}"
    ".scroll{overflow-x:auto;margin:1rem 0}table{border-collapse:collapse}"
    "caption{text-align:left;font-weight:600;padding:.3rem 0}"
    "td,th{padding:.2rem .7rem;border-bottom:1px solid #8884;text-align:right;white-space:nowrap}"
    "th[scope=row],.text{text-align:left}"
)


@dataclass(frozen=True)
class Titled:
    """A table under its caption."""

    caption: str
    table: Table


@dataclass(frozen=True)
class Page:
    """A title, and blocks from top to bottom: a paragraph, or a table."""

    title: str
    blocks: Sequence[str | Titled]

    def text(self) -> str:
        """For a terminal."""
        parts = [block if isinstance(block, str) else f"{block.caption}\n{block.table}" for block in self.blocks]
        return "\n\n".join([self.title, *parts])

    def markdown(self) -> str:
        """As Markdown."""
        parts = [block if isinstance(block, str) else _markdown(block) for block in self.blocks]
        return "\n\n".join([f"# {self.title}", *parts]) + "\n"

    def html(self) -> str:
        """As one file that loads nothing."""
        parts = [tag("p", block) if isinstance(block, str) else _html(block) for block in self.blocks]
        head = [tag("meta", charset="utf-8"), tag("title", self.title), tag("style", Html(_STYLE))]
        body = tag("body", tag("h1", self.title), *parts)
        return f"<!doctype html>\n{tag('html', tag('head', joined(head)), body, lang='en')}\n"


def _cells(row: Sequence[object]) -> list[str]:
    return ["–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value) for value in row]


def _markdown(block: Titled) -> str:
    table = block.table
    rows = [table.columns, [":---", *(["---:"] * (len(table.columns) - 1))], *map(_cells, table.rows)]
    lines = [f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in rows]
    return "\n".join([f"**{block.caption}**", "", *lines])


def _html(block: Titled) -> Html:
    return html_table(block.caption, block.table.columns, [_cells(row) for row in block.table.rows])
