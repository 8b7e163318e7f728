"""A run through the lm-evaluation-harness, and our log-likelihoods against its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from typed import Type, refused, typing

import cotune as ct
from cotune.generation import converse
from cotune.resolve import load
from cotune.store import Run
from cotune.task.forms import Question, Ranked

QUESTIONS = (
    Question("The sky over the town is", (" blue", " green as the grass of June", " é", " 天空")),
    Question("Question: is it late?\nAnswer:", (" yes", " no", " no, not yet")),
    Question("A", (" b c d", " b")),
)
TASK = """
task: mine
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_choice: choices
doc_to_target: label
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""
RECIPES = ("lora-fedavg", "fednl")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """One round of each recipe."""
    out = tmp_path_factory.mktemp("runs")
    sets = ["method.budget.steps=1", "method.budget.batch=2", "method.optimizer.lr=0.05"]
    backbone, task = "random:llama?layers=1&hidden=16&heads=2", "synth:choice?domains=2&rows=20"
    played = {recipe: load(recipe, backbone=backbone, task=task, rounds=1, sets=sets) for recipe in RECIPES}
    return {recipe: ct.run(experiment, out=out) for recipe, experiment in played.items()}


@pytest.fixture
def type_(capfd: pytest.CaptureFixture[str]) -> Type:
    return typing(capfd)


def task_file(folder: Path) -> tuple[Path, list[Question]]:
    """A task of six questions, and the questions."""
    rows = [{"question": f"Which {i}?", "choices": ["one", "the other"], "label": i % 2} for i in range(6)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "mine.yaml").write_text(TASK.format(data=folder / "rows.jsonl"))
    asked = [Question(f"Question: Which {i}?\nAnswer:", (" one", " the other"), i % 2) for i in range(6)]
    return folder / "mine.yaml", asked


def ours(run: Run, questions: list[Question]) -> list[list[float]]:
    """Σ log p of each option of each question."""
    blueprint = ct.Experiment.model_validate(run.about["experiment"]).blueprint()
    form = Ranked()
    with converse(run, blueprint) as talk, torch.no_grad():
        encoded = form.encode(questions, talk.backbone.tokenizer, 256)
        batches = [form.collate([one], talk.backbone.tokenizer) for one in encoded.examples]
        return [form._sums(talk.backbone.model, batch)[0][0].tolist() for batch in batches]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.filterwarnings("default")
def test_log_likelihoods_are_those_of_the_harness(runs: dict[str, Run], recipe: str) -> None:
    pytest.importorskip("lm_eval", reason="the extra `eval` is not installed")
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    run = runs[recipe]
    blueprint = ct.Experiment.model_validate(run.about["experiment"]).blueprint()
    asked = [(question.prompt, option) for question in QUESTIONS for option in question.options]
    requests = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(asked)]
    with converse(run, blueprint) as talk:
        model = HFLM(
            pretrained=talk.backbone.model,
            tokenizer=talk.backbone.tokenizer,
            backend="causal",
            device="cpu",
            batch_size=4,
        )
        theirs = [value for value, _ in model.loglikelihood(requests, disable_tqdm=True)]
    found = [value for values in ours(run, [*QUESTIONS]) for value in values]
    assert len(found) == len(theirs) == 9
    assert found == pytest.approx(theirs, abs=1e-4)


@pytest.mark.filterwarnings("default")
def test_a_run_is_scored_on_a_task_of_the_harness(type_: Type, runs: dict[str, Run], tmp_path: Path) -> None:
    pytest.importorskip("lm_eval", reason="the extra `eval` is not installed")
    task, asked = task_file(tmp_path)
    run = runs["fednl"]
    said = type_("eval", str(run.folder), "--lm-eval", str(task))
    assert said.status == 0, said.err
    right = [max(range(2), key=values.__getitem__) == q.gold for q, values in zip(asked, ours(run, asked), strict=True)]
    written = json.loads((run.folder / "lm-eval" / "mine.json").read_text())
    assert written["results"]["mine"]["acc,none"] == pytest.approx(sum(right) / 6)
    assert written["n"] == {"mine": 6}
    line = next(line for line in said.out.splitlines() if line.split()[:2] == ["mine", "acc"])
    assert line.split()[2] == f"{sum(right) / 6:.4f}"
    (tmp_path / "none.yaml").write_text("a: b\n")
    assert "no task of lm-eval" in refused(
        type_("eval", str(run.folder), "--lm-eval", str(tmp_path / "none.yaml")), "E_CONFIG", 2
    )


def test_without_the_harness_it_is_said_how_to_get_it(
    type_: Type, runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    task, _ = task_file(tmp_path)
    line = refused(type_("eval", str(runs["fednl"].folder), "--lm-eval", str(task)), "E_CONFIG", 2)
    assert "lm-eval is not installed" in line
    assert "pip install 'cotune[eval]'" in line
    missing = refused(type_("eval", str(runs["fednl"].folder), "--lm-eval", str(tmp_path / "no.yaml")), "E_CONFIG", 2)
    assert "no such task" in missing
