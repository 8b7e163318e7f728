"""HTML as values: whatever is not HTML already is escaped, so no name that a run holds can become markup."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MOST_CELLS = 50_000  # of one table; a longer one stops there and says so
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def escape(value: object) -> Html:
    """`value` as text in an element or an attribute; what cannot be shown, or turns text around, is replaced."""
    return Html(html.escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(value))))


def joined(parts: Iterable[object]) -> Html:
    """The parts one after the other; None is nothing."""
    return Html("".join(part if isinstance(part, Html) else escape(part) for part in parts if part is not None))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """`<name attributes>children</name>`.

    Args:
        name: of the element.
        children: Html as it is, anything else as text, None not at all.
        attributes: `class_` is `class`, `data_value` is `data-value`; True is the bare name, None and False nothing.
    """
    written = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        plain = key.rstrip("_").replace("_", "-")
        written.append(plain if value is True else f'{plain}="{escape(value)}"')
    opened = Html(f"<{' '.join(written)}>")
    return opened if name in ("input", "meta") else Html(f"{opened}{joined(children)}</{name}>")


def exact(value: float) -> str:
    """A number with all its digits, as JavaScript writes it."""
    return json.dumps(value)


def number(value: float) -> str:
    """A number for people: integers with separators, else four decimals, or four digits where those say nothing."""
    if isinstance(value, int):
        text = f"{value:,}"
    elif math.isfinite(value):
        decimals = value == 0 or 1e-3 <= abs(value) < 10
        text = f"{value:.4f}" if decimals else f"{value:,.0f}" if value.is_integer() else f"{value:.4g}"
    else:
        text = "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    return text.replace("-", "−")


def scaled(value: float, unit: str = "") -> str:
    """`31.8 kB`: three significant digits and an SI prefix."""
    for prefix in ("", "k", "M", "G", "T", "P", "E"):
        if abs(value) < 999.5 or prefix == "E":
            break
        value /= 1000
    return f"{value:.3g} {prefix}{unit}".strip()


def duration(seconds: float) -> str:
    """`2.9 s`, `3 min 20 s`, `5 h 2 min`."""
    if seconds < 60 or not math.isfinite(seconds):
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def several(count: int, one: str, more: str) -> str:
    """`1 row has`, `2 rows have`."""
    return f"{count:,} {one if count == 1 else more}"


@dataclass(frozen=True)
class Cell:
    """A number that is shown in another way than others are.

    Attributes:
        value: with all its digits.
        shown: for people.
    """

    value: float
    shown: object


def cell(value: object, head: bool = False) -> Html:
    """One cell of a table; a number keeps all its digits in `data-value`."""
    match value:
        case None:
            return tag("td", "–", class_="none")
        case bool():
            return tag("td", "yes" if value else "no", class_="text")
        case int() | float():
            return tag("td", number(value), data_value=exact(value))
        case Cell():
            return tag("td", value.shown, data_value=exact(value.value))
        case _:
            return tag("th", value, scope="row") if head else tag("td", value, class_="text")


def _is_text(rows: Sequence[Sequence[object]], column: int) -> bool:
    """Whether a column holds texts, by its first value that is not None."""
    value = next((row[column] for row in rows if row[column] is not None), None)
    return isinstance(value, str | bool)


def table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[object]], **attributes: object) -> Html:
    """A table in a frame that scrolls by itself, so that a wide one never moves the page.

    Args:
        caption: what the table holds.
        columns: headings.
        rows: numbers, texts, Html or None; the first text of a row is its heading.
        attributes: of the frame.
    """
    most = max(1, MOST_CELLS // max(len(columns), 1))
    body = [
        tag("tr", *(cell(value, head=i == 0) for i, value in enumerate(row))) for row in rows[: min(most, len(rows))]
    ]
    left = len(rows) - len(body)
    rest = tag("p", f"{left:,} more rows are in the run's files.", class_="note") if left else None
    framed = tag(
        "table",
        tag("caption", tag("span", caption)),
        tag(
            "thead",
            tag(
                "tr",
                *(
                    tag("th", column, scope="col", class_="text" if _is_text(rows, i) else None)
                    for i, column in enumerate(columns)
                ),
            ),
        ),
        tag("tbody", *body),
    )
    return tag(
        "div",
        framed,
        rest,
        **{"class_": "scroll", "role": "region", "aria_label": caption, "tabindex": 0, **attributes},
    )


def facts(pairs: Iterable[tuple[str, object]], **attributes: object) -> Html:
    """(what, value) pairs as a list of descriptions; None is left out."""
    rows = (tag("div", tag("dt", what), tag("dd", value)) for what, value in pairs if value is not None)
    return tag("dl", *rows, **attributes)


def titled(name: str) -> str:
    """`change_norm` as `Change norm`."""
    words = name.replace("_", " ").strip()
    return words[:1].upper() + words[1:]
