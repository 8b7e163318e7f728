"""The papers' folders: every experiment resolves, and the arithmetic behind their numbers is ours too."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from cotune import resolve
from cotune.cli.show import view
from cotune.estimate import estimate
from cotune.experiment import Experiment
from cotune.reproduce import REPRODUCTIONS, paper

FEDNL = Path(__file__).parents[1] / "papers" / "fednl"
FILES = sorted(path.name for path in FEDNL.glob("*.toml") if path.name != "expected.toml")
NUMBERS = tomllib.loads((FEDNL / "expected.toml").read_text())
LLAMA = NUMBERS["models"]["meta-llama/Llama-3.2-1B"]["shapes"]
QWEN = NUMBERS["models"]["Qwen/Qwen2.5-1.5B"]["shapes"]


def shown(source: str, backbone: str, *sets: str) -> dict[str, Any]:
    """What `cotune show SOURCE --backbone REF --shapes-only --json` prints."""
    found: dict[str, Any] = json.loads(
        view(source, shapes_only=True, backbone=backbone, task="recall", rounds=2, sets=sets).json()
    )
    return found


def payload(found: dict[str, Any], direction: str) -> int:
    """Bytes of one training message, without its framing."""
    messages = found["rounds"][0]["messages"]
    (message,) = [m for m in messages if (m["purpose"], m["direction"]) == ("train", direction)]
    return sum(message["payload_bytes"].values())


@pytest.mark.parametrize("file", FILES)
def test_every_experiment_of_the_paper_resolves_without_a_network(file: str) -> None:
    found = resolve.load(str(FEDNL / file))
    assert found.name == f"fednl-{file.removesuffix('.toml')}"
    assert Experiment.model_validate(found.resolved()).hash == found.hash
    assert found.backbone.ref in NUMBERS["models"]


@pytest.mark.parametrize("file", ["needle.toml", "mmlu.toml"])
def test_it_is_shown_from_the_published_sizes_alone(file: str) -> None:
    found = paper.shapes(resolve.load(str(FEDNL / file)), NUMBERS)
    assert view(str(FEDNL / file), shapes_only=True, backbone=found.backbone.ref).plan is not None


def test_every_file_that_a_reproduction_names_is_there() -> None:
    for reproduction in REPRODUCTIONS.values():
        for file in reproduction.files:
            tree = tomllib.loads((paper.folder(reproduction.source) / file).read_text("utf-8"))
            assert tree["backbone"]["ref"] in paper.expected(reproduction.source)["models"]


def test_bytes_of_the_published_llama_are_those_of_the_arithmetic() -> None:
    found = shown("fednl-paper", LLAMA)
    trained = found["trained"]
    assert trained["rule"]["numbers"] == 32_768 == 16 * (512 * 3 + 512)
    assert trained["factor_a"]["numbers"] + trained["factor_b"]["numbers"] == 2_359_296
    both = payload(found, "up") + payload(found, "down")
    assert both == 2 * 4 * 2_392_064
    assert both * 14 == 267_911_168  # 7 clients × 2 rounds: the 0.268 GB of theta

    rules = shown("fednl-paper", LLAMA, "method.share=memory")
    both = payload(rules, "up") + payload(rules, "down")
    assert both == 262_144  # the paper's 0.26 MB: float32, both ways
    assert both * 14 == 3_670_016  # the paper's 3.6 MB


def test_bytes_of_lora_on_every_layer_are_the_papers_one_way_in_half_precision() -> None:
    found = shown("lora-fedavg", LLAMA, "method.trainable.rank=16", "method.trainable.targets=all-linear")
    numbers = sum(role["numbers"] for role in found["trained"].values())
    assert numbers == 11_272_192 == NUMBERS["bytes"]["lora_parameters"]
    assert payload(found, "up") == 4 * numbers
    assert round(2 * numbers / 1e6, 1) == NUMBERS["bytes"]["lora_mb"]
    assert round((payload(found, "up") + payload(found, "down")) * 14 / 1e9, 2) == 1.26
    assert numbers / 32_768 == 344  # like for like
    assert int(NUMBERS["bytes"]["lora_mb"] / NUMBERS["bytes"]["memory_mb"]) == 86  # as printed


def test_bytes_of_the_published_qwen_are_those_of_the_arithmetic() -> None:
    found = shown("fednl-paper", QWEN, "method.trainable.rank=32")
    assert found["trained"]["rule"]["numbers"] == 28_672 == 28 * (256 * 3 + 256)
    assert found["trained"]["factor_a"]["numbers"] + found["trained"]["factor_b"]["numbers"] == 5_963_776


def test_the_papers_averages_are_those_of_their_columns() -> None:
    for row in NUMBERS["needle"]["rows"].values():
        assert row["average"] == pytest.approx(sum(row["clients"]) / 7, abs=0.06)
    for rows in NUMBERS["mmlu"]["rows"].values():
        for *clients, average in rows.values():
            assert average == pytest.approx(sum(clients) / 5, abs=0.06)
    assert sum(NUMBERS["mmlu"]["tests"]) == NUMBERS["mmlu"]["n"]


def test_the_papers_needles_come_from_two_test_sets() -> None:
    rows = NUMBERS["needle"]["rows"]
    for name, row in rows.items():
        questions = row["n"] // 7
        parts = [value / 100 * questions for value in row["clients"]]
        assert all(abs(part - round(part)) < 0.02 for part in parts), name
    short = {name for name, row in rows.items() if any(value % 4 for value in row["clients"])}
    assert short == {name for name, row in rows.items() if row["n"] == 105}
    assert rows["FedAvg"] == rows["FedSSI"]


def test_chance_is_within_the_interval_of_the_papers_best_needle() -> None:
    best = NUMBERS["needle"]["rows"]["FedNL"]
    low, high = paper.wilson(best["average"], best["n"])
    assert low < NUMBERS["needle"]["chance"] < best["average"] < high


def test_a_deep_model_is_estimated_exactly_from_two_shallow_ones() -> None:
    small = Experiment.model_validate(
        {
            "method": resolve.recipe("fednl-paper"),
            "task": {"kind": "recall"},
            "backbone": {"ref": "random:llama?layers=5&hidden=64&heads=4&kv_heads=2"},
        }
    )
    found = paper.deep(small.method, small.backbone, "causal", (2, 40))
    assert found.whole == estimate(small.method, small.backbone, "causal", 0, (2, 40))
    assert found.whole.weight_bytes < found.recomputed_bytes < found.whole.training_bytes


def test_what_the_published_setting_needs_is_said_before_anything_is_fetched() -> None:
    lines = list(paper.needed(paper.experiment("fednl", "needle.toml"), NUMBERS))
    assert lines[0] == "fednl-needle: meta-llama/Llama-3.2-1B, 1.24 G parameters, 2.39 M numbers train"
    assert "8 × 4,096 tokens" in lines[1]
    assert "for 1,316 client-steps" in lines[2]  # 2 rounds · 7 clients · ⌈750 / 8⌉
