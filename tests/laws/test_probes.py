"""The walls hold: parts from outside, named by dotted path, that need what the first rows do not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from tiny import build, experiment, load_tree, play

import cotune as ct
from cotune.checkpoint import FileJournal, unpack
from cotune.core.change import Base
from cotune.core.errors import CotuneError
from cotune.core.state import Theta
from cotune.laws import check_part
from cotune.server import State
from cotune.store import Checkpoints, Run

ROUNDS = {"rounds": 4, "cohort": 2}


def last_state(run: Run) -> State:
    found = Checkpoints(run.folder / "checkpoints").latest()
    assert found is not None
    return unpack(found[1])[0]


def accepted_rounds(run: Run) -> dict[str, int]:
    counts: dict[str, int] = {}
    for record in run.rounds:
        for client in record.cohort.accepted:
            counts[client] = counts.get(client, 0) + 1
    return counts


def test_private_state_counts_the_rounds_in_which_its_client_was_accepted_and_aux_comes_down(tmp_path: Path) -> None:
    run = play(
        experiment(
            method__optimizer={"kind": "probes:Diary", "lr": 0.01},
            method__aggregator={"kind": "probes:Tally"},
            federation=ROUNDS,
        ),
        tmp_path,
    )
    state, counted = last_state(run), accepted_rounds(run)
    assert {client: int(told) for client, told in state.server.items()} == counted
    assert int(state.aux["tally"]) == sum(counted.values()) == 8


def test_personal_tensors_stay_and_come_back(tmp_path: Path) -> None:
    run = play(
        experiment(method__trainable={"kind": "lora", "rank": 2, "head": "personal"}, federation=ROUNDS), tmp_path
    )
    assert all("head" not in line.payload_bytes for line in run.ledger)
    assert not [name for name in last_state(run).theta if "classifier" in name]
    kept = [
        path for path in (run.folder / "clients").rglob("*.safetensors") if "classifier" in path.read_text("latin1")
    ]
    assert {path.parent.name for path in kept} == set(accepted_rounds(run))
    assert run.rounds[-1].evaluated == "mean over the own models of 2 clients"


def test_names_that_change_with_the_round_are_all_that_moves(tmp_path: Path) -> None:
    tree = load_tree(
        "lora-fedavg",
        {
            "backbone.ref": "random:bert?layers=1&hidden=16&heads=2",
            "method.trainable": {"kind": "probes:Alternating", "rank": 2},
            "method.downlink": "changed",
            "method.budget": {"steps": 2, "batch": 4},
            "federation": {"rounds": 1, "cohort": 2},
        },
    )
    one = last_state(play(build(tree), tmp_path)).theta
    two = last_state(play(build({**tree, "federation": {"rounds": 2, "cohort": 2}}), tmp_path)).theta
    moved = {name for name in one if not torch.equal(one[name], two[name])}
    assert moved
    assert not [name for name in moved if "lora_B" in name]


def test_a_base_delta_stands_beside_the_weight_and_is_what_the_journal_says(tmp_path: Path) -> None:
    run = play(experiment(method__aggregator={"kind": "probes:IntoBase"}, federation=ROUNDS), tmp_path)
    state, total = last_state(run), Base()
    for increment in FileJournal(run.folder / "journal").since(0):
        total = total.plus(increment.base)
    assert state.base
    assert {n: t.tolist() for n, t in total.tensors().items()} == {
        n: t.tolist() for n, t in state.base.tensors().items()
    }
    assert not any(bool(t.any()) for name, t in state.theta.items() if "lora_B" in name)
    assert all(record.abandoned is None for record in run.rounds)
    downs = [line for line in run.ledger if line.direction == "down" and line.purpose == "train"]
    assert {line.payload_bytes.get("base", 0) > 0 for line in downs if line.round > 1} == {True}


def test_a_scalar_change_replays_to_the_theta_of_its_client_bit_for_bit(tmp_path: Path) -> None:
    scalars = experiment(
        task__partition={"kind": "iid", "clients": 1},
        method__optimizer={"kind": "probes:Walk"},
        method__uplink={"kind": "probes:Coefficients"},
        federation={"rounds": 2},
    )
    tensors = ct.Experiment.model_validate(
        {**scalars.model_dump(), "method": {**scalars.method.model_dump(), "uplink": "tensors"}}
    )
    sent, dense = play(scalars, tmp_path), play(tensors, tmp_path)
    ups = [line for line in sent.ledger if line.direction == "up" and line.purpose == "train"]
    assert [line.payload_bytes for line in ups] == [{"scalars": 8}] * 2
    # The directions' seeds are issued for scalars alone, so the tensor run walks along seed 0 in every round.
    assert dense.theta_sha256 != sent.theta_sha256
    journal = FileJournal(sent.folder / "journal").since(0)
    assert [[sorted(reply.scalars) for reply in one.replies] for one in journal] == [[["coefficients"]]] * 2
    assert last_state(sent).theta.sha256() == replay(sent, journal_theta(scalars)).sha256()


def journal_theta(experiment_: ct.Experiment) -> Theta:
    return experiment_.blueprint().build().start


def replay(run: Run, theta: Theta) -> Theta:
    import probes

    for increment in FileJournal(run.folder / "journal").since(0):
        (reply,) = increment.replies
        for step, coefficient in enumerate(reply.scalars["coefficients"]):
            walked = {n: t + coefficient * probes.walk(reply.seed, step, n, tuple(t.shape)) for n, t in theta.items()}
            theta = Theta(walked)
    return theta


def test_two_ranks_meet_in_one_cohort(tmp_path: Path) -> None:
    groups = [{"match": "*[01]", "rank": 1}]
    run = play(
        experiment(
            method__trainable={"kind": "lora", "rank": 4},
            method__aggregator={"kind": "probes:Padded"},
            federation={"rounds": 2, "groups": groups},
        ),
        tmp_path,
    )
    sizes = {
        line.client: line.payload_bytes["factor_a"]
        for line in run.ledger
        if line.direction == "up" and line.round == 1 and line.purpose == "train"
    }
    assert len(set(sizes.values())) == 2
    assert max(sizes.values()) == 4 * min(sizes.values())
    assert all(record.abandoned is None and not record.cohort.dropped for record in run.rounds)


def test_a_mixed_group_folds_scalars_and_tensors_into_one_theta(tmp_path: Path) -> None:
    groups = [{"match": "*[01]", "optimizer": {"kind": "probes:Walk"}, "uplink": {"kind": "probes:Coefficients"}}]
    run = play(experiment(federation={"rounds": 2, "groups": groups}), tmp_path)
    ups = [line for line in run.ledger if line.direction == "up" and line.purpose == "train"]
    kinds = {frozenset(line.payload_bytes) for line in ups}
    assert kinds == {frozenset({"scalars"}), frozenset({"factor_a", "factor_b", "head"})}
    assert all(len(record.cohort.accepted) == 4 for record in run.rounds)


@pytest.mark.parametrize("loss", ["everything", "the last round"])
def test_a_client_that_lost_state_says_what_it_holds_and_is_brought_up_to_date(tmp_path: Path, loss: str) -> None:
    whole = experiment(method__downlink="changed", federation={"rounds": 4}, evaluation={"which": "none"})
    expected = play(whole, tmp_path / "whole").theta_sha256

    def lose(name: str, about: object) -> None:
        del about
        clients = tmp_path / "lossy" / whole.folder(Path()).name / "clients"
        if name == "selected" and clients.exists() and not (tmp_path / "done").exists():
            folder = sorted(clients.iterdir())[0]
            if loss == "everything":
                shutil.rmtree(folder)
            elif len(generations := sorted(folder.iterdir())) < 2:
                return
            else:
                generations[-1].unlink()
            (tmp_path / "done").touch()

    run = play(whole, tmp_path / "lossy", watch=lose)
    assert (tmp_path / "done").exists()
    assert run.theta_sha256 == expected
    twice = [line for line in run.ledger if line.direction == "down" and line.purpose == "train"]
    assert len(twice) == 4 * 4 + 1


def test_a_part_from_outside_is_run_through_the_laws_of_its_room() -> None:
    import probes

    for part in (probes.Walk(), probes.Padded(), probes.Alternating(rank=2)):
        broken = [(law, why) for law, why in check_part(part) if why]
        assert not broken


def test_parts_that_do_not_fit_are_refused_in_words() -> None:
    with pytest.raises(CotuneError, match="uplink needs 'replay'"):
        experiment(method__uplink={"kind": "probes:Coefficients"})
    with pytest.raises(CotuneError, match="penalty proximal needs 'anchor'"):
        experiment("fedprox", method__share="none")
    with pytest.raises(CotuneError, match="has its own rank"):
        experiment(federation={"groups": [{"match": "*", "rank": 2}]}).blueprint().build()
