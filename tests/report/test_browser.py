"""A report of real runs as a reader meets it: in Chromium, from a file, with every tab, list and button used."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from remembered import probed, remember, with_memory
from written import HOSTILE, write_run

from cotune.report import write
from cotune.store import Run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
# `--headless`, and a profile of its own in a fresh folder, are what Playwright starts a browser with.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NEEDED = "browser tests need Chromium (Debian: apt-get install chromium) and playwright (pip install playwright)"
PAGES = ("overview", "convergence", "clients", "cost")
REAL = ("overview", "convergence", "clients", "subspace", "cost")  # of the two real runs, which train factors
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = next((found for name in ("chromium", "chromium-browser") if (found := shutil.which(name))), None)
    if chromium is None or importlib.util.find_spec("playwright") is None:
        if os.environ.get("CI") == "true":
            pytest.fail(NEEDED, pytrace=False)
        pytest.skip(NEEDED)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield started
        started.close()


@contextmanager
def opened(browser: Browser, path: Path, **options: Any) -> Iterator[Page]:
    """The report in a window of its own, which must neither ask the network for anything nor complain."""
    context = browser.new_context(**options)
    asked: list[str] = []
    said: list[str] = []
    context.route(re.compile("^(https?|wss?):"), lambda route: route.abort())
    page = context.new_page()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    yield page
    assert ([url for url in asked if not url.startswith("file:")], said) == ([], [])
    context.close()


@pytest.fixture(scope="module")
def report(real: Path) -> Path:
    return write([real])


def visit(page: Page, name: str) -> None:
    page.click(f"#tab-{name}")
    assert page.is_visible(f"#page-{name}")
    assert page.locator("[role=tabpanel]:visible").count() == 1


def check_plots(page: Page, name: str) -> None:
    """Every plot of a page is drawn, or says that there is nothing to draw."""
    plots = page.evaluate(
        """(name) => [...document.querySelectorAll(`#page-${name} .plot`)].map((plot) => {
            const svg = plot.querySelector("svg.main-svg")?.getBoundingClientRect();
            const marks = plot.querySelectorAll(".point, .js-line, .hm image, .fills path").length;
            return [plot.id, svg?.width ?? 0, svg?.height ?? 0, marks, plot.dataset.empty === "true", plot.textContent];
        })""",
        name,
    )
    for id_, width, high, marks, empty, text in plots:
        assert width > 250, id_
        assert high >= 150, id_
        assert ("Nothing was measured here." in text) if empty else marks > 0, id_


def flip(page: Page, name: str) -> int:
    """Every option of every control of a page, one after the other; how many there were."""
    count = 0
    for control in page.locator(f"#page-{name} select").all():
        for value in control.evaluate("(list) => [...list.options].map((option) => option.value)"):
            control.select_option(value)
            check_plots(page, name)
            count += 1
    for radio in page.locator(f"#page-{name} input[type=radio]").all():
        radio.check(force=True)
        check_plots(page, name)
        count += 1
    return count


def test_every_page_and_every_choice_is_drawn(browser: Browser, report: Path) -> None:
    with opened(browser, report, viewport={"width": 1280, "height": 900}) as page:
        flipped = {}
        for name in REAL:
            visit(page, name)
            check_plots(page, name)
            flipped[name] = flip(page, name)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert flipped["overview"] == 0
        assert all(flipped[name] > 5 for name in REAL[1:])


def test_what_is_drawn_and_what_tables_show_are_the_records(browser: Browser, report: Path, real: Path) -> None:
    runs = [Run(path.parent) for path in sorted(real.glob("*/status.json"))]
    with opened(browser, report) as page:
        visit(page, "convergence")
        page.select_option("[data-choice=metric]", "loss")
        page.check("[data-choice=x][value=bytes]", force=True)
        lines = page.evaluate(
            """() => document.getElementById("plot-curves").data.filter((trace) => trace.name !== "chance"
                && trace.showlegend !== false).map((trace) => [trace.x, trace.y])"""
        )
        for (xs, ys), run in zip(lines, runs, strict=True):
            assert ys == [record.global_metrics["loss"].value for record in run.rounds]
            assert xs[-1] == sum(record.uplink_bytes + record.downlink_bytes for record in run.rounds)
        page.click("#page-convergence figure:has(#plot-curves) summary")
        values = page.evaluate(
            """() => [...document.querySelectorAll("#table-curves tbody tr")].map((row) =>
                [...row.querySelectorAll("[data-value]")].map((cell) => JSON.parse(cell.dataset.value)))"""
        )
        records = [record for run in runs for record in run.rounds]
        assert [row[0] for row in values] == [record.round for record in records]
        assert [row[4] for row in values] == [record.global_metrics["accuracy"].value for record in records]
        visit(page, "cost")
        checked = page.locator("#table-check tbody tr").all_inner_texts()
        assert len(checked) == 3 * len(runs)
        assert all("equal in every round" in row for row in checked)


def test_tables_follow_the_choices(browser: Browser, report: Path) -> None:
    with opened(browser, report) as page:
        visit(page, "clients")
        page.click("figure:has(#plot-map) summary")
        shown = page.locator("figure:has(#plot-map) table:visible")
        assert shown.count() == 1
        page.select_option("#page-clients [data-choice=run]", "r1")
        assert shown.count() == 1
        assert "scaffold" in shown.inner_text()
        visit(page, "cost")
        assert page.input_value("#page-cost select[data-choice=run]") == "r1"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_never_scrolls_sideways(browser: Browser, report: Path, scheme: str) -> None:
    with opened(browser, report, color_scheme=scheme, **PHONE) as page:
        for name in REAL:
            visit(page, name)
            check_plots(page, name)
            for summary in page.locator(f"#page-{name} summary").all():
                summary.click()
            page.evaluate("scrollTo(1000, 0)")
            widths = page.evaluate("[document.documentElement.scrollWidth, document.body.scrollWidth, scrollX]")
            assert widths == [390, 390, 0]
            small = page.evaluate(
                """(name) => [...document.querySelectorAll(`#page-${name} :is(select, .choice label)`)]
                    .map((one) => one.getBoundingClientRect()).filter(({ height }) => height < 36).length""",
                name,
            )
            assert small == 0


def test_dark_and_light_are_the_systems_until_they_are_switched(browser: Browser, report: Path) -> None:
    def light(page: Page) -> list[float]:
        """How light the page, a plot's text and its first line are, from 0 to 255."""
        colours = page.evaluate(
            """() => [getComputedStyle(document.body).backgroundColor,
                document.getElementById("plot-curves").layout.font.color]"""
        )
        return [sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 3 for colour in colours]

    with opened(browser, report, color_scheme="dark") as page:
        visit(page, "convergence")
        ground, text = light(page)
        assert ground < 40
        assert text > 140
        page.click("#theme")
        ground, text = light(page)
        assert ground > 230
        assert text < 120
        page.reload()
        visit(page, "convergence")
        assert light(page)[0] > 230
        page.emulate_media(color_scheme="light")
        page.click("#theme")
        assert light(page)[0] < 40


