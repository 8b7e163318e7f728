"""Rows that are brought to one length of update before they are compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import cotune as ct
from cotune.comparison import ask
from cotune.comparison.lengths import WITHIN, length, one_length
from cotune.comparison.question import with_rate
from cotune.core.errors import Code, CotuneError
from cotune.core.seeds import Seeds
from cotune.core.state import from_bytes
from cotune.experiment import Experiment
from cotune.federation import Federation
from cotune.store import Run

BACKBONE = "random:bert?layers=1&hidden=16&heads=2"
TASK = ct.task.Classify(data="synth:sentiment?clients=2&rows=60", max_tokens=24)
WORK = {"steps": 2, "batch": 4}
ROWS = {
    "short": ct.recipe("lora-fedavg", lr=2e-3, **WORK),
    "long": ct.recipe("lora-fedavg", lr=1e-2, **WORK),
    "half": ct.recipe("ffa-lora", lr=1e-2, **WORK),
    "local": ct.recipe("local", lr=1e-2),
}


def compared(out: Path, **options: Any) -> ct.Comparison:
    given = {"rows": ROWS, "task": TASK, "backbone": BACKBONE, "rounds": 2, "seeds": 1, "match_norm": True, **options}
    return ct.compare(given.pop("rows"), out=out, **given)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> ct.Comparison:
    return compared(tmp_path_factory.mktemp("lengths"))


def dense(run: Run) -> float:
    """The length of all products of a run's adapter, as dense matrices."""
    config = json.loads((run.folder / "adapter" / "adapter_config.json").read_text("utf-8"))
    tensors = from_bytes((run.folder / "adapter" / "adapter_model.safetensors").read_bytes())
    scale = config["lora_alpha"] / config["r"]
    squares = [
        float((scale * tensors[name.replace("lora_A", "lora_B")].double() @ tensors[name].double()).square().sum())
        for name in tensors
        if "lora_A" in name
    ]
    assert len(squares) > 1
    return float(torch.tensor(squares).sum().sqrt())


def test_rows_of_factors_come_to_the_length_of_the_shortest(done: ct.Comparison) -> None:
    told = done.table["lengths"]
    assert list(told) == ["short", "long", "half"], "what is never averaged keeps its rate"
    target = told["short"]["tried"]["0.002"]
    assert {row["target"] for row in told.values()} == {target}
    assert all(row["reached"] for row in told.values())
    for label, row in told.items():
        reached = row["tried"][f"{row['lr']:g}"]
        assert abs(reached / target - 1) <= WITHIN
        assert row["client_steps"] == 2 * 2 * 2 * len(row["tried"]), label
        assert row["seconds"] > 0
    assert told["short"]["lr"] == 2e-3
    assert told["long"]["lr"] == 2e-3, "another rate of the same row"


def test_rows_run_at_those_rates_and_the_table_has_the_length_of_their_runs(done: ct.Comparison) -> None:
    rates = {label: run[0].about["experiment"]["method"]["optimizer"]["lr"] for label, run in done.runs.items()}
    assert rates == {**{label: row["lr"] for label, row in done.table["lengths"].items()}, "local": 1e-2}
    for row in done.table["rows"]:
        if row["label"] == "local":
            assert row["length"] is None
        else:
            (run,) = done.runs[row["label"]]
            assert row["length"] == pytest.approx(dense(run), rel=1e-4)
            assert row["length"] == pytest.approx(length(run))
    told = str(done)
    assert "learning rates for one length of update, " in told
    assert "the shortest of the rows at their own rates, on seed 1000 alone" in told
    assert "local: no such length, and the learning rate stays." in told
    assert [pair["gain"] for pair in done.table["pairs"] if (pair["ours"], pair["theirs"]) == ("short", "long")] == [0]


def test_a_repetition_plays_nothing_more(done: ct.Comparison) -> None:
    before = {path: path.stat().st_mtime_ns for path in done.folder.rglob("rounds.jsonl")}
    again = compared(done.folder.parent)
    assert str(again) == str(done)
    assert {path: path.stat().st_mtime_ns for path in done.folder.rglob("rounds.jsonl")} == before


def test_a_search_begins_with_the_runs_of_the_sweep(tmp_path: Path) -> None:
    found = compared(tmp_path, rows={label: ROWS[label] for label in ("long", "half")}, sweep=(1e-3, 1e-2), local=False)
    assert set(found.table["search"]) == set(found.table["lengths"]) == {"long", "half"}
    for label, row in found.table["lengths"].items():
        swept = {"0.001", "0.01"}
        assert swept <= set(row["tried"])
        assert row["client_steps"] == 8 * len(set(row["tried"]) - swept), "the sweep's runs are paid for already"
        chosen = {name: found.table["search"][name]["chosen"] for name in ("long", "half")}
        at_best = [found.table["lengths"][name]["tried"][f"{lr:g}"] for name, lr in chosen.items()]
        assert row["target"] == min(at_best), label
    assert "the shortest of the rows at their best rates" in str(found)


def test_who_does_not_come_to_the_length_is_named() -> None:
    stuck = one_length(
        {"near": {1.0: 2.0}, "far": {1.0: 9.0}},
        {"near": 1.0, "far": 1.0},
        lambda guesses: dict.fromkeys(guesses, 9.0),
        tries=3,
    )
    assert (stuck["near"].reached, stuck["far"].reached) == (True, False)
    assert len(stuck["far"].tried) == 4
    with pytest.raises(CotuneError, match="no row has moved"):
        one_length({"still": {1.0: 0.0}}, {"still": 1.0}, lambda _: {}, tries=1)


def test_what_has_no_length_is_refused() -> None:
    ground = Experiment(
        method=ROWS["short"],
        task=TASK,
        backbone=ct.Backbone(ref=BACKBONE),
        federation=Federation(rounds=1),
        seeds=Seeds(),
    )
    whole = ct.recipe("fedavg", **WORK)
    for rows, budget, words in (
        ({"short": ROWS["short"], "whole": whole}, None, "one length needs two rows of factors"),
        (ROWS, "bytes=1e6", "a row that stops early"),
    ):
        with pytest.raises(CotuneError, match=words) as error:
            ask(rows, ground, seeds=1, budget=budget, match_norm=True)
        assert error.value.code is Code.CONFLICT
    kept = ask({**ROWS, "whole": whole}, ground, seeds=1, match_norm=True)
    assert kept.measured == ["short", "long", "half"]


def test_both_halves_of_a_model_take_another_rate_together() -> None:
    method = ct.recipe("fedspzo", lr=1e-4, lr_back=5e-4)
    found = with_rate(method, 1e-3).optimizer.model_dump()
    assert (found["lr"], found["lr_back"]) == (1e-3, pytest.approx(5e-3))
    alone = with_rate(ct.recipe("fedspzo", lr=1e-4, lr_back=None), 1e-3).optimizer.model_dump()
    assert (alone["lr"], alone["lr_back"]) == (1e-3, None)
