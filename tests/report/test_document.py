"""The file itself: whole, closed to the network, readable without a mouse, and the same every time."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from parsed import Page, page
from plotly.offline import get_plotlyjs
from written import write_run

from cotune.core.protection import NOT_PROTECTED
from cotune.core.record import Metric, RoundRecord
from cotune.report import document, shown
from cotune.report.html import cell, duration, escape, number, scaled, table, tag
from cotune.report.pages import PAGES
from cotune.report.plot import Plot, label


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Page:
    out = tmp_path_factory.mktemp("runs")
    return page(write_run(out / "a", name="a"), write_run(out / "b", name="b", seed=1))


def test_importing_the_report_brings_no_torch() -> None:
    code = "import sys, cotune.report, cotune.cli.report; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_plotly_is_there_once_and_nothing_is_linked(written: Page) -> None:
    assert written.scripts[1] == get_plotlyjs()
    assert len(written.scripts) == 3
    for name, attributes in written.tags:
        assert name not in ("link", "img", "iframe", "object", "embed", "base", "form")
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    styles = written.html.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in styles
    assert "@import" not in styles


def test_the_policy_allows_these_scripts_and_no_request(written: Page) -> None:
    policy = next(a["content"] for name, a in written.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert "default-src 'none'" in policy
    for script in written.scripts[1:]:
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy
    assert "http" not in policy


def test_letters_with_little_of_the_probability_are_doubted_by_the_last_scored_round(tmp_path: Path) -> None:
    def noted(name: str, *masses: float) -> bool:
        def change(one: RoundRecord) -> RoundRecord:
            mass = Metric(value=masses[one.round - 1], n=9, low=None, high=None)
            return one.model_copy(update={"global_metrics": {**one.global_metrics, "letter_mass": mass}})

        folder = write_run(tmp_path / name, played=len(masses), planned=len(masses), change=change)
        return "the model would mostly write something else" in document(shown([folder]))

    assert noted("falls", 0.9, 0.02)
    assert not noted("rises", 0.02, 0.9)


def test_the_same_folders_give_the_same_file(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "toy")
    assert document(shown([folder])) == document(shown([folder]))


def test_every_page_has_a_tab_and_a_panel_that_name_each_other(written: Page) -> None:
    tabs = {a["aria-controls"]: a["id"] for _, a in written.tags if a.get("role") == "tab"}
    panels = {a["id"]: a["aria-labelledby"] for _, a in written.tags if a.get("role") == "tabpanel"}
    assert tabs == panels
    assert len(tabs) == len(PAGES) - 3 == 4, "there is no memory to show, no low-rank pair, no slope"


def test_every_plot_is_followed_by_its_data_in_tables(written: Page) -> None:
    assert set(written.data["plots"]) == {
        "curves",
        "pareto",
        "map",
        "drop",
        "participation",
        "holdings",
        "bytes",
        "resources",
    }
    for id_ in written.data["plots"]:
        after = written.html.partition(f'id="plot-{id_}"')[2].partition("</figure>")[0]
        assert re.match(r'[^>]*></div><details class="data"><summary>Data</summary><div[^>]*><table>', after)


def test_ids_are_unique_and_every_column_that_is_bound_is_there(written: Page) -> None:
    ids = [a["id"] for _, a in written.tags if "id" in a]
    assert len(ids) == len(set(ids))
    choices = {name: [option["value"] for option in options] for name, options in written.data["choices"].items()}
    keys = set(written.data["columns"])
    for plot in written.data["plots"].values():
        assert {plot["by"], *plot["choices"]} - {""} <= set(choices)
        for figure in plot["figures"].values():
            for trace in figure["data"]:
                for key in trace.get("bind", {}).values():
                    pattern = re.sub(
                        r"\\\{(\w+)\\\}", lambda m: f"({'|'.join(map(re.escape, choices[m[1]]))})", re.escape(key)
                    )
                    assert any(re.fullmatch(pattern, known) for known in keys), key


def test_what_is_not_protected_is_said_as_before_a_run(written: Page) -> None:
    for line in NOT_PROTECTED:
        assert line[1:] in written.text


def test_cells_keep_every_digit_and_show_a_few() -> None:
    assert cell(0.1 + 0.2) == '<td data-value="0.30000000000000004">0.3000</td>'
    assert cell(-1234567) == '<td data-value="-1234567">−1,234,567</td>'
    assert cell(float("-inf")) == '<td data-value="-Infinity">−∞</td>'
    assert cell(None) == '<td class="none">–</td>'
    assert cell("<i>") == '<td class="text">&lt;i&gt;</td>'
    assert [number(value) for value in (0.0, 1e-7, 12.345, 2e9, float("nan"))] == [
        "0.0000",
        "1e−07",
        "12.35",
        "2,000,000,000",
        "NaN",
    ]
    assert [scaled(value, "B") for value in (0, 999, 31_800, 4.8e6)] == ["0 B", "999 B", "31.8 kB", "4.8 MB"]
    assert [duration(seconds) for seconds in (2.94, 200, 18_120)] == ["2.9 s", "3 min 20 s", "5 h 2 min"]


def test_markup_is_what_was_made_as_markup() -> None:
    assert tag("p", "a < b", tag("b", '"'), None, class_="x", data_y='"&') == (
        '<p class="x" data-y="&quot;&amp;">a &lt; b<b>&quot;</b></p>'
    )
    assert (
        escape("a\x00b\u202ec\ud800")
        == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c\N{REPLACEMENT CHARACTER}"
    )


def test_plotly_gets_no_markup_and_no_formula() -> None:
    assert label("<b>$x$</b> & co") == "&lt;b&gt;&#36;x&#36;&lt;/b&gt; &amp; co"
    assert label("a" * 30 + "z") == "a" * 12 + "…" + "a" * 10 + "z"


def test_a_table_without_end_stops_and_says_so() -> None:
    html = table("Long", ("A", "B"), [[i, i] for i in range(30_000)])
    assert html.count("<tr>") == 25_001
    assert "5,000 more rows" in html


def test_a_page_of_its_own_is_a_function_of_the_runs(tmp_path: Path) -> None:
    runs = shown([write_run(tmp_path / "toy")])
    pages = [made for make in PAGES if (made := make(runs))]
    assert [made.id for made in pages] == ["overview", "convergence", "clients", "cost"]
    assert all(isinstance(block, Plot | str) for made in pages for block in made.blocks)
