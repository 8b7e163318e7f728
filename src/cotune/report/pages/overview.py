"""Overview: all runs in one table, then a card for each."""

from __future__ import annotations

from collections.abc import Sequence

from cotune.core.protection import NOT_PROTECTED
from cotune.report import series
from cotune.report.html import Cell, Html, duration, joined, number, scaled, table, tag
from cotune.report.pages.card import card, dot
from cotune.report.plot import Page
from cotune.report.shown import Shown


def overview(runs: Sequence[Shown]) -> Page:
    """The table of several runs, the cards, and what is not protected."""
    blocks: list[Html] = []
    if len(runs) > 1:
        blocks.append(_glance(runs))
    blocks.append(tag("div", *(card(run) for run in runs), class_="cards"))
    blocks.append(
        tag(
            "section",
            tag("h3", "What is not protected"),
            tag("ul", *(tag("li", f"{line[:1].upper()}{line[1:]}.") for line in NOT_PROTECTED)),
            class_="protection",
        )
    )
    return Page("overview", "Overview", blocks)


def _glance(runs: Sequence[Shown]) -> Html:
    """A row for each run: what it reached, with its interval, and what it cost."""
    names = series.global_metrics(runs)
    drops = [name for name in series.client_metrics(runs) if series.is_share(name)]
    totals = {"uplink_bytes": ("Up", "B"), "downlink_bytes": ("Down", "B"), "flops": ("FLOPs", "")}
    totals = {field: text for field, text in totals.items() if any(run.total(field) for run in runs)}
    heads = ["Run", "Status", "Rounds", *map(series.title, names), *(_drop_head(name, drops) for name in drops)]
    heads += [*(text for text, _ in totals.values()), "Peak", "Time"]
    rows: list[list[object]] = []
    for run in runs:
        row: list[object] = [joined([dot(run), run.label]), run.status, len(run.rounds)]
        row += [_scored(run, name) for name in names]
        row += [_last_drop(run, name) for name in drops]
        row += [Cell(run.total(field), scaled(run.total(field), unit)) for field, (_, unit) in totals.items()]
        row += [Cell(run.peak, scaled(run.peak, "B")), Cell(run.total("seconds"), duration(run.total("seconds")))]
        rows.append(row)
    glance = table("All runs as they were last scored, with 95 % intervals", heads, rows, id="table-runs")
    return tag("section", tag("h3", "At a glance"), glance)


def _scored(run: Shown, metric: str) -> Cell | None:
    """The last value, over its interval."""
    found = series.last_scored(run, metric)
    if found is None:
        return None
    return Cell(found[1].value, joined([number(found[1].value), tag("small", series.interval(found[1]))]))


def _drop_head(name: str, all_of_them: Sequence[str]) -> str:
    return series.title(series.DROP.format(name)) if len(all_of_them) > 1 else "Drop (points)"


def _last_drop(run: Shown, metric: str) -> float | None:
    value = series.by_round([run]).get(series.DROP.format(metric))
    drops = [drop for record in run.rounds if value and (drop := value(record)) is not None]
    return drops[-1] if drops else None
