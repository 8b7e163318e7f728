"""The conflict of a round's updates against dense pairwise formulas, and as a real round records it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import Lossy, Recorded, experiment, play

from cotune.core.spec import Entry, Role, Spec
from cotune.core.state import Theta
from cotune.diagnose import conflict
from cotune.diagnose.conflict import Conflict

ROLES = {"lora": ("a", "b"), "rule": ("gate", "rate"), "head": ("w",), "full": ("x",)}
SPEC = Spec(
    (
        Entry("a", (2, 5), Role.FACTOR_A, "m"),
        Entry("gate", (3,), Role.RULE, "m"),
        Entry("b", (4, 2), Role.FACTOR_B, "m"),
        Entry("w", (2, 3), Role.HEAD, "w"),
        Entry("rate", (3, 7), Role.RULE, "m"),
        Entry("x", (6, 6), Role.FULL, "x"),
    )
)


def drawn(seed: int, scale: float = 1.0, spec: Spec = SPEC) -> Theta:
    generator = torch.Generator().manual_seed(seed)
    return Theta({entry.name: scale * torch.randn(entry.shape, generator=generator) for entry in spec})


def moved(start: Theta, by: Theta) -> Theta:
    return Theta({name: tensor + by[name] for name, tensor in start.items()})


def folded(start: Theta, clients: Sequence[Theta], weights: Sequence[float]) -> dict[str, float]:
    fold = Conflict(start, SPEC, SPEC.shared)
    for client, weight in zip(clients, weights, strict=True):
        fold.add(client, weight)
    return fold.finish()


def dense(start: Theta, clients: Sequence[Theta], weights: Sequence[float], names: Sequence[str]) -> dict[str, float]:
    """Agreement, mean cosine over pairs, norm of the mean and K, pair by pair in float64."""
    updates = [torch.cat([(c[n].double() - start[n].double()).reshape(-1) for n in names]) for c in clients]
    total = sum((w * u for w, u in zip(weights, updates, strict=True)), torch.zeros_like(updates[0]))
    lengths = [float(update.norm()) for update in updates]
    there = [update / length for update, length in zip(updates, lengths, strict=True) if length]
    cosines = [float(one @ other) for one, other in combinations(there, 2)]
    return {
        "agreement": float(total.norm()) / sum(w * length for w, length in zip(weights, lengths, strict=True)),
        "cosine": sum(cosines) / len(cosines),
        "update": float(total.norm()) / sum(weights),
        "clients": float(len(there)),
    }


@pytest.mark.parametrize("kept", [0, 20, 2**24])
@pytest.mark.parametrize("size", [1, 7, 16, 2**17])
def test_it_is_the_dense_formula_in_pieces_of_any_size(size: int, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conflict, "_SIZE", size)
    monkeypatch.setattr(conflict, "_KEPT", kept)
    start, weights = drawn(0), [3.0, 1.0, 5.0, 2.0]
    clients = [moved(start, drawn(seed, 0.01)) for seed in range(1, 5)]
    found = folded(start, clients, weights)
    assert len(found) == 4 * len(ROLES)
    for role, names in ROLES.items():
        for name, value in dense(start, clients, weights, names).items():
            loose = 1e-6 if role == "full" else 1e-12
            assert found[f"{name}_{role}"] == pytest.approx(value, rel=loose, abs=loose / 100)


@given(st.lists(st.integers(1, 40), min_size=2, max_size=6, unique=True), st.randoms(use_true_random=False))
def test_the_order_of_the_clients_changes_nothing_but_rounding(seeds: list[int], draw: object) -> None:
    start, turned = drawn(0), list(reversed(seeds))
    one, other = (
        folded(start, [moved(start, drawn(s, 0.1)) for s in order], [float(s) for s in order])
        for order in (seeds, turned)
    )
    for role, loose in {"lora": 1e-12, "rule": 1e-12, "head": 1e-12, "full": 1e-6}.items():
        for name in (name for name in one if name.endswith(role)):
            assert one[name] == pytest.approx(other[name], rel=loose, abs=loose)


def test_a_whole_model_in_float32_keeps_six_digits_over_its_length() -> None:
    spec = Spec((Entry("x", (300, 1000), Role.FULL, "x"),))
    start = drawn(0, spec=spec)
    clients = [moved(start, drawn(seed, 1e-4, spec)) for seed in range(1, 5)]
    fold = Conflict(start, spec, spec.shared)
    for client in clients:
        fold.add(client, 3.0)
    found = fold.finish()
    for name, value in dense(start, clients, [3.0] * 4, ["x"]).items():
        assert found[f"{name}_full"] == pytest.approx(value, rel=1e-6, abs=1e-6)


def test_clients_that_agree_orthogonal_ones_and_opposite_ones_are_1_a_root_and_0() -> None:
    start = Theta({name: torch.zeros_like(tensor) for name, tensor in drawn(0).items()})

    def unit(place: int, sign: float = 1.0) -> Theta:
        gate = torch.zeros(3)
        gate[place] = sign
        return start.replace({"gate": gate})

    same = folded(start, [unit(0)] * 3, [1.0] * 3)
    apart = folded(start, [unit(0), unit(1), unit(2)], [2.0] * 3)
    against = folded(start, [unit(0), unit(0, -1.0)], [1.0] * 2)
    assert (same["agreement_rule"], same["cosine_rule"]) == pytest.approx((1.0, 1.0))
    assert (apart["agreement_rule"], apart["cosine_rule"]) == pytest.approx((1 / math.sqrt(3), 0.0))
    assert (against["agreement_rule"], against["cosine_rule"]) == pytest.approx((0.0, -1.0))


def test_a_client_that_did_not_move_has_no_direction_but_pulls_the_mean_back() -> None:
    start = drawn(0)
    clients = [moved(start, drawn(1, 0.1)), start, moved(start, drawn(2, 0.1))]
    found, without = folded(start, clients, [1.0, 2.0, 1.0]), folded(start, clients[::2], [1.0, 1.0])
    assert found["clients_lora"] == 2.0
    for name in ("agreement_lora", "cosine_lora"):
        assert found[name] == pytest.approx(without[name])
    assert found["update_lora"] == pytest.approx(without["update_lora"] / 2)


def test_one_client_alone_agrees_with_nobody() -> None:
    start = drawn(0)
    found = folded(start, [moved(start, drawn(1))], [4.0])
    assert not any(name.startswith(("agreement", "cosine")) for name in found)
    assert found["update_head"] == pytest.approx(float(drawn(1)["w"].double().norm()), rel=1e-6)
    assert Conflict(start, SPEC, SPEC.shared).finish() == {}


def test_factors_of_another_rank_are_left_out_of_their_role_alone() -> None:
    start = drawn(0)
    same = [moved(start, drawn(seed, 0.1)) for seed in (1, 2)]
    other = drawn(3, spec=SPEC.ranked(1))
    found, without = folded(start, [*same, other], [1.0] * 3), folded(start, same, [1.0] * 2)
    assert {n: v for n, v in found.items() if n.endswith("_lora")} == {
        n: v for n, v in without.items() if n.endswith("_lora")
    }
    assert found["clients_head"] == 3.0


def test_only_names_that_go_up_count() -> None:
    start = drawn(0)
    fold = Conflict(start, SPEC, ("gate", "w"))
    fold.add(moved(start, drawn(1)).select(("gate", "w")), 1.0)
    assert {name.partition("_")[2] for name in fold.finish()} == {"rule", "head"}


def test_no_tensor_is_kept_of_a_client_nor_written_to() -> None:
    start, client = drawn(0), moved(drawn(0), drawn(1))
    before, after = start.sha256(), client.sha256()
    fold = Conflict(start, SPEC, SPEC.shared)

    def held() -> int:
        sums = fold._roles.values()
        tensors = [t for one in sums for t in (one.update, one.unit, *one.start)]
        return len(tensors) + sum(tensor.numel() for tensor in tensors)

    least = held()
    for _ in range(20):
        fold.add(client, 1.0)
    assert held() == least
    assert (start.sha256(), client.sha256()) == (before, after)


def test_a_round_records_the_conflict_of_its_replies_whatever_their_order(tmp_path: Path) -> None:
    Recorded.sent = {}
    whole = experiment(federation={"rounds": 1, "cohort": 3})
    run = play(whole, tmp_path / "one", make_engine=Recorded)
    start = whole.blueprint().build().start
    spec = whole.blueprint().build().spec
    clients = {client: Theta(tensors) for client, tensors in sorted(Recorded.sent.items())}
    rows = run.about["clients"]
    weights = [float(rows[client]["rows"]) for client in clients]
    diagnostics = run.rounds[0].diagnostics
    for role, members in (("lora", (Role.FACTOR_A, Role.FACTOR_B)), ("head", (Role.HEAD,))):
        names = [entry.name for entry in spec if entry.role in members]
        for name, value in dense(start, list(clients.values()), weights, names).items():
            assert diagnostics[f"{name}_{role}"] == pytest.approx(value, rel=1e-12)
    assert play(whole, tmp_path / "other").rounds[0].diagnostics == diagnostics


def test_measuring_the_conflict_changes_no_theta(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = experiment("fedavg", federation={"rounds": 2, "cohort": 3}, evaluation={"which": "none"})
    measured = play(whole, tmp_path / "one")
    monkeypatch.setattr(Conflict, "add", lambda *_: None)
    blind = play(whole, tmp_path / "other")
    assert measured.theta_sha256 == blind.theta_sha256
    assert set(measured.rounds[0].diagnostics) - set(blind.rounds[0].diagnostics) == {
        f"{name}_{role}" for name in ("agreement", "cosine", "update", "clients") for role in ("full", "head")
    }


def test_an_abandoned_round_tells_of_no_conflict(tmp_path: Path) -> None:
    few = {"rounds": 2, "cohort": 2, "min_replies": 2}
    run = play(experiment(federation=few, evaluation={"which": "none"}), tmp_path, make_engine=Lossy)
    first, second = run.rounds
    assert first.abandoned
    assert set(first.diagnostics) == {"change_norm"}
    assert "agreement_lora" in second.diagnostics
