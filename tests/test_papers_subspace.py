"""Subspace-Reg's folder: experiments resolve, and numbers are what we say they are."""

from __future__ import annotations

import math
import statistics
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import cotune as ct
from cotune import resolve
from cotune.cli.show import view
from cotune.core.seeds import torch_generator
from cotune.experiment import Experiment
from cotune.reproduce import paper
from cotune.task import Dirichlet, HellaSwag

SOURCE = "subspace_reg"
FOLDER = paper.folder(SOURCE)
NUMBERS = paper.expected(SOURCE)
TABLES = NUMBERS["hellaswag"]["rows"]
READINGS = ("roberta-paper-code", "roberta-paper-text", "smollm-paper-code", "smollm-paper-text")
TWINS = ("minilm-twin", "llama-twin")


def tables(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / f"{name}.toml").read_text("utf-8"))


def resolved(name: str) -> Experiment:
    return resolve.load(str(FOLDER / f"{name}.toml"))


def test_every_file_is_one_of_the_readings_or_a_twin() -> None:
    found = {path.stem for path in FOLDER.glob("*.toml")} - {"expected"}
    assert found == {*READINGS, *TWINS}
    readme = (FOLDER / "README.md").read_text("utf-8")
    assert all(f"`{name}.toml`" in readme for name in found)


@pytest.mark.parametrize("name", READINGS)
def test_a_reading_resolves_without_a_network(name: str) -> None:
    found = resolved(name)
    assert found.name == f"subspace-{name.replace('-paper', '')}"
    assert found.backbone.ref in NUMBERS["models"]
    assert Experiment.model_validate(found.resolved()).hash == found.hash
    plain = found.resolved()
    for table in ("method", "task", "backbone", "federation", "evaluation"):
        assert covers(plain[table], tables(name)[table]), table


def covers(found: Any, given: Any) -> bool:
    """Whether everything given is in what was found."""
    if isinstance(given, Mapping):
        return all(covers(found[key], value) for key, value in given.items())
    if isinstance(given, list):
        return len(found) == len(given) and all(covers(*both) for both in zip(found, given, strict=True))
    return bool(found == given)


def test_the_readings_differ_in_what_text_and_code_differ_in() -> None:
    for model, steps, lr, clip, cap in (("roberta", 4, 1e-4, 0.5, 15.0), ("smollm", 5, 2e-4, 1.0, 25.0)):
        code, text = (resolved(f"{model}-paper-{reading}") for reading in ("code", "text"))
        strengths = [
            {
                p.kind: next(v for v in p.model_dump(exclude={"kind"}).values() if isinstance(v, float))
                for p in e.method.penalties
            }
            for e in (code, text)
        ]
        assert strengths == [{"subspace": 0.05, "ridge": 1e-5, "basis": 0.01}, {"subspace": 0.1, "basis": 0.01}]
        assert (code.federation.cohort, text.federation.cohort) == (3, None)
        assert code.federation.rounds == text.federation.rounds == 20
        assert (code.method.budget.steps, code.method.budget.clip) == (steps, clip)
        assert code.method.optimizer == ct.optim.AdamW(lr=lr)
        assert (text.method.budget.epochs, text.method.optimizer) == (3, ct.optim.SGD(lr=2e-4))
        aggregators = [e.method.aggregator for e in (code, text)]
        assert aggregators[0] == ct.aggregate.ProductSVD(split="orthonormal-b", cap=cap, restore=True)
        assert aggregators[1] == ct.aggregate.ProductSVD(split="orthonormal-b")
        starts = [e.method.trainable.model_dump()["init"] for e in (code, text)]
        assert starts == ["peft", "orthonormal-b"]


@pytest.mark.parametrize("name", READINGS)
def test_the_task_is_hellaswag_in_the_papers_wording_with_the_head_of_its_model(name: str) -> None:
    task = resolved(name).task
    assert isinstance(task, HellaSwag)
    alpha = 0.3 if "code" in name else 0.5
    assert task.partition == Dirichlet(clients=10, alpha=alpha, by="activity_label", minimum=8)
    assert (task.data, task.limit, task.test_limit, task.wording) == ("Rowan/hellaswag", 8000, 1000, "paper")
    assert task.head == ("multiple-choice" if name.startswith("roberta") else "causal")


def numbers(name: str) -> dict[str, Any]:
    """Role -> what trains, on the published sizes."""
    shapes = NUMBERS["models"][resolved(name).backbone.ref]["shapes"]
    found = view(str(FOLDER / f"{name}.toml"), shapes_only=True, backbone=shapes).plan
    assert found is not None
    return {role: sum(e.numel for e in found.spec if e.role.value == role) for role in ("factor_a", "factor_b", "head")}


def test_lora_of_roberta_large_is_the_printed_3_56_million_with_the_pooler_that_multiple_choice_adapts() -> None:
    found = numbers("roberta-paper-code")
    layers, pooler = 24 * 8 * (4 * (1024 + 1024) + 2 * (1024 + 4096)), 8 * (1024 + 1024)
    assert found["factor_a"] + found["factor_b"] == layers + pooler == 3_555_328
    assert round(layers + pooler, -4) == NUMBERS["models"]["FacebookAI/roberta-large"]["lora_parameters"]
    assert round(layers, -4) != 3_560_000
    assert found["head"] == 1024 + 1


