"""Language from data to report: perplexity, forgetting, the limit cases, and the bytes of every message."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
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
from cotune.core.change import Base
from cotune.core.errors import CotuneError
from cotune.core.state import digest
from cotune.core.view import View
from cotune.diagnose.flops import counting
from cotune.engine import InlineEngine
from cotune.laws import ListJournal
from cotune.objective import StepObjective, batch_order, step_flops
from cotune.server import Desk, general_loss
from cotune.store import Checkpoints, Run
from cotune.task.sft import NOTHING

LLAMA = "random:llama?layers=1&hidden=16&heads=2"
TEXT = {"kind": "text", "data": "synth:prose?clients=3&rows=48&sentences=2", "max_tokens": 48}
SFT = {"kind": "sft", "data": "synth:instructions?clients=3&rows=60", "max_tokens": 64}
GENERAL = "synth:prose?rows=24&seed=9&sentences=1"


def language(recipe: str = "lora-fedavg", task: Mapping[str, Any] = SFT, **sets: Any) -> ct.Experiment:
    return experiment(recipe, backbone__ref=LLAMA, task=dict(task), **sets)


def checkpoint(run: Run) -> Any:
    found = Checkpoints(run.folder / "checkpoints").latest()
    assert found is not None
    return unpack(found[1])[0]


@pytest.mark.parametrize("task", [TEXT, SFT], ids=["text", "sft"])
def test_perplexity_is_that_of_all_tokens_and_guessing_is_beside_it(task: dict[str, Any], tmp_path: Path) -> None:
    run = play(language(task=task, evaluation={"which": "all"}), tmp_path)
    last = run.rounds[-1]
    rows = run.scores(last.round)
    metric = last.global_metrics["perplexity"]
    assert metric.value == pytest.approx(math.exp(sum(rows["nll"]) / sum(rows["tokens"])), rel=1e-9)
    assert metric.low is not None
    assert metric.high is not None
    assert metric.low < metric.value < metric.high
    assert (metric.n, metric.chance) == (len(rows["nll"]), 263.0)
    assert rows["loss"] == pytest.approx([a / b for a, b in zip(rows["nll"], rows["tokens"], strict=True)], rel=1e-6)
    for client in last.client_metrics.values():
        own, nll, tokens = (client[name] for name in ("perplexity", "nll", "tokens"))
        assert own.federated is not None
        assert nll.federated is not None
        assert tokens.federated is not None
        assert own.federated == pytest.approx(math.exp(nll.federated / tokens.federated))
        assert own.n == client["loss"].n > 0
        if own.local is not None:
            assert own.drop == pytest.approx(own.local - own.federated)


@pytest.mark.parametrize("task", [TEXT, SFT], ids=["text", "sft"])
def test_a_tiny_model_learns_the_rules_of_the_grammar(task: dict[str, Any], tmp_path: Path) -> None:
    run = play(
        language(
            "fedavg",
            task,
            method__optimizer={"kind": "adamw", "lr": 0.01},
            method__budget={"steps": 20, "batch": 8},
            federation={"rounds": 2},
            evaluation={"which": "global"},
        ),
        tmp_path,
    )
    first, last = (record.global_metrics["perplexity"].value for record in run.rounds)
    assert last < first < 100, "guessing has 263"
    assert last < 25


@pytest.mark.parametrize("task", [TEXT, SFT], ids=["text", "sft"])
@pytest.mark.parametrize("recipe", ["lora-fedavg", "fedavg"])
def test_one_client_is_local_training(recipe: str, task: dict[str, Any], tmp_path: Path) -> None:
    alone = {**task, "partition": {"kind": "iid", "clients": 1}}
    sets: dict[str, Any] = {"federation": {"rounds": 3}, "evaluation": {"which": "none"}}
    together = play(language(recipe, alone, **sets), tmp_path)
    local = play(language(recipe, alone, method__share="none", **sets), tmp_path)
    newest = max((local.folder / "clients" / "client-00").glob("*.safetensors"))
    own = {name: tensor for name, tensor in safetensors.torch.load_file(newest).items() if name.startswith("personal/")}
    theta = checkpoint(together).theta
    assert digest(theta) == digest({name.removeprefix("personal/"): tensor for name, tensor in own.items()})
    assert digest(theta) != digest(language(recipe, alone, **sets).blueprint().build().start)


ROWS: dict[str, dict[str, Any]] = {
    "local": {},
    "lora-fedavg": {"federation": {"rounds": 3, "cohort": 2, "groups": [{"match": "*1", "budget": {"epochs": 1}}]}},
    "scaffold": {"evaluation": {"which": "all", "rows": 8}},
}


@pytest.mark.parametrize("task", [TEXT, SFT], ids=["text", "sft"])
@pytest.mark.parametrize(("recipe", "sets"), ROWS.items())
def test_every_message_costs_what_was_predicted_from_shapes_alone(
    recipe: str, sets: dict[str, Any], task: dict[str, Any], tmp_path: Path
) -> None:
    whole = language(recipe, {**task, "max_tokens": 128}, **sets)
    plan = whole.blueprint().sketch(whole.task.load(whole.seeds))
    run = play(whole, tmp_path)
    assert run.about["data"]["encoded"]["dropped"] == {}
    assert_predicted(run, plan)


@pytest.mark.parametrize("recipe", ["local", "lora-fedavg"])
def test_windows_and_dropped_rows_are_what_clients_and_server_count(recipe: str, tmp_path: Path) -> None:
    folder = tmp_path / "wards"
    folder.mkdir()
    for name, count in (("few", 3), ("many", 12), ("short", 4)):
        text = "" if name == "short" else "a rather long line " * 3
        lines = [json.dumps({"body": f"{text}{i}"}) + "\n" for i in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    task = {"kind": "text", "data": str(folder), "text": "body", "max_tokens": 24, "test": 3}
    run = play(language(recipe, task, federation={"rounds": 2}, evaluation={"which": "all"}), tmp_path)
    about = run.about
    assert sum(line["rows"] for line in about["clients"].values()) > about["data"]["used"]
    assert run.rounds[0].cohort.dropped == {}
    assert len(run.scores(2)["nll"]) == about["test"]["rows"] > 3
    rows = {client: line["rows"] for client, line in about["clients"].items()}
    assert run.rounds[0].weights == pytest.approx({client: n / sum(rows.values()) for client, n in rows.items()})


def test_a_client_of_which_nothing_can_be_learned_is_never_asked(tmp_path: Path) -> None:
    narrow = language(backbone={"ref": LLAMA, "max_tokens": 1}, federation={"rounds": 1})
    setup = narrow.blueprint().build()
    assert [(info.rows, info.held) for info in setup.clients] == [(0, 0)] * 3
    assert setup.federation.sample(setup.clients, setup.seeds, 1) == []
    assert setup.facts["encoded"]["dropped"] == {NOTHING: 60 - len(setup.corpus.test[8:])}
    client = Client("domain-0", setup, tmp_path)
    with pytest.raises(CotuneError, match=r"E_COUNT.*no rows to train on.*domain-0"):
        next(batch_order(view_of(client), len(client.train.examples), ct.Budget(steps=1)))


def view_of(client: Client) -> View:
    """A client before its first step."""
    setup, own = client.setup, client.fresh
    scope = setup.method.trainable.scope(setup.spec, 1)
    return View(1, client.name, own.theta, own.personal, {}, own.theta, {}, setup.seeds, setup.spec, scope)


@pytest.mark.parametrize("arch", ["llama", "opt", "gpt2"])
def test_flops_counted_on_one_row_are_those_of_the_whole_step(arch: str, tmp_path: Path) -> None:
    setup = (
        experiment(backbone={"ref": f"random:{arch}?layers=2&hidden=16&heads=2"}, task=dict(SFT)).blueprint().build()
    )
    client = Client("domain-0", setup, tmp_path)
    view = view_of(client)
    with bind(setup.backbone.model, view.tensors, setup.spec) as bound:
        objective = StepObjective(bound, setup.task, (), view, (client.batch((0, 1, 2, 3, 4)), client.batch((5, 6))))
        state = setup.method.optimizer.init(view)
        with counting() as counter:
            setup.method.optimizer.step(view, state, objective)
        assert step_flops(objective, setup.method.optimizer, state, setup.meter) == counter.get_total_flops() > 0


def forgetting(**more: Any) -> dict[str, Any]:
    return {"which": "global", "rows": 4, "general": GENERAL, "general_rows": 6, **more}


def test_forgetting_is_the_loss_on_general_text_now_minus_before(tmp_path: Path) -> None:
    whole = language("fedavg", evaluation=forgetting(every=2), federation={"rounds": 3})
    run = play(whole, tmp_path)
    setup = whole.blueprint().build()
    assert setup.general is not None
    assert len(setup.general.examples) == 6
    before = general_loss(setup, setup.general, setup.start, Base())
    state = checkpoint(run)
    now = general_loss(setup, setup.general, state.theta, state.base)
    first, second, third = (record.diagnostics for record in run.rounds)
    assert "general_loss" not in first, "not due"
    assert third["general_loss"] == now
    for due in (second, third):
        assert due["forgetting"] == due["general_loss"] - before
    assert run.about["data"]["general"] == {"data": GENERAL, "examples": 6}
    assert before == pytest.approx(math.log(263), abs=0.1)
    still = play(language("fedavg", evaluation=forgetting(), method__optimizer__lr=0.0), tmp_path)
    assert [record.diagnostics["forgetting"] for record in still.rounds] == [0.0, 0.0, 0.0]


def test_general_text_changes_no_theta_and_an_interrupted_run_measures_the_same(tmp_path: Path) -> None:
    whole = language(evaluation=forgetting())
    straight = play(whole, tmp_path / "straight")
    assert play(language(evaluation={"which": "global", "rows": 4}), tmp_path).theta_sha256 == straight.theta_sha256

    def stop(name: str, about: Mapping[str, Any]) -> None:
        if name == "recorded" and about["record"].round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(whole, tmp_path / "twice", watch=stop)
    resumed = play(whole, tmp_path / "twice", resume=True)
    assert [record.diagnostics for record in resumed.rounds] == [record.diagnostics for record in straight.rounds]


def test_where_models_are_personal_forgetting_is_left_out_with_a_fact(tmp_path: Path) -> None:
    run = play(language("local", evaluation=forgetting(), federation={"rounds": 1}), tmp_path)
    assert set(run.rounds[0].diagnostics) == {"change_norm"}
    assert run.about["data"]["general"]["skipped"] == "models are personal"


def test_a_model_that_predicts_classes_forgets_nothing_that_could_be_measured() -> None:
    whole = experiment(evaluation=forgetting())
    with pytest.raises(CotuneError, match=r"E_CONFLICT.*evaluation\.general.*classification") as caught:
        whole.blueprint().build()
    assert "\n" not in str(caught.value)
    with pytest.raises(CotuneError, match="E_CONFLICT"):
        whole.blueprint().sketch(whole.task.load(whole.seeds))


def test_long_general_text_is_sampled_evenly() -> None:
    short = language(evaluation=forgetting(general_rows=5), backbone={"ref": LLAMA, "max_tokens": 8})
    setup = short.blueprint().build()
    assert setup.general is not None
    assert len(setup.general.examples) == 5
    assert len({tuple(example["input_ids"]) for example in setup.general.examples}) == 5


def test_the_loss_before_is_derived_from_the_start_and_not_kept(tmp_path: Path) -> None:
    setup = language(evaluation=forgetting()).blueprint().build()
    engine = InlineEngine(setup, tmp_path)
    desks = [Desk(setup, {info.id: info for info in engine.clients()}, ListJournal()) for _ in range(2)]
    assert desks[0].general_before == desks[1].general_before
    assert desks[0].general(desks[0].opening()) == {"general_loss": desks[0].general_before, "forgetting": 0.0}
    assert torch.is_grad_enabled()
