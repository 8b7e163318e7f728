"""Which backbone an experiment is given where nobody names one: on synthetic data alone, said and recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotune import resolve, synthetic
from cotune.comparison import question
from cotune.comparison.played import rate
from cotune.core.errors import Code, CotuneError

LLAMA = "builtin:tiny-llama"

GENERATED = {
    "synth:choice?domains=5": LLAMA,
    "synth:sentiment": LLAMA,
    "text:synth:prose": LLAMA,
    "recall": "builtin:tiny-recall",
    "needle?lengths=128": LLAMA,
}
REAL = ("classify:./mine.jsonl", "mmlu", "needle?lengths=128&filler=./mine.jsonl", "prompted?dataset=sst2")


@pytest.mark.parametrize("task", GENERATED)
def test_a_synthetic_task_has_a_backbone_that_is_said_and_recorded(task: str) -> None:
    said: list[str] = []
    found = resolve.load("lora-fedavg", task=task, say=said.append)
    assert found.resolved()["backbone"]["ref"] == GENERATED[task]
    assert said[-1] == f"backbone {GENERATED[task]}: none was named, and the data are synthetic"
    named = resolve.load("lora-fedavg", task=task, backbone=GENERATED[task])
    assert found.hash == named.hash


@pytest.mark.parametrize("task", REAL)
def test_real_data_have_none(task: str) -> None:
    with pytest.raises(CotuneError, match="no backbone given") as error:
        resolve.load("lora-fedavg", task=task)
    assert error.value.code is Code.CONFIG


def test_prompts_that_the_small_model_does_not_take_have_none() -> None:
    assert synthetic.backbone(resolve.task("needle")) is None
    assert synthetic.backbone(resolve.task("needle?lengths=128&long=512")) is None


def test_a_named_one_stays_and_its_settings_alone_name_none() -> None:
    said: list[str] = []
    named = {"task": "choice:synth:choice", "say": said.append}
    assert resolve.load("lora-fedavg", backbone="random:llama", **named).backbone.ref == "random:llama"  # type: ignore[arg-type]
    assert said == []
    found = resolve.load("lora-fedavg", sets=["backbone.threads=2"], **named).backbone  # type: ignore[arg-type]
    assert (found.ref, found.threads) == (LLAMA, 2)


def test_rows_with_settings_of_their_own_have_the_backbone_of_the_ground_and_it_is_said_once() -> None:
    said: list[str] = []
    rows = ["lora-fedavg", "lora-fedavg+backbone.window=8", "local"]
    methods, ground, backbones = question.load(rows, task="choice:synth:choice", say=said.append)
    assert ground.backbone.ref == LLAMA
    assert [backbone.ref for backbone in backbones.values()] == [LLAMA]
    assert [line for line in said if line.startswith("backbone ")] == [
        f"backbone {LLAMA}: none was named, and the data are synthetic"
    ]
    assert [*methods] == rows, "local is there already"


def test_a_comparison_that_names_no_backbone_has_rounds_a_cohort_and_steps_that_suit_it() -> None:
    said: list[str] = []
    rows, ground, _ = question.load(["lora-fedavg", "local"], task="synth:choice?domains=5&rows=40", say=said.append)
    assert (ground.federation.rounds, ground.federation.cohort) == (synthetic.ROUNDS, synthetic.COHORT)
    assert {method.budget.steps for method in rows.values()} == {synthetic.STEPS}
    assert {rate(method) for method in rows.values()} == {3e-3}
    assert said[-2:] == [
        f"backbone {LLAMA}: none was named, and the data are synthetic",
        "50 rounds, 2 of 5 clients a round, 5 steps of each, 3 times the learning rate of every recipe: so small a "
        "model learns with these, and none was named",
    ]


def test_what_is_given_stays(tmp_path: Path) -> None:
    two = "synth:choice?domains=2&rows=40"
    rows, ground, _ = question.load(["lora-fedavg"], task=two, rounds=3, sets=["method.budget.steps=7"])
    assert (ground.federation.rounds, ground.federation.cohort) == (3, None), "two clients are a cohort already"
    assert {method.budget.steps for method in rows.values()} == {7}
    sets = ["federation={rounds=4, cohort=1}"]
    assert question.load(["lora-fedavg"], task=two, sets=sets)[1].federation.cohort == 1
    file = tmp_path / "mine.toml"
    file.write_text('recipe = "lora-fedavg"\n[method.budget]\nsteps = 9\n')
    mine = question.load([str(file)], task=two, local=False)[0]["mine"]
    assert (mine.budget.steps, rate(mine)) == (9, 1e-3)
    own = question.load(["lora-fedavg+method.optimizer.lr=0.5", "fedspzo"], task=two, local=False)[0].values()
    assert [rate(method) for method in own] == [0.5, 3e-4]
    every = question.load(["lora-fedavg"], task=two, sets=["method.optimizer.lr=0.5"])[0].values()
    assert [rate(method) for method in every] == [0.5, 0.5]
    named = question.load(["lora-fedavg"], task=two, backbone=LLAMA)
    assert (named[1].federation.rounds, named[0]["lora-fedavg"].budget.steps) == (10, 10)


def test_a_sweep_may_be_factors_of_each_rows_own_rate() -> None:
    named = ["lora-fedavg", "fedspzo"]
    rows, ground, _ = question.load(named, task="synth:choice?rows=40", local=False, faster=False)
    asked = question.ask(rows, ground, seeds=1, sweep=("x3", "x10"))
    assert (asked.rates("lora-fedavg"), asked.rates("fedspzo")) == ((3e-3, 1e-2), (3e-4, 1e-3))
    assert rows["fedspzo"].optimizer.model_dump()["lr_back"] == 5e-4
    assert question.ask(rows, ground, seeds=1, sweep=(1e-3,)).rates("fedspzo") == (1e-3,)
    for bad in (("x3", 1e-2), ("x0",), ("xx",), ("xinf",)):
        with pytest.raises(CotuneError, match="cannot read the sweep"):
            question.ask(rows, ground, seeds=1, sweep=bad)


def test_the_first_row_that_is_averaged_is_the_reference() -> None:
    rows, ground, _ = question.load(["local", "fedprox", "lora-fedavg"], task="synth:choice?rows=40")
    assert question.ask(rows, ground, seeds=1).reference == "fedprox"
    alone = {"local": rows["local"], "too": rows["local"]}
    assert question.ask(alone, ground, seeds=1).reference == "local"
