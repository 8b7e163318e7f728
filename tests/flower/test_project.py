"""A project's experiment: its file, and what Flower's run config says on top, in our words or in FlowerTune's."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotune import resolve
from cotune.core.errors import Code, CotuneError
from cotune.experiment import Experiment
from cotune.flower.project import (
    ALIASES,
    OURS,
    WITHOUT_EFFECT,
    Value,
    assignments,
    config_of,
    experiment_of,
    file_of,
)

TOML = """
recipe = "lora-fedavg"
[backbone]
ref = "builtin:tiny-llama"
[task]
kind = "sft"
data = "synth:instructions?clients=4"
[federation]
rounds = 2
"""
METHOD = """
[method]
trainable = { kind = "lora" }
optimizer = { kind = "adamw", lr = 1e-3 }
budget = { epochs = 1 }
"""
FLOWERTUNE = """
[tool.flwr.app.config]
experiment = "experiment.toml"
nodes = 20
model.name = "builtin:tiny-llama"
model.quantization = 0
model.gradient-checkpointing = true
model.lora.peft-lora-r = 32
model.lora.peft-lora-alpha = 64
train.save-every-round = 5
train.learning-rate-max = 5e-5
train.learning-rate-min = 1e-6
train.seq-length = 64
train.training-arguments.output-dir = ""
train.training-arguments.learning-rate = ""
train.training-arguments.per-device-train-batch-size = 16
train.training-arguments.gradient-accumulation-steps = 1
train.training-arguments.logging-steps = 10
train.training-arguments.num-train-epochs = 3
train.training-arguments.max-steps = 10
train.training-arguments.save-steps = 1000
train.training-arguments.save-total-limit = 10
train.training-arguments.gradient-checkpointing = true
train.training-arguments.lr-scheduler-type = "constant"
strategy.fraction-train = 0.1
strategy.fraction-evaluate = 0.0
num-server-rounds = 200
"""
ARGUMENTS = "train.training-arguments"
# FlowerTune's name and a value -> where it arrives, and as what.
SAID: list[tuple[str, Value, str, object]] = [
    ("num-server-rounds", 7, "federation.rounds", 7),
    ("model.name", "random:llama?layers=1", "backbone.ref", "random:llama?layers=1"),
    ("model.quantization", 4, "backbone.quantization", "nf4"),
    ("model.quantization", 8, "backbone.quantization", "int8"),
    ("model.quantization", 0, "backbone.quantization", None),
    ("model.gradient-checkpointing", True, "backbone.gradient_checkpointing", True),
    (f"{ARGUMENTS}.gradient-checkpointing", True, "backbone.gradient_checkpointing", True),
    ("model.lora.peft-lora-r", 4, "method.trainable.rank", 4),
    ("model.lora.peft-lora-alpha", 8, "method.trainable.alpha", 8.0),
    ("model.lora.peft-use-dora", False, "method.trainable.rank", 8),
    ("train.seq-length", 64, "task.max_tokens", 64),
    ("train.learning-rate-max", 5e-5, "method.optimizer.lr", 5e-5),
    (f"{ARGUMENTS}.learning-rate", 2e-4, "method.optimizer.lr", 2e-4),
    (f"{ARGUMENTS}.learning-rate", "", "method.optimizer.lr", 1e-3),
    (f"{ARGUMENTS}.weight-decay", 0.1, "method.optimizer.weight_decay", 0.1),
    (f"{ARGUMENTS}.per-device-train-batch-size", 3, "method.budget.batch", 3),
    (f"{ARGUMENTS}.gradient-accumulation-steps", 2, "method.budget.accumulate", 2),
    (f"{ARGUMENTS}.max-grad-norm", 1.5, "method.budget.clip", 1.5),
    (f"{ARGUMENTS}.lr-scheduler-type", "cosine", "method.budget.schedule", "cosine"),
    (f"{ARGUMENTS}.max-steps", 12, "method.budget.steps", 12),
    (f"{ARGUMENTS}.max-steps", -1, "method.budget.steps", 10),
    ("dataset.name", "synth:prose?clients=3", "task.data", "synth:prose?clients=3"),
    ("static.dataset.name", "synth:prose?clients=3", "task.data", "synth:prose?clients=3"),
    ("strategy.fraction-train", 0.5, "federation.cohort", 4),
    ("strategy.fraction-train", 0.1, "federation.cohort", 2),
    ("strategy.fraction-fit", 0.99, "federation.cohort", 7),
    ("strategy.fraction-train", 1.0, "federation.cohort", None),
    ("strategy.fraction-evaluate", 0.0, "evaluation.which", "global"),
    ("strategy.fraction-evaluate", 0.3, "evaluation.which", "cohort"),
    ("strategy.fraction-evaluate", 1, "evaluation.which", "all"),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "experiment.toml").write_text(TOML)
    return tmp_path


def at(experiment: Experiment, place: str) -> object:
    found: object = experiment
    for name in place.split("."):
        found = getattr(found, name)
    return found


def test_a_project_without_run_config_is_its_file(project: Path) -> None:
    assert experiment_of(project, {}).hash == resolve.load(str(project / "experiment.toml")).hash


def test_what_says_where_and_how_to_run_is_no_part_of_the_experiment(project: Path) -> None:
    config: dict[str, Value] = {"experiment": "experiment.toml", "nodes": 3, "wait": 5.0, "out": "x", "data": "y"}
    assert {*config, "set"} == set(OURS)
    assert experiment_of(project, {**config, "set": ""}).hash == experiment_of(project, {}).hash


@pytest.mark.parametrize(("key", "value", "place", "expected"), SAID)
def test_flowertunes_names_say_what_ours_do(
    project: Path, key: str, value: Value, place: str, expected: object
) -> None:
    assert at(experiment_of(project, {"nodes": 8, key: value}), place) == expected


def test_every_alias_is_tried(project: Path) -> None:
    assert set(ALIASES) <= {key for key, *_ in SAID}
    config: dict[str, Value] = dict.fromkeys(WITHOUT_EFFECT, 1)
    assert experiment_of(project, config).hash == experiment_of(project, {}).hash


def test_passes_count_where_no_steps_are_given(project: Path) -> None:
    both: dict[str, Value] = {f"{ARGUMENTS}.num-train-epochs": 3, f"{ARGUMENTS}.max-steps": 10}
    assert assignments(both) == ["method.budget.steps=10"]
    assert assignments({**both, f"{ARGUMENTS}.max-steps": -1}) == ["method.budget.epochs=3"]
    text = TOML.replace('recipe = "lora-fedavg"', "") + METHOD
    (project / "experiment.toml").write_text(text)
    assert at(experiment_of(project, {f"{ARGUMENTS}.num-train-epochs": 3}), "method.budget.epochs") == 3


def test_a_whole_table_as_flowertunes_projects_have_it_is_an_experiment(project: Path) -> None:
    (project / "pyproject.toml").write_text(FLOWERTUNE)
    experiment = experiment_of(project, config_of(project))
    assert experiment.backbone.ref == "builtin:tiny-llama"
    assert at(experiment, "method.trainable.rank") == 32
    assert (at(experiment, "method.budget.steps"), at(experiment, "method.budget.epochs")) == (10, None)
    assert at(experiment, "method.budget.schedule") == "constant"
    assert (experiment.federation.rounds, experiment.federation.cohort) == (200, 2)
    assert experiment.evaluation.which == "global"


def test_our_own_places_are_taken_as_the_command_line_takes_them(project: Path) -> None:
    config: dict[str, Value] = {
        "federation.rounds": 9,
        "method.trainable.targets": "q_proj,v_proj",
        "method.optimizer.lr": 3e-4,
        "backbone.gradient_checkpointing": True,
        "name": "two-sites",
        "seeds.seed": 5,
    }
    experiment = experiment_of(project, config)
    assert experiment.federation.rounds == 9
    assert at(experiment, "method.trainable.targets") == ("q_proj", "v_proj")
    assert at(experiment, "method.optimizer.lr") == 3e-4
    assert (experiment.name, experiment.seeds.seed) == ("two-sites", 5)


def test_set_comes_last_and_takes_several(project: Path) -> None:
    config: dict[str, Value] = {
        "num-server-rounds": 3,
        "set": 'federation.rounds=11 ; method.trainable.targets=["q_proj"];',
    }
    experiment = experiment_of(project, config)
    assert experiment.federation.rounds == 11
    assert at(experiment, "method.trainable.targets") == ("q_proj",)


def test_a_text_with_blanks_stays_one(project: Path) -> None:
    assert assignments({"task.text": "two words"}) == ['task.text="two words"']
    assert assignments({"task.text": ""}) == ['task.text=""']


@pytest.mark.parametrize(
    ("config", "hint"),
    [
        ({"num-server-round": 3}, "did you mean 'num-server-rounds'?"),
        ({"model.lora.peft-lora-rank": 3}, "did you mean 'model.lora.peft-lora-r'?"),
        ({"node": 3}, "did you mean 'nodes'?"),
        ({"federation.ruonds": 3}, "did you mean 'rounds'?"),
        ({"model.quantization": 3}, "expected 0, 4 or 8"),
        ({"model.quantization": True}, "expected 0, 4 or 8"),
        ({"model.lora.peft-use-dora": True}, "use_dora"),
        ({"strategy.fraction-train": 0.5}, "nodes = N"),
        ({"strategy.fraction-train": 1.5, "nodes": 2}, "at most 1"),
        ({"strategy.fraction-train": "half", "nodes": 2}, "not a number"),
        ({"num-server-rounds": "many"}, "federation.rounds"),
        ({"set": "rounds"}, "a.b=c"),
        ({"experiment": "../experiment.toml"}, "outside of its project"),
        ({"experiment": "/etc/passwd"}, "outside of its project"),
        ({"experiment": "other.toml"}, "no such experiment"),
    ],
)
def test_what_is_no_setting_is_one_line_with_the_way_out(project: Path, config: dict[str, Value], hint: str) -> None:
    with pytest.raises(CotuneError) as refused:
        experiment_of(project, config)
    assert refused.value.code is Code.CONFIG
    assert hint in str(refused.value)


def test_another_file_of_the_project_can_be_the_experiment(project: Path) -> None:
    (project / "other.toml").write_text(TOML.replace("rounds = 2", "rounds = 5"))
    assert experiment_of(project, {"experiment": "other.toml"}).federation.rounds == 5
    assert file_of(project, {}).name == "experiment.toml"


def test_the_run_config_of_a_project_is_flat_as_flower_hands_it_on(project: Path) -> None:
    (project / "pyproject.toml").write_text(
        "[tool.flwr.app.config]\nnodes = 2\n[tool.flwr.app.config.model.lora]\npeft-lora-r = 4\n"
        '[tool.flwr.app.config.train]\nsave-every-round = 5\ntraining-arguments.output-dir = ""\n'
    )
    config = config_of(project)
    assert config == {
        "nodes": 2,
        "model.lora.peft-lora-r": 4,
        "train.save-every-round": 5,
        "train.training-arguments.output-dir": "",
    }
    assert at(experiment_of(project, config), "method.trainable.rank") == 4


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (None, "no project here"),
        ("[project]\nname = 'x'\n", "not a Flower project"),
        ("[project", "not a Flower project"),
        ("[tool.flwr.app.config]\na = [1]\n", "no arrays"),
    ],
)
def test_a_folder_that_is_no_project_says_so(tmp_path: Path, text: str | None, hint: str) -> None:
    if text is not None:
        (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(CotuneError, match=hint) as refused:
        config_of(tmp_path)
    assert refused.value.code is Code.CONFIG
