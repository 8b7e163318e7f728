"""Limit cases of a round, bit for bit: what must be the same thing by another name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tiny import assert_predicted, experiment, play

import cotune as ct
from cotune.backbone.bind import bind
from cotune.checkpoint import unpack
from cotune.client import Client
from cotune.core.state import Theta, digest
from cotune.core.view import View
from cotune.diagnose.flops import counting
from cotune.engine import InlineEngine
from cotune.laws import ListJournal
from cotune.objective import StepObjective, step_flops
from cotune.round import server_round
from cotune.server import Desk
from cotune.setup import Setup
from cotune.store import Checkpoints, Run

ONE_CLIENT = {"kind": "iid", "clients": 1}
FEW = {"rounds": 3}


def final_theta(run: Run) -> Theta:
    found = Checkpoints(run.folder / "checkpoints").latest()
    assert found is not None
    return unpack(found[1])[0].theta


def own_tensors(run: Run, client: str) -> dict[str, torch.Tensor]:
    """What a client that shares nothing has on its disk."""
    path = run.folder / "clients" / client / "round-00003.safetensors"
    named = safetensors.torch.load_file(path)
    return {name.removeprefix("personal/"): tensor for name, tensor in named.items() if name.startswith("personal/")}


def desk_of(experiment_: ct.Experiment, folder: Path) -> tuple[Setup, Desk, InlineEngine]:
    setup = experiment_.blueprint().build()
    engine = InlineEngine(setup, folder)
    return setup, Desk(setup, {info.id: info for info in engine.clients()}, ListJournal()), engine


@pytest.mark.parametrize("recipe", ["lora-fedavg", "fedavg", "fedprox"])
def test_one_client_is_local_training(recipe: str, tmp_path: Path) -> None:
    sets: dict[str, Any] = {"task__partition": ONE_CLIENT, "federation": FEW, "evaluation": {"which": "none"}}
    if recipe == "fedprox":
        sets["method__penalties"] = [{"kind": "proximal", "mu": 0.0}]
    together = experiment(recipe, **sets)
    alone = experiment(recipe, **{**sets, "method__share": "none", "method__penalties": []})
    federated, local = final_theta(play(together, tmp_path)), own_tensors(play(alone, tmp_path), "client-00")
    assert digest(federated) == digest(local)
    assert digest(federated) != digest(together.blueprint().build().start)


def test_fedprox_without_its_term_is_fedavg(tmp_path: Path) -> None:
    proximal = experiment("fedprox", method__penalties=[{"kind": "proximal", "mu": 0.0}])
    strong = experiment("fedprox", method__penalties=[{"kind": "proximal", "mu": 10.0}])
    plain = play(experiment("lora-fedavg"), tmp_path).theta_sha256
    assert play(proximal, tmp_path).theta_sha256 == plain
    assert play(strong, tmp_path).theta_sha256 != plain


@pytest.mark.parametrize("recipe", ["lora-fedavg", "fedavg", "fedprox"])
def test_a_learning_rate_of_zero_changes_nothing(recipe: str, tmp_path: Path) -> None:
    still = experiment(recipe, method__optimizer__lr=0.0)
    assert play(still, tmp_path).theta_sha256 == still.blueprint().build().start.sha256()


def test_lora_fedavg_warm_starts_from_the_aggregated_factors(tmp_path: Path) -> None:
    setup, desk, engine = desk_of(experiment(), tmp_path)
    first = server_round(desk, desk.opening(), engine).state
    assert first.theta.sha256() != setup.start.sha256()
    idle = setup.method.model_copy(update={"optimizer": ct.optim.AdamW(lr=0.0)})
    still = replace(setup, method=idle)
    second = server_round(replace(desk, setup=still), first, InlineEngine(still, tmp_path)).state
    assert second.theta.sha256() == first.theta.sha256()


def test_weights_follow_the_rows_unless_uniform_is_asked_for(tmp_path: Path) -> None:
    sizes = {"kind": "sizes", "sizes": [1, 3]}
    by_rows = play(experiment(task__partition=sizes, federation=FEW), tmp_path).rounds[0].weights
    uniform = {"rounds": 3, "weighting": "uniform"}
    by_head = play(experiment(task__partition=sizes, federation=uniform), tmp_path).rounds[0].weights
    rows = {i.id: i.rows for i in experiment(task__partition=sizes).blueprint().build().clients}
    assert by_rows == {client: n / sum(rows.values()) for client, n in rows.items()}
    assert set(by_head.values()) == {0.5}


def test_scaffold_keeps_control_variates_that_sum_to_the_servers(tmp_path: Path) -> None:
    run = play(experiment("scaffold", federation={"rounds": 4, "cohort": 2}, evaluation={"which": "all"}), tmp_path)
    found = Checkpoints(run.folder / "checkpoints").latest()
    assert found is not None
    control = unpack(found[1])[0].aux
    total: dict[str, torch.Tensor] = {}
    for client in (run.folder / "clients").iterdir():
        path = max(client.glob("*.safetensors"), key=lambda path: path.stem[-5:])
        for name, tensor in safetensors.torch.load_file(path).items():
            key = name.removeprefix("private/scaffold/")
            if key != name:
                total[key] = total.get(key, torch.zeros_like(tensor).double()) + tensor.double()
    for name, tensor in total.items():
        torch.testing.assert_close(control[name].double(), tensor / 4, rtol=1e-4, atol=1e-7)
    assert any(bool(tensor.any()) for tensor in control.values())


ROWS: dict[str, dict[str, Any]] = {
    "local": {},
    "lora-fedavg": {"federation": {"rounds": 3, "cohort": 2, "groups": [{"match": "*1", "budget": {"epochs": 1}}]}},
    "fedprox": {"evaluation": {"which": "all", "rows": 8}},
    "fedavg": {"method__downlink": "changed"},
    "scaffold": {"method__trainable": {"kind": "lora", "rank": 3, "head": "personal"}},
    "fednl": {"backbone__ref": "random:llama?layers=2&hidden=16&heads=2&kv_heads=1", "backbone__window": 8},
    "fednl-paper": {"backbone__ref": "random:gpt2?layers=1&hidden=16&heads=2", "method__share": "memory"},
}


@pytest.mark.parametrize(
    ("recipe", "sets"),
    [
        *ROWS.items(),
        ("lora-fedavg", {"method__trainable": {"kind": "probes:Alternating"}, "method__downlink": "changed"}),
        ("lora-fedavg", {"method__trainable": {"kind": "lora", "train": "B"}}),
        ("lora-fedavg", {"method__aggregator": {"kind": "probes:IntoBase"}}),
    ],
)
def test_every_message_costs_what_was_predicted_from_shapes_alone(
    recipe: str, sets: dict[str, Any], tmp_path: Path
) -> None:
    whole = experiment(recipe, **sets)
    plan = whole.blueprint().sketch(whole.task.load(whole.seeds))
    run = play(whole, tmp_path)
    assert_predicted(run, plan)


@pytest.mark.parametrize("arch", ["bert", "llama"])
def test_gradient_checkpointing_changes_memory_and_no_tensor(arch: str, tmp_path: Path) -> None:
    ref = f"random:{arch}?layers=2&hidden=16&heads=2"
    kept = experiment(backbone={"ref": ref})
    again = experiment(backbone={"ref": ref, "gradient_checkpointing": True})
    first, second = final_theta(play(kept, tmp_path)), final_theta(play(again, tmp_path))
    start = kept.blueprint().build().start
    for name, tensor in first.items():
        torch.testing.assert_close(second[name], tensor, rtol=0, atol=1e-6)
        assert not torch.equal(tensor, start[name])


@pytest.mark.parametrize("arch", ["llama", "qwen2", "opt", "gpt2", "roberta", "bert"])
def test_every_architecture_trains_by_lora_and_learns_its_rows(arch: str, tmp_path: Path) -> None:
    run = play(
        experiment(
            backbone={"ref": f"random:{arch}?layers=1&hidden=16&heads=2"},
            method__optimizer={"kind": "adamw", "lr": 0.03},
            method__budget={"steps": 20, "batch": 16},
            federation={"rounds": 1},
            evaluation={"which": "global", "rows": 8},
        ),
        tmp_path,
    )
    (record,) = run.rounds
    assert record.abandoned is None
    assert record.train_loss is not None
    assert record.train_loss < 0.68


def test_a_bfloat16_backbone_trains_float32_tensors(tmp_path: Path) -> None:
    for recipe in ("lora-fedavg", "fedavg"):
        run = play(experiment(recipe, backbone__dtype="bfloat16"), tmp_path)
        assert {tensor.dtype for tensor in final_theta(run).values()} == {torch.float32}
        assert run.rounds[-1].abandoned is None


@pytest.mark.parametrize("arch", ["llama", "opt", "gpt2", "bert"])
def test_flops_counted_on_one_row_are_those_of_the_whole_step(arch: str, tmp_path: Path) -> None:
    whole = experiment(backbone={"ref": f"random:{arch}?layers=2&hidden=16&heads=2"})
    setup = whole.blueprint().build()
    client = Client("domain-0", setup, tmp_path)
    own, scope = client.fresh, setup.method.trainable.scope(setup.spec, 1)
    view = View(1, "domain-0", own.theta, own.personal, {}, own.theta, {}, setup.seeds, setup.spec, scope)
    with bind(setup.backbone.model, view.tensors, setup.spec) as bound:
        batches = (client.batch((0, 1, 2, 3, 4)), client.batch((5, 6)))
        objective = StepObjective(bound, setup.task, (), view, batches)
        state = setup.method.optimizer.init(view)
        with counting() as counter:
            setup.method.optimizer.step(view, state, objective)
        assert step_flops(objective, setup.method.optimizer, state, setup.meter) == counter.get_total_flops() > 0


def test_a_record_adds_the_flops_of_its_clients(tmp_path: Path) -> None:
    short, long = (play(experiment(method__budget={"steps": n, "batch": 4}), tmp_path).rounds for n in (1, 3))
    assert all(2 * few.flops < many.flops < 4 * few.flops for few, many in zip(short, long, strict=True))
