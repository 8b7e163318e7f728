"""What real rounds record about their clients' low-rank pairs, and that measuring changes nothing else."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tiny import Lossy, Recorded, experiment, play

from cotune.checkpoint import unpack
from cotune.core.record import RoundRecord
from cotune.core.state import Theta
from cotune.diagnose.subspace import Subspace
from cotune.store import Checkpoints

FLOORED = ("basis_overlap", "basis_overlap_squared", "client_global_cosine", "cancellation", "cancellation_increments")
PLAIN = ("pairwise_cosine", "aggregation_gap", "truncation_tail", "norm_a", "norm_b", "norm_products", "norm_effective")
NAMES = {*FLOORED, *(f"{name}_floor" for name in FLOORED), *PLAIN, "clients_subspace"}
ONE = {"rounds": 1, "cohort": 3}


@pytest.mark.parametrize("row", ["lora-fedavg", "ffa-lora", "subspace-reg", "fedex-lora"])
def test_a_round_records_its_replies_and_what_was_committed_whatever_their_order(row: str, tmp_path: Path) -> None:
    Recorded.sent = {}
    whole = experiment(row, federation=ONE, evaluation={"which": "none"}, method__trainable__rank=2)
    setup = whole.blueprint().build()
    run = play(whole, tmp_path, make_engine=Recorded)
    found = Checkpoints(run.folder / "checkpoints").latest()
    assert found is not None
    state = unpack(found[1])[0]
    fold = Subspace(setup.start, setup.spec, setup.method.scope(setup.spec, 1).up)
    for client, tensors in Recorded.sent.items():
        fold.add(client, Theta(tensors), float(run.about["clients"][client]["rows"]), setup.spec)
    expected, played = fold.finish(state.theta, state.base), run.rounds[0]
    assert {name: played.diagnostics[name] for name in NAMES} == expected.numbers
    assert played.subspace == expected.record
    assert played.subspace is not None
    assert played.subspace.clients == played.cohort.accepted
    assert [layer.layer for layer in played.subspace.layers] == list(setup.spec.pairs)
    assert RoundRecord.model_validate_json(played.model_dump_json()) == played


def test_the_record_tells_how_far_averaging_factors_is_from_the_mean_of_products(tmp_path: Path) -> None:
    gaps = {
        row: play(experiment(row, federation=ONE), tmp_path).rounds[0].diagnostics["aggregation_gap"]
        for row in ("lora-fedavg", "ffa-lora")
    }
    assert gaps["lora-fedavg"] > 1e-5
    assert gaps["ffa-lora"] == 0.0


def test_under_orthonormal_b_the_committed_basis_is_the_leading_one(tmp_path: Path) -> None:
    run = play(experiment("subspace-reg", federation=ONE, method__trainable__rank=2), tmp_path)
    told, record = run.rounds[0].diagnostics, run.rounds[0].subspace
    assert record is not None
    cells = [cell**2 for layer in record.layers for cell in layer.overlap if cell is not None]
    assert sum(cells) / len(cells) == pytest.approx(told["basis_overlap_squared"], rel=1e-5)
    assert told["norm_b"] == pytest.approx(math.sqrt(2 * 2), rel=1e-5), "two layers of two orthonormal columns"


def test_measuring_changes_no_theta(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = experiment("fedex-lora", federation={"rounds": 2, "cohort": 3}, evaluation={"which": "none"})
    measured = play(whole, tmp_path / "one")
    monkeypatch.setattr(Subspace, "add", lambda *_: None)
    blind = play(whole, tmp_path / "other")
    assert measured.theta_sha256 == blind.theta_sha256
    assert set(measured.rounds[0].diagnostics) - set(blind.rounds[0].diagnostics) == NAMES
    assert blind.rounds[0].subspace is None


def test_where_factors_start_anew_there_is_no_new_basis_to_overlap_with(tmp_path: Path) -> None:
    told = play(experiment("flora", federation=ONE), tmp_path).rounds[0].diagnostics
    assert NAMES - set(told) == {"basis_overlap", "basis_overlap_floor"}
    assert told["norm_b"] == 0.0 < told["norm_effective"]


@pytest.mark.parametrize("row", ["fedavg", "fedsa-lora", "decomfl"])
def test_rows_without_pairs_that_the_server_gets_tell_nothing(row: str, tmp_path: Path) -> None:
    record = play(experiment(row, federation=ONE), tmp_path).rounds[0]
    assert not NAMES & set(record.diagnostics)
    assert record.subspace is None


def test_an_abandoned_round_tells_nothing(tmp_path: Path) -> None:
    few = {"rounds": 2, "cohort": 2, "min_replies": 2}
    run = play(experiment(federation=few, evaluation={"which": "none"}), tmp_path, make_engine=Lossy)
    first, second = run.rounds
    assert first.abandoned
    assert first.subspace is None
    assert not NAMES & set(first.diagnostics)
    assert second.subspace is not None
    assert set(second.diagnostics) >= NAMES
