"""Rows of a comparison that see the model in their own way, test rows that some model does not take, and strata."""

from __future__ import annotations

import json
import time
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cotune as ct
from cotune.comparison import ask, load
from cotune.comparison.ahead import ahead
from cotune.comparison.measure import _pairs
from cotune.core.errors import Code
from cotune.engine import InlineEngine
from cotune.experiment import Experiment

WINDOW = ct.Backbone(ref="builtin:tiny-recall", window=12)
FULL = ct.Backbone(ref="builtin:tiny-recall")
GAPS = (20, 150)  # the second is past the 128 positions of full attention


def recall(**fields: Any) -> Any:
    given = {"clients": 2, "rows": 8, "held": 2, "test_rows": 4, "test_gaps": GAPS, **fields}
    return ct.task.Recall(**given)


def rows() -> dict[str, ct.Method]:
    method = ct.recipe("lora-fedavg", steps=1, batch=4, lr=1e-3)
    return {"window": method, "full": method}


def compared(out: Path, **settings: Any) -> ct.Comparison:
    given = {"task": recall(), "backbone": WINDOW, "backbones": {"full": FULL}, "rounds": 1, "seeds": 2, **settings}
    return ct.compare(rows(), local=False, out=out, **given)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> ct.Comparison:
    return compared(tmp_path_factory.mktemp("rows"))


def test_a_row_with_a_backbone_of_its_own_runs_on_it_and_the_others_on_the_grounds(done: ct.Comparison) -> None:
    seen = {label: run[0].about["experiment"]["backbone"]["window"] for label, run in done.runs.items()}
    assert seen == {"window": 12, "full": None}
    assert done.about["rows"]["full"]["backbone"]["window"] is None
    assert done.about["rows"]["window"]["backbone"] is None
    assert len({run[0].about["backbone_sha256"] for run in done.runs.values()}) == 1


def test_a_stratum_is_the_mean_over_its_rows_as_the_runs_recorded_it(done: ct.Comparison) -> None:
    strata = {stratum["cell"]: stratum for stratum in done.table["strata"]}
    assert list(strata) == ["gap 20", "gap 150"]
    for cell, stratum in strata.items():
        assert stratum["n"] == 8
        for label, score in stratum["scores"].items():
            recorded = [run.rounds[-1].cells["accuracy"][cell].value for run in done.runs[label]]
            assert score["by_seed"] == pytest.approx(recorded)
            assert score["value"] == pytest.approx(np.mean(recorded))


def test_rows_that_a_model_does_not_take_are_a_dash_and_count_in_no_pair(done: ct.Comparison) -> None:
    strata = {stratum["cell"]: stratum for stratum in done.table["strata"]}
    assert set(strata["gap 150"]["scores"]) == {"window"}
    assert strata["gap 150"]["pairs"] == []
    (pair,) = done.table["pairs"]
    (short,) = strata["gap 20"]["pairs"]
    assert (pair["gain"], pair["by_seed"]) == (short["gain"], short["by_seed"])
    window, full = done.table["rows"]
    assert (window["untaken"], full["untaken"]) == (0, 8)
    assert full["value"] == pytest.approx(strata["gap 20"]["scores"]["full"]["value"])
    assert "full: its model does not take 8 of the test rows of all seeds together" in str(done)
    line = next(line for line in str(done).splitlines() if line.split()[:1] == ["full"] and line.rstrip().endswith("-"))
    assert line.split()[-2:] == ["-", "-"]


def test_several_processes_say_what_one_does(done: ct.Comparison, tmp_path: Path) -> None:
    found = compared(tmp_path, jobs=2)
    ours, theirs = (
        {label: [run.theta_sha256 for run in of] for label, of in one.runs.items()} for one in (found, done)
    )
    assert ours == theirs
    assert found.table["pairs"] == done.table["pairs"]
    assert found.table["strata"] == done.table["strata"]


def test_what_fails_in_another_process_is_told_with_its_row(tmp_path: Path) -> None:
    with pytest.raises(ct.CotuneError, match="row 'window', seed 0") as caught:
        compared(tmp_path, jobs=2, seeds=1, backbones={}, backbone=FULL, task=recall(gap=200))
    assert caught.value.code is Code.DATA


def test_a_row_says_behind_a_plus_what_it_has_of_its_own() -> None:
    sources = ["lora-fedavg+backbone.window=12", "lora-fedavg+method.optimizer.lr=1e-2", "lora-fedavg"]
    methods, ground, backbones = load(sources, local=False, backbone=FULL.ref, task="recall?rows=8")
    assert list(methods) == sources
    assert [method.optimizer.model_dump()["lr"] for method in methods.values()] == [1e-3, 1e-2, 1e-3]
    assert {label: backbone.window for label, backbone in backbones.items()} == {sources[0]: 12}
    assert ground.backbone.window is None


def test_the_backbone_of_an_unknown_row_is_refused() -> None:
    ground = Experiment(method=rows()["full"], task=recall(), backbone=WINDOW)
    with pytest.raises(ct.CotuneError, match="no row 'ful'") as caught:
        ask(rows(), ground, seeds=1, backbones={"ful": FULL})
    assert "did you mean 'full'?" in str(caught.value)


def test_the_ground_hash_does_not_move_with_a_rows_own_backbone(done: ct.Comparison) -> None:
    described = json.loads((done.folder / "comparison.json").read_text())
    assert described["ground"]["backbone"]["window"] == 12


def test_runs_in_other_processes_end_at_once_where_the_caller_stops(tmp_path: Path) -> None:
    long = ct.recipe("lora-fedavg", steps=10**4, batch=4, lr=1e-3)
    short = ct.recipe("lora-fedavg", steps=1, batch=4, lr=1e-3)
    methods = {"short": short, "long": long, "longer": long.model_copy(update={"share": "none"})}
    shared: Any = {"task": recall(test_gaps=(20,)), "backbone": WINDOW, "federation": ct.Federation(rounds=1)}
    planned = [Experiment(name=name, method=method, **shared) for name, method in methods.items()]
    before = {child.pid for child in active_children()}
    runs = ahead(planned, tmp_path, 2, False, InlineEngine)
    assert next(runs).name == "short"
    assert {child.pid for child in active_children()} - before
    stopped = time.monotonic()
    runs.close()
    assert time.monotonic() - stopped < 10  # a long one takes minutes
    # The pool's own thread takes note of their ends too: whichever comes second sees them a moment longer.
    while {child.pid for child in active_children()} - before and time.monotonic() - stopped < 20:
        time.sleep(0.05)
    assert {child.pid for child in active_children()} <= before


def test_a_plain_difference_is_seen_however_many_rows_there_are() -> None:
    scores = {f"row {i}": np.zeros((40, 2)) for i in range(15)} | {"best": np.ones((40, 2))}
    found = _pairs(scores, "accuracy", 0)
    assert len(found) == 120
    assert {pair.seen for pair in found if pair.theirs == "best"} == {True}
    assert not any(pair.seen for pair in found if pair.theirs != "best")
