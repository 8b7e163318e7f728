"""What a page is made of: text, tables, and plots whose traces name columns that a reader's choices pick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from cotune.core.errors import one_line
from cotune.report.html import Html, escape, joined, tag

Json = dict[str, Any]
Columns = dict[str, Sequence[Any]]
RADIOS = 4  # more options than these are a list to pull down


@dataclass(frozen=True)
class Option:
    """One of the values that a reader can choose.

    Attributes:
        value: what stands for the choice's name in the keys of columns.
        label: for people.
        layout: what it changes in a plot's layout, by dotted path.
    """

    value: str
    label: str
    layout: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """What a reader can switch; the first option is the one that a page opens with."""

    name: str
    label: str
    options: Sequence[Option]

    def html(self, place: str) -> Html | None:
        """Its control; None when there is nothing to choose."""
        if len(self.options) < 2:
            return None
        if len(self.options) > RADIOS or self.name == "run":
            options = (tag("option", option.label, value=option.value) for option in self.options)
            control = tag("select", *options, data_choice=self.name, autocomplete="off")
            return tag("label", tag("span", self.label), control, class_="choice")
        radios = []
        for i, option in enumerate(self.options):
            radio = tag(
                "input",
                type="radio",
                name=f"{place}-{self.name}",
                value=option.value,
                data_choice=self.name,
                checked=i == 0,
                autocomplete="off",
            )
            radios.append(tag("label", radio, tag("span", option.label)))
        return tag("fieldset", tag("legend", self.label), tag("div", *radios), class_="choice")


@dataclass(frozen=True)
class Plot:
    """A figure, or one for each value of a choice, with the tables of what it shows.

    Attributes:
        id: unique in the report.
        title: what is shown.
        says: how to read it, in a sentence or two.
        figures: value of the choice `by` -> figure; '' -> the only one. A figure is plotly's, and its traces may have
            `bind`: {attribute: column, with {choice} in its key}, `points`: leave out rows without x or y, and
            `interval`: the columns of whiskers' ends, with `alone`: only when there is a single point, and `across`:
            columns of levels, each drawn once from side to side; `when`: the choices for which a trace is there.
        by: the choice that picks the figure, or ''.
        choices: the controls above it.
        follows: choices whose controls stand elsewhere.
        tables: of the same numbers.
    """

    id: str
    title: str
    says: str
    figures: Mapping[str, Json]
    by: str = ""
    choices: Sequence[Choice] = ()
    follows: Sequence[Choice] = ()
    tables: Sequence[Html] = ()

    def html(self) -> Html:
        """The plot's place, its controls above and its data below."""
        controls = [control for choice in self.choices if (control := choice.html(self.id)) is not None]
        drawn = tag("div", class_="plot", id=f"plot-{self.id}", role="img", aria_label=f"{self.title}. {self.says}")
        data = tag("details", tag("summary", "Data"), *self.tables, class_="data") if self.tables else None
        return tag(
            "figure",
            tag("figcaption", tag("h3", self.title), tag("p", self.says)),
            tag("div", *controls, class_="controls") if controls else None,
            drawn,
            data,
        )

    def json(self) -> Json:
        """What the script draws."""
        names = [choice.name for choice in (*self.choices, *self.follows)]
        return {"by": self.by, "choices": names, "figures": dict(self.figures)}


@dataclass(frozen=True)
class Page:
    """One tab.

    Attributes:
        id: its fragment in the address.
        title: on the tab.
        blocks: from top to bottom.
        columns: what its plots bind.
        choices: controls at the top, for all its plots.
    """

    id: str
    title: str
    blocks: Sequence[Html | Plot]
    columns: Columns = field(default_factory=dict)
    choices: Sequence[Choice] = ()

    def html(self) -> Html:
        """The page's content."""
        controls = [control for choice in self.choices if (control := choice.html(self.id)) is not None]
        top = tag("div", *controls, class_="controls page") if controls else None
        return joined([top, *(block.html() if isinstance(block, Plot) else block for block in self.blocks)])


def chosen(choice: str) -> Json:
    """The label of what is chosen, as a text in a layout."""
    return {"choice": choice}


def css(name: str, alpha: float | None = None) -> Json:
    """A colour that follows the page's theme: a CSS variable, and how opaque it is."""
    return {"css": f"--{name}"} if alpha is None else {"css": f"--{name}", "alpha": alpha}


def label(text: str, limit: int = 24) -> str:
    """`text` as plotly shows it: one line, shortened in its middle, with no markup and no formula that it reads."""
    flat = one_line(text)
    if len(flat) > limit:
        kept = limit - 1
        flat = f"{flat[: kept - kept // 2]}…{flat[len(flat) - kept // 2 :]}"
    return str(escape(flat)).replace("&quot;", '"').replace("&#x27;", "'").replace("$", "&#36;")


def labels(texts: Sequence[str]) -> list[str]:
    """A label for each text, all different: categories of one name would fall together."""
    unique: dict[str, None] = {}
    for text in texts:
        short, turn = label(text), 1
        while (name := short if turn == 1 else f"{short} ({turn})") in unique:
            turn += 1
        unique[name] = None
    return list(unique)


def height(rows: int, each: int = 24, least: int = 200, most: int = 900) -> int:
    """Pixels for a plot with a line for each of `rows`."""
    return min(max(rows * each + 110, least), most)


def when(**choices: str) -> str:
    """The `data-when` of an element that is there only for these choices."""
    return urlencode(choices)
