"""The rows `fedssi` and `fedala` in whole runs: limit cases to the bit, private state, and whose model is scored."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tiny import assert_predicted, experiment, play

import cotune as ct
from cotune import report
from cotune.checkpoint import unpack
from cotune.cli.run import _summary
from cotune.client import Client, Kept
from cotune.core.state import Private
from cotune.core.stays import stays
from cotune.objective import mean_scores, score
from cotune.server import State, model_at
from cotune.store import Checkpoints, Run

ROUNDS = {"rounds": 3, "cohort": 2}
LOUD = {"kind": "adamw", "lr": 0.05}
ALA = {"kind": "ala", "eta": 100.0, "first": 12}
ROWS: dict[str, dict[str, Any]] = {
    "fedssi": {"method__penalties": [{"kind": "synaptic", "c": 1.0, "surrogate_lr": 0.3}]},
    "fedala": {"method__personalize": ALA, "evaluation": {"which": "all", "rows": 8}},
}


def row(recipe: str, **sets: Any) -> ct.Experiment:
    return experiment(recipe, **{"federation": ROUNDS, "method__optimizer": LOUD, **ROWS.get(recipe, {}), **sets})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return {name: play(row(name), tmp_path_factory.mktemp(name)) for name in ("lora-fedavg", *ROWS)}


def state_of(run: Run) -> State:
    found = Checkpoints(run.folder / "checkpoints").latest()
    assert found is not None
    return unpack(found[1])[0]


def kept(run: Run, client: str, round_: int) -> dict[str, torch.Tensor]:
    path = run.folder / "clients" / client / f"round-{round_:05d}.safetensors"
    named = safetensors.torch.load_file(path)
    return {name.removeprefix("private/"): tensor for name, tensor in named.items() if name.startswith("private/")}


def newest(run: Run) -> dict[str, int]:
    """Client -> the last round in which its reply counted."""
    return {client: record.round for record in run.rounds for client in record.cohort.accepted}


@pytest.mark.parametrize(
    ("recipe", "still"),
    [
        ("fedssi", {"method__penalties": [{"kind": "synaptic", "c": 0.0}]}),
        ("fedala", {"method__personalize": {"kind": "ala", "eta": 0.0}}),
    ],
)
def test_without_its_term_and_with_all_weights_at_one_a_row_is_fedavg_to_the_bit(
    recipe: str, still: dict[str, Any], runs: dict[str, Run], tmp_path: Path
) -> None:
    plain = [record.theta_sha256 for record in runs["lora-fedavg"].rounds]
    limit = play(row(recipe, **still, evaluation={"which": "none"}), tmp_path)
    assert [record.theta_sha256 for record in limit.rounds] == plain
    moved = [record.theta_sha256 for record in runs[recipe].rounds]
    assert moved[0] == plain[0], "a client's first round has nothing of its own yet"
    assert moved[-1] != plain[-1]


@pytest.mark.parametrize("recipe", ROWS)
def test_a_run_killed_between_rounds_resumes_to_the_same_theta_scores_and_private_state(
    recipe: str, runs: dict[str, Run], tmp_path: Path
) -> None:
    def stop(name: str, about: Mapping[str, Any]) -> None:
        if name == "aggregated" and about["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(row(recipe), tmp_path, watch=stop)
    again, straight = play(row(recipe), tmp_path, resume=True), runs[recipe]
    for one, other in zip(again.rounds, straight.rounds, strict=True):
        assert (one.theta_sha256, one.global_metrics, one.client_metrics, one.flops, one.evaluated) == (
            other.theta_sha256,
            other.global_metrics,
            other.client_metrics,
            other.flops,
            other.evaluated,
        )
    for client, round_ in newest(straight).items():
        mine, expected = kept(again, client, round_), kept(straight, client, round_)
        assert expected
        assert list(mine) == list(expected)
        assert all(torch.equal(mine[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("recipe", ROWS)
def test_private_state_is_of_a_clients_last_accepted_round_and_none_of_it_is_sent(
    recipe: str, runs: dict[str, Run]
) -> None:
    run = runs[recipe]
    last = newest(run)
    asked = [client for record in run.rounds for client in record.cohort.accepted]
    assert len({asked.count(client) for client in last}) > 1, "all took part alike: this cohort shows nothing"
    for client, round_ in last.items():
        names = {name.partition("/")[2].partition("/")[0] for name in kept(run, client, round_)}
        twice = asked.count(client) > 1
        assert names == ({"v", "omega"} if recipe == "fedssi" else {"own", *(["weight"] if twice else [])})
    assert {part for line in run.ledger for part in line.payload_bytes} <= {"factor_a", "factor_b", "head", "scores"}


@pytest.mark.parametrize("recipe", ROWS)
def test_every_message_costs_what_was_predicted_from_shapes_alone(recipe: str, runs: dict[str, Run]) -> None:
    whole = row(recipe)
    assert_predicted(runs[recipe], whole.blueprint().sketch(whole.task.load(whole.seeds)))


def test_what_is_learned_before_the_first_step_is_counted_with_the_steps(runs: dict[str, Run]) -> None:
    plain, ssi, ala = (runs[name].rounds for name in ("lora-fedavg", "fedssi", "fedala"))
    assert ssi[0].flops == pytest.approx(plain[0].flops * (2 + 5) / 2, rel=0.05)
    assert ala[0].flops == plain[0].flops
    first = set(ala[0].cohort.accepted)
    later = next(record for record in ala if first & set(record.cohort.accepted) and record.round > 1)
    assert later.flops > 2 * plain[later.round - 1].flops


def test_the_score_of_a_client_is_that_of_its_own_mixture_and_the_record_says_so(runs: dict[str, Run]) -> None:
    run = runs["fedala"]
    setup, state, last = row("fedala").blueprint().build(), state_of(run), newest(run)
    record, different = run.rounds[-1], 0
    assert record.evaluated == (
        "mean over the own models of 4 clients, each of which ala makes of the global theta and the client's own"
    )
    for client, metrics in record.client_metrics.items():
        named = kept(run, client, last[client]) if client in last else {}
        private = Private({name.removeprefix("ala/"): tensor for name, tensor in named.items()})
        assert setup.method.personalize is not None
        theta = setup.method.personalize.view(state.theta, private)
        different += theta.sha256() != state.theta.sha256()
        examples = setup.encoded(client)[1].examples
        with model_at(setup, theta, state.base) as (bound, tensors):
            means = mean_scores(score(bound, tensors, setup, examples))
        assert dict(zip(setup.task.metrics, means, strict=True))["loss"] == metrics["loss"].federated
    assert different > 0, "nobody has a model of its own"


def test_a_client_that_was_never_asked_would_use_the_global_model(runs: dict[str, Run], tmp_path: Path) -> None:
    setup, state = row("fedala").blueprint().build(), state_of(runs["fedala"])
    client = Client("domain-0", setup, tmp_path)
    assert client.fresh == Kept(client.fresh.theta, client.fresh.personal)
    assert setup.method.personalize is not None
    own = setup.method.personalize.view(state.theta, client.fresh.private.get("ala", Private()))
    assert own.sha256() == state.theta.sha256()


def test_a_summary_and_a_report_say_what_a_personal_models_drop_is_against(runs: dict[str, Run]) -> None:
    said = {name: stays(run.about) for name, run in runs.items()}
    assert said["lora-fedavg"] == said["fedssi"] == ""
    assert f"drop: {said['fedala']}" in _summary(runs["fedala"])
    assert not [line for line in _summary(runs["lora-fedavg"]) if line.startswith("drop:")]
    page, plain = (report.document(report.shown([runs[name].folder])) for name in ("fedala", "lora-fedavg"))
    assert html.unescape(page).lower().count(said["fedala"].lower()) == 2, "once on its card, once beside the drop"
    assert runs["fedala"].rounds[-1].evaluated in html.unescape(page)
    assert 'id="staying"' in page
    assert 'id="staying"' not in plain
