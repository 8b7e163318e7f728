"""Head and tail: where few clients have the rare classes, their test rows have numbers of their own on every page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from parsed import Page, page
from written import write_run

from cotune.core.record import Metric, RoundRecord
from cotune.report import shown
from cotune.report.pages.memory import memory
from cotune.store import Run

TAIL: dict[str, Any] = {
    "by": "label",
    "classes": {"newts": ["a", "c"], "<voles>": ["b"]},
    "clients": {"a": {"head": 70, "tail": 13}, "b": {"head": 83, "tail": 1}, "c": {"head": 80, "tail": 3}},
    "test": {"head": 96, "tail": 24, "other": 0},
}


def share(value: float, n: int) -> Metric:
    return Metric(value=value, n=n, low=value - 0.05, high=value + 0.05, chance=0.25)


def apart(one: RoundRecord) -> RoundRecord:
    cells = {"head": share(0.5 + one.round / 10, 96), "tail": share(one.round / 10, 24)}
    return one.model_copy(update={"cells": {"accuracy": cells}})


def with_tail(folder: Path, tail: dict[str, Any]) -> Path:
    about = json.loads((folder / "experiment.json").read_text())
    about["data"]["tail"] = tail
    (folder / "experiment.json").write_text(json.dumps(about))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_tail(write_run(tmp_path_factory.mktemp("runs") / "toy", change=apart), TAIL)


@pytest.fixture(scope="module")
def written(folder: Path) -> Page:
    return page(folder)


def test_the_clients_page_has_the_last_rounds_head_and_tail_with_n_and_intervals(written: Page, folder: Path) -> None:
    last = Run(folder).rounds[-1]
    (found,) = (one for one in written.tables if one.caption == "Head and tail of the test rows")
    assert found.texts("Rows") == ["head", "tail"]
    for head, field in (("Value", "value"), ("Low", "low"), ("High", "high"), ("n", "n"), ("Chance", "chance")):
        assert found.column(head) == [getattr(last.cells["accuracy"][name], field) for name in ("head", "tail")]
    assert found.column("Round") == [3, 3]
    (held,) = (one for one in written.tables if one.caption == "Who has the rare classes")
    assert (held.texts("Class"), held.texts("Which"), held.column("Clients")) == (
        ["newts", "<voles>"],
        ["a, c", "b"],
        [2, 1],
    )
    own = written.html.partition('id="page-clients"')[2].partition('id="page-cost"')[0]
    assert "table-head-tail" in own


def test_both_are_curves_with_bands_beside_the_mean(written: Page, folder: Path) -> None:
    options = [option["value"] for option in written.data["choices"]["metric"]]
    assert {"accuracy of the head", "accuracy of the tail"} <= {*options}
    rounds = Run(folder).rounds
    for name in ("head", "tail"):
        for end, field in (("", "value"), ("/low", "low"), ("/high", "high"), ("/chance", "chance")):
            column = written.column(f"r0/accuracy of the {name}{end}")
            assert column == [getattr(one.cells["accuracy"][name], field) for one in rounds]
    (table,) = (one for one in written.tables if one.caption == "Every number by round")
    assert table.column("Accuracy of the tail") == [one.cells["accuracy"]["tail"].value for one in rounds]


def test_who_holds_what_is_drawn_by_head_and_tail_too(written: Page) -> None:
    assert [option["value"] for option in written.data["choices"]["holds"]] == ["label", "tail", "use"]
    traces = written.data["plots"]["holdings"]["figures"]["r0"]["data"]
    drawn = {
        trace["name"]: written.column(trace["bind"]["x"]) for trace in traces if trace["when"] == {"holds": "tail"}
    }
    assert drawn == {"head": [70, 83, 80, 0], "tail": [13, 1, 3, 0]}, "nothing is known of the last one"
    (rows,) = (one for one in written.tables if one.caption == "Rows of the clients of toy")
    assert rows.column("Tail") == [13, 1, 3, 0]


def test_head_and_tail_are_no_memory_and_other_strata_stay_where_they_were(folder: Path, tmp_path: Path) -> None:
    assert memory(shown([folder])) is None

    def both(one: RoundRecord) -> RoundRecord:
        cells = {"accuracy": {**apart(one).cells["accuracy"], "stem": share(0.5, 9)}}
        return one.model_copy(update={"cells": cells})

    found = page(write_run(tmp_path / "toy", change=both))
    (others,) = (one for one in found.tables if one.caption == "Other kinds of test rows")
    assert others.texts("Rows") == ["stem"]
    (tail,) = (one for one in found.tables if one.caption == "Head and tail of the test rows")
    assert tail.texts("Rows") == ["head", "tail"]


def test_topics_are_drawn_the_most_frequent_first_and_listed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "toy", clients=("a", "b"))
    about = json.loads((folder / "experiment.json").read_text())
    topics = {f"topic {i}": 9 - i for i in range(9)}
    del about["data"]["labels"]
    about["data"]["topics"] = {"a": topics, "b": {"topic 8": 50, "": 2}}
    (folder / "experiment.json").write_text(json.dumps(about))
    found = page(folder)
    assert [option["value"] for option in found.data["choices"]["holds"]] == ["topic", "use"]
    traces = found.data["plots"]["holdings"]["figures"]["r0"]["data"]
    drawn = {trace["name"]: found.column(trace["bind"]["x"]) for trace in traces if trace["when"] == {"holds": "topic"}}
    assert [*drawn] == ["topic 8", *(f"topic {i}" for i in range(6)), "other topics"]
    assert drawn["topic 8"] == [1, 50]
    assert drawn["other topics"] == [3 + 2, 2]
    (listed,) = (one for one in found.tables if one.caption == "Topics of the clients of toy")
    assert sum(value or 0 for value in listed.column("Rows")) == sum(topics.values()) + 52


def test_a_run_without_a_tail_says_nothing_of_one(tmp_path: Path) -> None:
    found = page(write_run(tmp_path / "toy"))
    assert "Head and tail" not in found.html
    assert "rare classes" not in found.text
