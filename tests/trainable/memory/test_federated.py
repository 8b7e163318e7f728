"""Rules as theta: federated runs of a second on a two-layer decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tiny import experiment, play
from torch import Tensor

from cotune.checkpoint import unpack
from cotune.core.spec import Role
from cotune.core.state import digest
from cotune.store import Checkpoints, Run

DECODER = {"backbone__ref": "random:llama?layers=2&hidden=16&heads=2&kv_heads=1", "backbone__window": 8}
ONE_CLIENT = {"kind": "iid", "clients": 1}
RULES = "method.trainable.rules."


def final(run: Run) -> dict[str, Tensor]:
    found = Checkpoints(run.folder / "checkpoints").latest()
    assert found is not None
    return dict(unpack(found[1])[0].theta)


def own(run: Run, client: str) -> dict[str, Tensor]:
    newest = max((run.folder / "clients" / client).glob("*.safetensors"))
    named = safetensors.torch.load_file(newest)
    return {name.removeprefix("personal/"): tensor for name, tensor in named.items() if name.startswith("personal/")}


@pytest.mark.parametrize("recipe", ["fednl", "fednl-paper"])
def test_one_client_is_local_training(recipe: str, tmp_path: Path) -> None:
    sets: dict[str, Any] = {**DECODER, "task__partition": ONE_CLIENT, "federation": {"rounds": 3}}
    sets["evaluation"] = {"which": "none"}
    together = play(experiment(recipe, **sets), tmp_path)
    alone = play(experiment(recipe, method__share="none", **sets), tmp_path)
    assert digest(final(together)) == digest(own(alone, "client-00"))


def test_a_learning_rate_of_zero_changes_nothing(tmp_path: Path) -> None:
    still = experiment("fednl", method__optimizer__lr=0.0, **DECODER)
    assert play(still, tmp_path).theta_sha256 == still.blueprint().build().start.sha256()


@pytest.mark.parametrize("share", ["theta", "memory"])
def test_what_travels_is_what_share_says_and_the_rest_stays_with_its_client(share: str, tmp_path: Path) -> None:
    whole = experiment("fednl", method__share=share, federation={"rounds": 2}, **DECODER)
    run, setup = play(whole, tmp_path), whole.blueprint().build()
    roles = {setup.spec[name].role for name in final(run)}
    paid = {kind for line in run.ledger if line.purpose == "train" for kind in line.payload_bytes}
    if share == "theta":
        assert roles == {Role.RULE, Role.FACTOR_A, Role.FACTOR_B, Role.HEAD}
        assert {"rule", "factor_a", "factor_b", "head"} <= paid
    else:
        assert roles == {Role.RULE}
        assert not paid & {"factor_a", "factor_b", "head"}
        kept = [own(run, client) for client in ("domain-0", "domain-1") if (run.folder / "clients" / client).exists()]
        assert len(kept) == 2
        assert {setup.spec[name].role for name in kept[0]} == {Role.FACTOR_A, Role.FACTOR_B, Role.HEAD}
        name = next(name for name in kept[0] if "lora_B" in name)
        assert not torch.equal(kept[0][name], kept[1][name])


@pytest.mark.parametrize(
    "ablation",
    [
        {f"{RULES}rule": "hebbian"},
        {f"{RULES}gate": "constant"},
        {"method.trainable.factors": False},
        {f"{RULES}rule": "titans", f"{RULES}shift": True},
    ],
    ids=["no delta", "no gate", "LoRA frozen", "with momentum"],
)
def test_the_ablations_of_the_paper_run_and_move_every_rule(ablation: dict[str, Any], tmp_path: Path) -> None:
    whole = experiment("fednl", method__optimizer__lr=0.01, **DECODER, **ablation)
    run, start = play(whole, tmp_path), whole.blueprint().build().start
    moved = final(run)
    assert set(moved) == set(start)
    assert all(not torch.equal(moved[name], start[name]) for name in start)


def test_rules_learn_as_many_times_faster_as_they_are_told_and_nothing_else_does(tmp_path: Path) -> None:
    """Adam's first step is lr · sign(g), whatever the gradient."""
    sets: dict[str, Any] = {**DECODER, "method__budget": {"steps": 1, "batch": 4}, "federation": {"rounds": 1}}
    sets |= {"task__partition": ONE_CLIENT, "evaluation": {"which": "none"}}
    sets |= {f"{RULES}gate": "sigmoid"}  # a closed gate lets no gradient through to what it hides
    whole = experiment("fednl", method__optimizer__lr=1e-3, method__optimizer__rule_rate=7.0, **sets)
    start, moved = whole.blueprint().build().start, final(play(whole, tmp_path))
    steps = {name: float((moved[name] - start[name]).abs().max()) for name in start}
    rules = [step for name, step in steps.items() if ".memory." in name]
    others = [step for name, step in steps.items() if "lora_B" in name]
    assert rules == pytest.approx([7e-3] * len(rules), rel=0.01)
    assert others == pytest.approx([1e-3] * len(others), rel=0.01)


def test_the_gates_of_every_round_are_in_its_record(tmp_path: Path) -> None:
    run = play(experiment("fednl", method__optimizer__lr=0.01, **DECODER), tmp_path)
    for record in run.rounds:
        assert {name for name in record.diagnostics if name.startswith("gate/")} == {"gate/0", "gate/1"}
    last = final(run)
    name = next(name for name in last if name.endswith("layers.1.self_attn.memory.gate"))
    assert run.rounds[-1].diagnostics["gate/1"] == pytest.approx(float(last[name].tanh().abs().mean()))
