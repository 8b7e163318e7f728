"""Runs on rows in published schemas, with every head: they train, are scored, and leave what loads elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from published import hellaswag, many, mmlu, on_disk, prompted
from typed import typing

import cotune as ct
from cotune import resolve
from cotune.backbone.quiet import quiet
from cotune.core.errors import CotuneError
from cotune.store import Run

SMALL = (
    "method.budget.steps=1",
    "method.budget.batch=2",
    "evaluation.every=1",
    "task.partition={kind='iid',clients=2}",
)
DECODER, ENCODER = (f"random:{arch}?layers=2&hidden=16&heads=2&positions=512" for arch in ("llama", "roberta"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every data set as a local folder of files in its own schema."""
    folder = tmp_path_factory.mktemp("published")
    on_disk(folder, "Rowan/hellaswag", {"train": many(hellaswag, 24), "validation": many(hellaswag, 8)})
    asked = [mmlu(number, subject) for subject in ("anatomy", "virology", "marketing") for number in range(6)]
    on_disk(folder, "cais/mmlu:all", {"test": asked[:9], "validation": asked[9:], "dev": asked[:3]})
    squad = "rajpurkar/squad"
    on_disk(folder, squad, {"train": many(prompted, 12, squad), "validation": many(prompted, 3, squad)})
    rte = "aps/super_glue:rte"
    on_disk(folder, rte, {"train": many(prompted, 12, rte), "validation": many(prompted, 5, rte)})
    return folder


def trained(row: str, task: str, backbone: str, out: Path, *sets: str) -> Run:
    return ct.run(resolve.load(row, task=task, backbone=backbone, rounds=1, sets=(*SMALL, *sets)), out=out)


def metrics(run: Run) -> dict[str, Any]:
    (record,) = run.rounds
    assert len(record.cohort.accepted) == len(record.cohort.selected) > 0
    return dict(record.global_metrics)


@pytest.mark.parametrize("row", ["lora-fedavg", "fedspzo"])
def test_an_encoder_chooses_endings_by_backpropagation_and_by_scalars(row: str, root: Path, tmp_path: Path) -> None:
    found = metrics(trained(row, f"hellaswag:{root}/Rowan/hellaswag", ENCODER, tmp_path, "task.form=choice"))
    assert (found["accuracy"].n, found["accuracy"].chance) == (8, 0.25)
    assert abs(found["loss"].value - 1.386) < 0.2


def test_an_adapter_of_multiple_choice_loads_in_plain_peft_and_merged_in_plain_transformers(
    root: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForMultipleChoice, AutoTokenizer

    task, fast = f"hellaswag:{root}/Rowan/hellaswag", "method.optimizer.lr=0.05"
    run = trained("lora-fedavg", task, ENCODER, tmp_path, "task.form=choice", fast)
    adapter, merged = tmp_path / "adapter", tmp_path / "merged"
    for folder, option in ((adapter, "--with-backbone"), (merged, "--merge")):
        assert typing(capfd)("export", str(run.folder), str(folder), option).status == 0
    card = (adapter / "README.md").read_text("utf-8")
    assert 'pipeline_tag: "multiple-choice"' in card
    assert "AutoModelForMultipleChoice" in card
    with quiet(), torch.no_grad():
        tokenizer = AutoTokenizer.from_pretrained(merged)
        pairs = tokenizer(["a context"] * 2, ["an ending", "another"], padding=True, return_tensors="pt")
        given = {name: tensor[None] for name, tensor in pairs.items()}
        plain = AutoModelForMultipleChoice.from_pretrained(adapter / "backbone")
        before = plain.eval()(**given).logits
        adapted = PeftModel.from_pretrained(plain, adapter).eval()(**given).logits
        whole = AutoModelForMultipleChoice.from_pretrained(merged).eval()(**given).logits
    assert adapted.shape == (1, 2)
    torch.testing.assert_close(adapted, whole, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(adapted, before, atol=1e-3)


@pytest.mark.parametrize("row", ["lora-fedavg", "fedspzo", "fednl"])
def test_a_decoder_ranks_endings_by_backpropagation_by_scalars_and_with_a_memory(
    row: str, root: Path, tmp_path: Path
) -> None:
    found = metrics(trained(row, f"hellaswag:{root}/Rowan/hellaswag", DECODER, tmp_path))
    assert {name for name, metric in found.items() if metric.chance == 0.25} == {
        "accuracy",
        "accuracy_sum",
        "accuracy_byte",
    }
    assert found["tied"].value == 0


def test_mmlu_is_scored_by_domain(root: Path, tmp_path: Path) -> None:
    run = ct.run(
        resolve.load(
            "lora-fedavg",
            task=f"mmlu:{root}/cais/mmlu/all",
            backbone=DECODER,
            rounds=1,
            sets=("method.budget.steps=1", "method.budget.batch=2", "evaluation.every=1", "task.protocol=clean"),
        ),
        out=tmp_path,
    )
    (record,) = run.rounds
    assert {*record.cells["accuracy"]} == {"stem", "medical-psychology"}
    assert record.global_metrics["letter_mass"].value < 0.1
    assert {*record.cohort.accepted} == {"humanities", "medical-psychology", "stem"}


def test_an_answer_is_written_and_scored_against_every_right_one(root: Path, tmp_path: Path) -> None:
    task = f"prompted:{root}/rajpurkar/squad"
    found = metrics(trained("lora-fedavg", task, DECODER, tmp_path, "task.dataset=squad", "task.answer_tokens=3"))
    assert {"loss", "f1", "exact", "cut_short"} <= {*found}
    assert (found["f1"].n, found["cut_short"].value) == (3, 1.0)


def test_label_words_that_a_tokenizer_spells_are_refused_at_a_mask_and_ranked_behind_a_prompt(
    root: Path, tmp_path: Path
) -> None:
    task, name = f"prompted:{root}/aps/super_glue/rte", "task.dataset=rte"
    assert metrics(trained("lora-fedavg", task, DECODER, tmp_path, name))["accuracy"].chance == 0.6
    with pytest.raises(CotuneError, match="label words are not one token each"):
        trained("lora-fedavg", task, ENCODER, tmp_path, name, "task.form=masked")


def test_data_show_says_which_splits_are_whose_and_what_each_client_is_about(
    root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = typing(capfd)("data", "show", f"{root}/cais/mmlu/all", "--set", "protocol=paper").out
    assert "task mmlu, from columns question, subject, choices, answer" in said
    assert "clients from test\ntest from validation and dev\n" in said
    assert "guessing scores accuracy 0.25" in said
    (stem,) = (line for line in said.splitlines() if line.startswith("stem"))
    assert stem.split()[1:4] == ["5", "+", "1"]
    assert "1 topics, anatomy 6" in stem
    said = typing(capfd)("data", "show", f"{root}/Rowan/hellaswag", "--set", SMALL[-1].removeprefix("task.")).out
    assert "clients from train\ntest from validation\n" in said
    assert "3 topics, " in said
    assert "gate" not in said.replace("Opening gates", "")


def test_a_task_that_knows_its_data_is_named_alone() -> None:
    assert resolve.task("mmlu") == ct.task.MMLU()
    assert resolve.task("mmlu?protocol=paper") == ct.task.MMLU(protocol="paper")
    assert resolve.task("hellaswag?wording=paper&form=choice") == ct.task.HellaSwag(wording="paper", form="choice")
    assert resolve.task("prompted?dataset=rte&shots=16").model_dump()["data"] == "aps/super_glue:rte"
    assert resolve.task("mmlu:./mine.jsonl").model_dump()["data"] == "./mine.jsonl"
