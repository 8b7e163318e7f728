"""Comparisons as a user types, repeats and interrupts them, and what a bad input comes to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import pytest
from typed import ON, Type, refused, typing

from cotune.cli.compare import rates

SHORT = (*ON, "--rounds", "1", "--seeds", "1", "--set", "method.budget.steps=3", "--set", "method.budget.batch=8")


@pytest.fixture
def type_(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Type:
    monkeypatch.chdir(tmp_path)
    return typing(capfd)


def test_a_comparison_says_each_run_then_the_table_and_what_may_be_said(type_: Type) -> None:
    said = type_("compare", "lora-fedavg", "fedprox", *SHORT, "--cohort", "3")
    assert (said.status, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[0] == "loading lora-fedavg, fedprox"
    runs = [line for line in lines if line.startswith("run ")]
    assert runs[0] == "run 1/3 · lora-fedavg · seed 0 · learning rate 0.001"
    assert [line.split(" · ")[1] for line in runs] == ["lora-fedavg", "fedprox", "local"]
    assert sum(line.startswith("data ") for line in lines) == 1
    assert "round 1/1" in said.out
    folder = Path(next(line for line in lines if line.startswith("folder ")).removeprefix("folder "))
    text = (folder / "table.txt").read_text()
    assert text in said.out
    assert "no difference seen" in text
    assert "8 client-steps, rounded to whole steps from the 9 of the other rows" in text
    assert "learning rate  client-steps" in text
    table = json.loads((folder / "table.json").read_text())
    assert [row["label"] for row in table["rows"]] == ["lora-fedavg", "fedprox", "local"]
    again = type_("compare", "lora-fedavg", "fedprox", *SHORT, "--cohort", "3")
    assert again.out.count("reused") == 3
    assert text in again.out
    quiet = type_("compare", "lora-fedavg", "fedprox", *SHORT, "--cohort", "3", "--quiet")
    assert (quiet.out, quiet.err) == (f"{folder}\n", "")


def test_of_a_file_the_method_alone_counts_and_the_base_gives_the_rest(type_: Type) -> None:
    Path("near.toml").write_text(
        'recipe = "fedprox"\n[federation]\nrounds = 9\n[task]\nkind = "classify"\ndata = "./no"\n'
    )
    Path("base.toml").write_text(
        '[federation]\nrounds = 4\n[backbone]\nref = "random:bert?layers=1&hidden=16"\n'
        '[task]\nkind = "classify"\ndata = "synth:sentiment?clients=4&rows=120"\n[seeds]\ndata = 7\n'
    )
    one_step = ("--set", "method.budget.steps=1")
    words = ("near.toml", "near.toml", "--base", "base.toml", "--rounds", "1", "--seeds", "2", "--no-local")
    said = type_("compare", *words, *one_step, "--quiet")
    folder = Path(said.out.strip())
    assert folder.name.startswith("base-")
    described = json.loads((folder / "comparison.json").read_text())
    assert list(described["rows"]) == ["near", "near#2"]
    assert described["ground"]["federation"]["rounds"] == 1
    assert described["ground"]["task"]["data"] == "synth:sentiment?clients=4&rows=120"
    assert described["rows"]["near"]["method"]["budget"]["steps"] == 1
    table = json.loads((folder / "table.json").read_text())
    assert (table["n"], table["different_rows"], table["local"]) == ([24, 24], 24, None), "the data seed is fixed"


def test_with_a_budget_a_run_says_where_it_stopped(type_: Type) -> None:
    words = ("lora-fedavg", "fedprox", *SHORT, "--no-local", "--rounds", "3", "--budget")
    said = type_("compare", *words, "bytes=6e4")
    assert (said.status, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines.count("stopped after round 2 · budget bytes=60000") == 2
    assert any(line.startswith("accuracy, higher is better") and "budget bytes=60000 a run" in line for line in lines)
    again = type_("compare", *words, "bytes=60000")
    assert again.out.count("reused") == 2
    assert again.out.splitlines()[-2:] == lines[-2:]


BAD: dict[str, tuple[list[str], str]] = {
    "no data": (["fedprox", "--backbone", "random:bert"], "add --task REF, or --base FILE"),
    "no backbone": (["fedprox", "--task", "classify:./mine.jsonl"], "add --backbone REF, or --base FILE"),
    "one row": (["fedprox", *ON, "--no-local"], "two rows"),
    "an unknown recipe": (["fedprox", "fedporx", *ON], "row 'fedporx': no recipe or file 'fedporx' · did you mean"),
    "an unknown metric": (["fedprox", *ON, "--metric", "accurcy"], "did you mean 'accuracy'?"),
    "an unknown reference": (["fedprox", *ON, "--reference", "fedprxo"], "did you mean 'fedprox'?"),
    "rates that are none": (["fedprox", *ON, "--sweep", "1e-3;1e-2"], "--sweep"),
    "a budget that is none": (["fedprox", *ON, "--budget", "time=3"], "--budget · got time=3, expected bytes=2e6"),
    "a rate below zero": (["fedprox", *ON, "--sweep", "-1"], "greater than or equal to 0"),
    "a value that no row has": (
        ["fedprox", *ON, "--set", "method.optimizer.lrr=1"],
        "row 'fedprox': unknown key 'lrr'",
    ),
    "a value that the ground has not": (["fedprox", *ON, "--set", "federation.round=1"], "did you mean 'rounds'?"),
    "no rows": ([*ON], "ROW"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_input_is_one_line_that_names_it(type_: Type, what: str) -> None:
    words, hint = BAD[what]
    assert hint in refused(type_("compare", *words), "E_CONFIG", 2)


def test_rows_of_different_work_are_a_conflict(type_: Type) -> None:
    Path("more.toml").write_text('recipe = "fedprox"\n[method.budget]\nsteps = 11\n')
    line = refused(type_("compare", "fedprox", "more.toml", *ON), "E_CONFLICT", 2)
    assert "rows 'fedprox' and 'more' have different budgets" in line


def test_one_length_of_rows_that_have_none_is_a_conflict(type_: Type) -> None:
    line = refused(type_("compare", "fedprox", *ON, "--match-norm"), "E_CONFLICT", 2)
    assert "one length needs two rows of factors that are averaged · --match-norm · got fedprox" in line
    line = refused(
        type_("compare", "fedprox", "lora-fedavg", *ON, "--match-norm", "--budget", "bytes=1e6"), "E_CONFLICT", 2
    )
    assert "got a budget of bytes=1000000" in line


def test_a_row_that_fails_is_named_with_its_seed(type_: Type) -> None:
    words = ("--set", "method.optimizer.lr=1e30", "--rounds", "4", "--seeds", "1", "--no-local")
    line = refused(type_("compare", "lora-fedavg", "fedprox", *ON, *words), "E_QUORUM", 5)
    assert "row 'lora-fedavg', seed 0, lr 1e+30: 3 rounds in a row" in line


def test_an_interruption_says_how_to_go_on(type_: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_given: Any, **_named: Any) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("cotune.experiment.run", stop)
    said = type_("compare", "fedprox", *SHORT)
    assert (said.status, said.err) == (130, "interrupted · repeat the command to go on\n")


def test_on_synthetic_data_a_comparison_needs_no_backbone_and_says_what_it_takes(type_: Type) -> None:
    rows, little = "synth:choice?domains=3&rows=60", ("--set", "method.budget={steps=1, batch=2}")
    once = ("--rounds", "1", "--seeds", "1", "--jobs", "1")
    said = type_("compare", "local", "lora-fedavg", "--task", rows, *once, *little)
    assert (said.status, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[:2] == ["loading local, lora-fedavg", "task choice, from columns question, choices, answer"]
    assert lines[2] == "backbone builtin:tiny-llama: none was named, and the data are synthetic"
    assert lines[3].startswith("2 of 3 clients a round, 3 times the learning rate of every recipe: so small a model")
    assert "search: none, for any row." in said.out
    assert f"task choice on {rows} (synthetic) · backbone builtin:tiny-llama · 1 round · 2 clients a round" in lines
    (folder,) = Path("runs").iterdir()
    described = json.loads((folder / "comparison.json").read_text())
    assert list(described["rows"]) == ["local", "lora-fedavg"], "local is there once"
    assert (described["reference"], described["rows"]["local"]["lr"]) == ("lora-fedavg", 3e-3)
    swept = type_("compare", "local", "lora-fedavg", "--task", rows, *once, *little, "--sweep", "x1,x4")
    assert "every row tries the same 2 factors of its own rate" in swept.out
    both = [json.loads((one / "comparison.json").read_text()) for one in Path("runs").iterdir()]
    (found,) = [one for one in both if one["sweep"] == ["x1", "x4"]]
    assert found["rows"]["local"]["lr"] in (1e-3, 4e-3), "factors of the recipe's own rate"
    assert found["ground"]["backbone"]["ref"] == "builtin:tiny-llama"


def test_rates_are_read_in_their_order_and_each_once() -> None:
    assert rates("x3,x10,x3") == ["x3", "x10"]
    assert rates("1e-2,0.001,1e-3") == [0.01, 0.001]