def test_tabs_are_reached_by_keys_and_by_address(browser: Browser, report: Path) -> None:
    with opened(browser, report) as page:
        page.focus("#tab-overview")
        page.keyboard.press("ArrowRight")
        assert page.is_visible("#page-convergence")
        page.keyboard.press("End")
        assert page.evaluate("document.activeElement.id") == "tab-cost"
        page.keyboard.press("ArrowRight")
        assert page.is_visible("#page-overview")
        assert page.locator("[role=tab][tabindex='0']").count() == 1
        page.goto(f"{report.as_uri()}#clients")
        assert page.is_visible("#page-clients")


def test_hostile_names_and_broken_runs_do_no_harm(browser: Browser, tmp_path: Path) -> None:
    nothing: dict[str, Any] = {"global_metrics": {}, "client_metrics": {}}
    write_run(tmp_path / "hostile", name="</script><script>window.broken=1</script>", clients=HOSTILE)
    write_run(tmp_path / "begun", name="begun", played=0, status={"status": "running", "code": None, "error": None})
    write_run(tmp_path / "bare", name="bare", change=lambda one: one.model_copy(update=nothing))
    write_run(tmp_path / "single", name="single", played=1)
    with opened(browser, write([tmp_path]), **PHONE) as page:
        for name in PAGES:
            visit(page, name)
            check_plots(page, name)
            if name == "clients":
                flip(page, name)
            assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert page.evaluate("window.broken") is None
        page.select_option("#page-cost select[data-choice=run]", label="bare")
        visit(page, "clients")
        assert page.get_attribute("#plot-map", "data-empty") == "true"


def test_a_memory_is_drawn_with_every_choice(browser: Browser, tmp_path: Path) -> None:
    remember(write_run(tmp_path / "memory", name="memory", change=with_memory), probed())
    write_run(tmp_path / "plain", name="plain")
    with opened(browser, write([tmp_path]), **PHONE) as page:
        visit(page, "memory")
        check_plots(page, "memory")
        page.select_option("#page-memory [data-choice=run]", label="plain")
        check_plots(page, "memory")
        assert page.get_attribute("#plot-context", "data-empty") == "true"
        page.select_option("#page-memory [data-choice=run]", label="memory")
        assert flip(page, "memory") == 8
        assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_without_scripts_every_table_is_there(browser: Browser, report: Path) -> None:
    with opened(browser, report, java_script_enabled=False) as page:
        assert page.locator("[role=tabpanel]:visible").count() == len(REAL)
        assert page.locator("#table-runs").is_visible()
        assert "Plots need JavaScript" in page.inner_text("main")