def test_lora_of_smollm_is_on_all_seven_linear_layers() -> None:
    each, found = 8 * (2 * (960 + 960) + 2 * (960 + 320) + 3 * (960 + 2560)), numbers("smollm-paper-text")
    assert (found["factor_a"] + found["factor_b"], found["head"]) == (32 * each, 0)


def test_the_tables_are_of_the_released_seeds_and_divide_by_three() -> None:
    row = TABLES["RoBERTa-large"]["Subspace-Reg"]
    for which in ("best", "final"):
        seeds = row[f"{which}_of_seeds"]
        assert round(statistics.mean(seeds), 3) == row[which]
        assert round(statistics.pstdev(seeds), 3) == row[f"{which}_pm"]
        assert round(statistics.stdev(seeds), 3) != row[f"{which}_pm"]
    assert sum(NUMBERS["hellaswag"]["sizes"]) == 8000
    assert all(size >= 8 for size in NUMBERS["hellaswag"]["sizes"])


def test_roberta_is_barely_off_its_start_and_two_rows_are_not_told_apart() -> None:
    guess = math.log(4)
    assert NUMBERS["hellaswag"]["chance_loss"] == pytest.approx(guess, abs=1e-4)
    assert all(0 < guess - row["loss"] < 0.024 for row in TABLES["RoBERTa-large"].values())
    assert 20 * 3 * 30 == 1_800 < 8_000 / 4
    low, high = (end / 100 for end in paper.wilson(33.4, 1000))
    assert (round(low, 3), round(high, 3)) == (0.305, 0.364)
    assert low < TABLES["RoBERTa-large"]["FedSVD"]["best"] < high < TABLES["RoBERTa-large"]["Subspace-Reg"]["best"]
    assert TABLES["SmolLM-360M"]["Subspace-Reg"]["best"] < TABLES["SmolLM-360M"]["FedAvg"]["best"]


def test_the_squares_of_the_printed_overlaps_and_the_sevenfold_lengths_are_as_the_readme_says() -> None:
    rows = TABLES["RoBERTa-large"]
    assert (round(rows["FedAvg"]["overlap"] ** 2, 3), round(rows["SVD"]["overlap"] ** 2, 3)) == (0.918, 0.982)
    last = {name: row["norm"][-1] for name, row in NUMBERS["trajectory"].items() if name != "rounds"}
    assert max(last.values()) / min(last.values()) == pytest.approx(7.08, abs=0.01)
    steps = NUMBERS["trajectory"]["rounds"]
    assert all(len(column) == len(steps) for name in last for column in NUMBERS["trajectory"][name].values())


def after_random_signs(side: int, steps: int, lr: float) -> float:
    """‖Q_gᵀ Q_k‖ / √8 between an orthonormal B and the same after steps of random signs: no data, no loss."""
    generator = torch_generator(0)
    start = torch.linalg.qr(torch.randn(side, 8, generator=generator, dtype=torch.float64)).Q
    signs = 2.0 * torch.randint(0, 2, (steps, side, 8), generator=generator).double() - 1
    moved = torch.linalg.qr(start + lr * signs.sum(0)).Q
    return float(torch.linalg.matrix_norm(start.mT @ moved)) / math.sqrt(8)


def test_the_printed_overlaps_need_no_data() -> None:
    for model, side, steps, lr in (("RoBERTa-large", 1024, 4, 1e-4), ("SmolLM-360M", 960, 5, 2e-4)):
        printed = TABLES[model]["Subspace-Reg"]["overlap"]
        assert after_random_signs(side, steps, lr) == pytest.approx(printed, abs=2e-5)
    assert after_random_signs(1024, 4, 1e-2) < 0.9


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_is_synthetic_and_says_so_and_has_the_released_method(name: str) -> None:
    path = FOLDER / f"{name}.toml"
    found = resolve.load(str(path))
    comment = path.read_text("utf-8").split("name =")[0]
    assert "synthetic" in comment
    assert ("NOT multiple choice" in comment) == (found.task.kind == "classify")
    theirs = tables("roberta-paper-code" if name == "minilm-twin" else "smollm-paper-code")["method"]
    ours = tables(name)["method"]
    assert {key: ours[key] for key in ("penalties", "trainable", "aggregator")} == {
        key: theirs[key] for key in ("penalties", "trainable", "aggregator")
    }


@pytest.mark.parametrize(
    ("name", "sets"),
    [
        ("llama-twin", ("task.rows=8", "task.test_rows=1", "task.clients=['passkey','counter']")),
        ("minilm-twin", ("backbone.ref='random:bert?layers=1&hidden=16&heads=2'", "task.test_limit=16")),
    ],
)
def test_a_twin_runs(name: str, sets: tuple[str, ...], tmp_path: Path) -> None:
    small = ("method.budget.steps=1", "evaluation.every=1", *sets)
    run = ct.run(resolve.load(str(FOLDER / f"{name}.toml"), rounds=1, sets=small), out=tmp_path)
    (record,) = run.rounds
    assert len(record.cohort.accepted) == run.about["experiment"]["federation"]["cohort"]
    assert record.global_metrics["accuracy"].chance == pytest.approx(0.25 if name == "llama-twin" else 0.5, abs=0.2)
    assert (run.folder / "adapter" / "adapter_config.json").exists()
