"""The report as one HTML file: pages, data, plotly and our script, and a policy under which nothing else can load."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Sequence
from importlib import metadata, resources
from pathlib import Path

from plotly.offline import get_plotlyjs

from cotune.report.html import Html, escape, joined, tag
from cotune.report.pages import PAGES
from cotune.report.pages.card import dot
from cotune.report.plot import Choice, Json, Page, Plot, css, label
from cotune.report.shown import Shown

SANS = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", sans-serif'
LISTED = 12  # runs under the title
_HALF = "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18Zm0 2v14a7 7 0 0 1 0-14Z"


def document(runs: Sequence[Shown]) -> str:
    """The whole file: the same for the same run folders."""
    pages = [page for make in PAGES if (page := make(runs)) is not None]
    return file(_title(runs), _under(runs), pages, "the files of the run folders")


def file(title: str, under: Html, pages: Sequence[Page], source: str) -> str:
    """Pages as one file that loads nothing.

    Args:
        title: of the file.
        under: what stands below it.
        pages: in the order of their tabs.
        source: what they were made from, in words.
    """
    scripts = [get_plotlyjs(), _asset("report.js")]
    head = joined(
        [
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", http_equiv="Content-Security-Policy", content=policy(scripts)),
            tag("title", f"{title} · cotune report"),
            tag("style", Html(_asset("report.css"))),
        ]
    )
    data = tag("script", Html(embedded(_data(pages))), type="application/json", id="cotune-data")
    code = [tag("script", Html(script)) for script in scripts]
    body = joined([_top(title, under), _tabs(pages), _main(pages), _foot(source), data, *code])
    return f"<!doctype html>\n{tag('html', tag('head', head), tag('body', body), lang='en')}\n"


def policy(scripts: Sequence[str]) -> str:
    """A content security policy: these scripts and no others, and no request to anywhere."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def embedded(value: object) -> str:
    """JSON that can stand in a script element: nothing in it ends the element or begins a comment."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _data(pages: Sequence[Page]) -> Json:
    """What the script works with: choices, columns, plots and the layout that all plots share."""
    plots = [block for page in pages for block in page.blocks if isinstance(block, Plot)]
    choices: dict[str, Choice] = {choice.name: choice for page in pages for choice in page.choices}
    choices |= {choice.name: choice for plot in plots for choice in plot.choices}
    return {
        "choices": {
            name: [{"value": o.value, "label": label(o.label, 60), "layout": dict(o.layout)} for o in choice.options]
            for name, choice in choices.items()
        },
        "columns": {key: list(values) for page in pages for key, values in page.columns.items()},
        "plots": {plot.id: plot.json() for plot in plots},
        "layout": _layout(),
    }


def _layout() -> Json:
    axis = {
        "gridcolor": css("grid"),
        "linecolor": css("line"),
        "zerolinecolor": css("line"),
        "automargin": True,
        "title": {"standoff": 12, "font": {"size": 13}},
    }
    return {
        "font": {"family": SANS, "size": 13, "color": css("muted")},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 52, "r": 16, "t": 14, "b": 48},
        "hoverlabel": {
            "bgcolor": css("surface"),
            "bordercolor": css("line"),
            "font": {"family": SANS, "color": css("ink")},
            "namelength": -1,
        },
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": css("muted"), "activecolor": css("ink")},
        "xaxis": {**axis, "zeroline": False},
        "yaxis": dict(axis),
        "yaxis2": dict(axis),
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1.02,
            "yanchor": "bottom",
            "font": {"color": css("ink")},
            "uirevision": "kept",
        },
    }


def _title(runs: Sequence[Shown]) -> str:
    """The name of one run; of several, that of the folder they are in, and how many."""
    if len(runs) == 1:
        return runs[0].label
    place = Path(os.path.commonpath([run.folder for run in runs])).name
    return f"{place}: {len(runs)} runs" if place else f"{len(runs)} runs"


def _under(runs: Sequence[Shown]) -> Html:
    """The folder of one run; of several, the first of their names."""
    names = [tag("li", dot(run), run.label) for run in runs[:LISTED]]
    more = tag("li", f"and {len(runs) - LISTED} more") if len(runs) > LISTED else None
    return tag("p", runs[0].folder.name) if len(runs) == 1 else tag("ul", *names, more, aria_label="Runs")


def _top(title: str, under: Html) -> Html:
    icon = tag("svg", tag("path", d=_HALF, fill="currentColor"), viewBox="0 0 24 24", aria_hidden="true")
    return tag(
        "header",
        tag("p", tag("b", "cotune"), " report", class_="brand"),
        tag("button", icon, id="theme", type="button", aria_label="Switch colours"),
        tag("h1", title),
        tag("div", under, class_="under"),
        class_="top",
    )


def _tabs(pages: Sequence[Page]) -> Html:
    tabs = (
        tag(
            "a",
            page.title,
            role="tab",
            id=f"tab-{page.id}",
            href=f"#{page.id}",
            aria_controls=f"page-{page.id}",
            aria_selected="true" if i == 0 else "false",
        )
        for i, page in enumerate(pages)
    )
    return tag("nav", tag("div", *tabs, role="tablist", aria_label="Pages"))


def _main(pages: Sequence[Page]) -> Html:
    silent = tag("p", "Plots need JavaScript; all numbers are in the tables below.", class_="empty")
    panels = (
        tag(
            "section",
            tag("h2", page.title, class_="page-title"),
            page.html(),
            id=f"page-{page.id}",
            class_="panel",
            role="tabpanel",
            aria_labelledby=f"tab-{page.id}",
        )
        for page in pages
    )
    return tag("main", tag("noscript", silent), *panels)


def _foot(source: str) -> Html:
    said = f"Written by cotune {metadata.version('cotune')} from {source}; this page loads nothing."
    return tag("footer", escape(said))


def _asset(name: str) -> str:
    return resources.files("cotune.report").joinpath("assets", name).read_text("utf-8")
