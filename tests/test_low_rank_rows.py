"""Every low-rank row as a run: its bytes, what comes back, and the identities between rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import Wrapped, assert_predicted, experiment, play
from torch import Tensor

import cotune as ct
from cotune.backbone import Backbone
from cotune.backbone.bind import bind
from cotune.backbone.builtin import DECODERS, ENCODERS
from cotune.checkpoint import unpack
from cotune.core.change import Base
from cotune.core.contracts import OnReply, Outcome
from cotune.core.errors import Code, CotuneError
from cotune.core.spec import Role, Spec
from cotune.resolve import recipe
from cotune.server import State
from cotune.setup import Setup
from cotune.store import Checkpoints, Run

# Row -> numbers a client of every round sends and gets in round 3, given K clients: M and N are the sums of r d_out and
# of r d_in over the adapted layers, H is the size of the head. From the formulas of each paper.
Bytes = Callable[[int, int, int, int], int]
UP: Mapping[str, Bytes] = {
    "lora-fedavg": lambda m, n, h, k: m + n + h,
    "fedprox": lambda m, n, h, k: m + n + h,
    "scaffold": lambda m, n, h, k: 2 * (m + n + h),
    "ffa-lora": lambda m, n, h, k: m + h,
    "fedsa-lora": lambda m, n, h, k: n,
    "rolora": lambda m, n, h, k: m + h,
    "fedsvd": lambda m, n, h, k: m + h,
    "flexlora": lambda m, n, h, k: m + n + h,
    "svd-redistribution": lambda m, n, h, k: m + n + h,
    "flora": lambda m, n, h, k: m + n + h,
    "fedex-lora": lambda m, n, h, k: m + n + h,
    "fedrot-lora": lambda m, n, h, k: m + n + h,
    "orthonormal-b": lambda m, n, h, k: m + n + h,
    "subspace-reg": lambda m, n, h, k: m + n + h,
}
DOWN: Mapping[str, Bytes] = {
    **UP,
    "rolora": lambda m, n, h, k: n + h,  # A moved in round 2, and the head
    "fedsvd": lambda m, n, h, k: m + n + h,
    "flora": lambda m, n, h, k: k * (m + n) + h,
    "fedex-lora": lambda m, n, h, k: (k + 1) * (m + n) + h,
}
FACTORS = (Role.FACTOR_A, Role.FACTOR_B)


def row(name: str, **sets: Any) -> ct.Experiment:
    """A row on four clients of synthetic sentiment that all take part in three rounds, at a rank of 2."""
    defaults = {"method.trainable.rank": 2, "method.trainable.alpha": 4, "federation": {"rounds": 3}}
    return experiment(name, **{**defaults, **sets})


def last(run: Run) -> State:
    found = Checkpoints(run.folder / "checkpoints").latest()
    assert found is not None
    return unpack(found[1])[0]


def effective(state: State, spec: Spec) -> dict[str, Tensor]:
    """Module -> s · B A + base, in float64."""
    found = {}
    for module, (b, a) in spec.pairs.items():
        found[module] = b.scale * state.theta[b.name].double() @ state.theta[a.name].double()
        if module in state.base.factors:
            found[module] = found[module] + state.base.delta(module).double()
    return found


@pytest.mark.parametrize("name", UP)
def test_every_row_costs_what_its_formula_says_and_what_its_shapes_predict(name: str, tmp_path: Path) -> None:
    played = row(name)
    plan, run = played.blueprint().build(), play(played, tmp_path)
    sums = {role: sum(entry.numel for entry in plan.spec if entry.role is role) for role in (*FACTORS, Role.HEAD)}
    sizes = sums[Role.FACTOR_B], sums[Role.FACTOR_A], sums[Role.HEAD], len(plan.clients)
    for direction, formula in (("up", UP[name]), ("down", DOWN[name])):
        lines = [x for x in run.ledger if x.round == 3 and x.direction == direction and x.purpose == "train"]
        assert len(lines) == 4
        assert {sum(line.payload_bytes.values()) for line in lines} == {4 * formula(*sizes)}
    assert_predicted(run, plan)
    assert all(record.abandoned is None and len(record.cohort.accepted) == 4 for record in run.rounds)
    assert math.isfinite(run.rounds[-1].train_loss or math.nan)


@pytest.mark.parametrize("name", ["subspace-reg", "flexlora", "fedsvd", "fedrot-lora", "flora", "fedex-lora"])
def test_one_client_alone_keeps_the_model_that_it_trained(name: str, tmp_path: Path) -> None:
    alone = {"task__partition": {"kind": "iid", "clients": 1}, "federation": {"rounds": 1}}
    alone |= {"method__penalties": [], "evaluation": {"which": "none"}}
    train = row(name).method.trainable
    ours = last(play(row(name, **alone), tmp_path / "ours"))
    plain = row("lora-fedavg", **alone, method__trainable=train.model_dump())
    theirs, spec = last(play(plain, tmp_path / "mean")), plain.blueprint().build().spec
    got, expected = effective(ours, spec), effective(theirs, spec)
    for module, matrix in expected.items():
        assert float(matrix.norm()) > 0
        assert float((got[module] - matrix).norm()) <= 1e-6 * float(matrix.norm())
    assert all(torch.equal(ours.theta[e.name], theirs.theta[e.name]) for e in spec if e.role is Role.HEAD)


def test_subspace_reg_without_its_terms_is_orthonormal_b_bit_for_bit(tmp_path: Path) -> None:
    def with_terms(mu: float, strength: float, alpha: float) -> list[dict[str, Any]]:
        return [
            {"kind": "subspace", "mu": mu},
            {"kind": "ridge", "strength": strength},
            {"kind": "basis", "alpha": alpha},
        ]

    plain = play(row("orthonormal-b"), tmp_path).theta_sha256
    assert play(row("subspace-reg", method__penalties=with_terms(0, 0, 0)), tmp_path).theta_sha256 == plain
    for strong in (with_terms(50, 0, 0), with_terms(0, 50, 0), with_terms(0, 0, 50)):
        assert play(row("subspace-reg", method__penalties=strong), tmp_path).theta_sha256 != plain


def test_flora_fedex_and_the_mean_product_are_one_model_after_a_round(tmp_path: Path) -> None:
    once = {"federation": {"rounds": 1}, "evaluation": {"which": "none"}}
    flora, fedex = (last(play(row(name, **once), tmp_path)) for name in ("flora", "fedex-lora"))
    spec = row("flora").blueprint().build().spec
    wide = last(play(row("flexlora", **once, method__trainable__rank=2), tmp_path))
    one, two, cut = effective(flora, spec), effective(fedex, spec), effective(wide, spec)
    for module, matrix in one.items():
        assert float((two[module] - matrix).norm()) <= 1e-6 * float(matrix.norm())
        u, sigma, v = torch.linalg.svd(matrix)
        best = u[:, :2] * sigma[:2] @ v[:2]
        assert float((cut[module] - best).norm()) <= 1e-6 * float(matrix.norm())
    assert all(torch.equal(flora.theta[e.name], fedex.theta[e.name]) for e in spec if e.role is Role.HEAD)


def test_a_stacked_sum_stays_beside_the_backbone_and_factors_start_anew_in_every_round(tmp_path: Path) -> None:
    states = [last(play(row("flora", federation={"rounds": rounds}), tmp_path)) for rounds in (1, 2, 3)]
    setup = row("flora").blueprint().build()
    for b, a in setup.spec.pairs.values():
        starts = [state.theta[a.name] for state in states]
        assert torch.equal(starts[0], setup.start[a.name])
        assert not torch.equal(starts[1], starts[0])
        assert not torch.equal(starts[2], starts[1])
        assert all(float(start.abs().max()) <= a.shape[1] ** -0.5 for start in starts)
        assert not any(bool(state.theta[b.name].any()) for state in states)
    ranks = [[state.base.factors[module][1].shape[0] for module in setup.spec.pairs] for state in states]
    assert ranks[0] == [2 * 4] * len(setup.spec.pairs)
    assert set(ranks[2]) == {0}  # past half the full rank the delta is one matrix


def test_fedsvd_keeps_orthonormal_rows_of_a_and_orthonormal_b_keeps_columns_of_b(tmp_path: Path) -> None:
    for name, side in (("fedsvd", 1), ("orthonormal-b", 0)):
        played = row(name)
        state = last(play(played, tmp_path))
        for pair in played.blueprint().build().spec.pairs.values():
            matrix = state.theta[pair[side].name].double()
            matrix = matrix @ matrix.mT if side else matrix.mT @ matrix
            torch.testing.assert_close(matrix, torch.eye(2, dtype=torch.float64), atol=1e-6, rtol=0)


class Reordered(Wrapped):
    """Clients run, and reply, from the last to the first."""

    def exchange(self, downs: Mapping[str, bytes], deadline: float | None, min_ok: int, on_reply: OnReply) -> Outcome:
        for client in sorted(downs, reverse=True):
            self.inner.exchange({client: downs[client]}, deadline, min_ok, on_reply)
        return Outcome(tuple(sorted(downs, reverse=True)))


@pytest.mark.parametrize(
    "name", ["subspace-reg", "fedsvd", "flora", "fedex-lora", "fedrot-lora", "rolora", "fedsa-lora"]
)
def test_order_and_interruptions_leave_no_trace(name: str, tmp_path: Path) -> None:
    played = row(name, federation={"rounds": 3, "cohort": 3})
    expected = last(play(played, tmp_path / "once"))
    reordered = last(play(played, tmp_path / "reordered", make_engine=Reordered))

    def stop(moment: str, about: Mapping[str, Any]) -> None:
        if moment == "recorded" and about["record"].round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(played, tmp_path / "again", watch=stop)
    resumed = last(play(played, tmp_path / "again", resume=True))
    for state in (reordered, resumed):
        assert state.theta.sha256() == expected.theta.sha256()
        ours, theirs = state.base.tensors(), expected.base.tensors()
        assert list(ours) == list(theirs)
        assert all(torch.equal(tensor, theirs[key]) for key, tensor in ours.items())


def test_a_client_that_comes_late_gets_every_round_that_was_added_to_the_backbone(tmp_path: Path) -> None:
    run = play(row("flora", federation={"rounds": 6, "cohort": 2}), tmp_path)
    assert all(record.abandoned is None and len(record.cohort.accepted) == 2 for record in run.rounds)
    sizes = {line.payload_bytes.get("base", 0) for line in run.ledger if line.direction == "down"}
    assert len(sizes) > 2


@pytest.mark.parametrize("name", ["flexlora", "flora", "fedrot-lora", "subspace-reg"])
def test_ranks_mix_in_one_cohort(name: str, tmp_path: Path) -> None:
    groups = [{"match": "*[01]", "rank": 1}]
    played = row(name, federation={"rounds": 3, "groups": groups}, method__trainable__rank=3)
    run = play(played, tmp_path)
    assert all(record.abandoned is None and len(record.cohort.accepted) == 4 for record in run.rounds)
    assert_predicted(run, played.blueprint().build())
    ups = {x.client: x.payload_bytes["factor_a"] for x in run.ledger if x.direction == "up" and x.purpose == "train"}
    assert max(ups.values()) == 3 * min(ups.values())


def test_a_rank_above_the_servers_and_ranks_under_a_mean_are_refused() -> None:
    for name, rank in (("flexlora", 3), ("fedex-lora", 1), ("lora-fedavg", 1)):
        with pytest.raises(CotuneError) as caught:
            row(name, federation={"groups": [{"match": "*", "rank": rank}]}).blueprint().build()
        assert caught.value.code is Code.CONFLICT


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_stacking_does_not_blow_up_over_thirty_rounds(dtype: str, tmp_path: Path) -> None:  # FederatedLLM issue 11
    sets = {"backbone__dtype": dtype, "evaluation": {"which": "none"}, "method__budget": {"steps": 3, "batch": 8}}
    run = play(row("flora", **sets, federation={"rounds": 30, "cohort": 2}, method__optimizer__lr=5e-3), tmp_path)
    losses = [record.train_loss or math.nan for record in run.rounds]
    assert all(math.isfinite(loss) for loss in losses)
    assert max(losses) <= 2 * losses[0]
    assert sum(losses[-5:]) < sum(losses[:5])


def test_where_b_stays_at_home_the_scores_are_of_own_models_and_say_so(tmp_path: Path) -> None:  # FedSA-LoRA issue 9
    sets: dict[str, Any] = {"method__optimizer__lr": 0.05, "method__budget": {"steps": 6, "batch": 8}}
    run = play(row("fedsa-lora", **sets, evaluation={"which": "all", "every": 3}), tmp_path)
    assert run.rounds[-1].evaluated == "mean over the own models of 4 clients"
    still = play(row("fedsa-lora", method__optimizer__lr=0.0, evaluation={"which": "all", "every": 3}), tmp_path)
    ours, backbone = (one.rounds[-1].global_metrics["loss"].value for one in (run, still))
    assert abs(ours - backbone) > 0.01
    assert not any("lora_B" in name for name in last(run).theta)


def test_rolora_moves_one_factor_a_round_and_the_other_stays(tmp_path: Path) -> None:
    states = [last(play(row("rolora", federation={"rounds": rounds}), tmp_path)).theta for rounds in (1, 2)]
    start = row("rolora").blueprint().build().start
    moved = [
        {("A" if "lora_A" in n else "B") for n in start if "lora_" in n and not torch.equal(before[n], after[n])}
        for before, after in zip([start, *states], states, strict=False)
    ]
    assert moved == [{"B"}, {"A"}]


@pytest.mark.parametrize("family", [*DECODERS, *ENCODERS])
def test_in_every_family_one_clients_model_comes_back_through_products_and_deltas(family: str, tmp_path: Path) -> None:
    alone: dict[str, Any] = {"task__partition": {"kind": "iid", "clients": 1}, "federation": {"rounds": 1}}
    alone |= {"method__penalties": [], "evaluation": {"which": "none"}, "method__trainable__targets": "all-linear"}
    alone |= {"backbone__ref": f"random:{family}?layers=1&hidden=16&heads=2", "method__optimizer__lr": 0.02}
    states = {n: last(play(row(n, **alone), tmp_path / n)) for n in ("lora-fedavg", "subspace-reg", "flora")}
    setup = row("lora-fedavg", **alone).blueprint().build()
    shapes = {(b.shape[0], a.shape[1]) for b, a in setup.spec.pairs.values()}
    assert {d_out == d_in for d_out, d_in in shapes} == {True, False}
    expected = logits(setup, states["lora-fedavg"].theta)
    moved = float((expected - logits(setup, setup.start)).norm())
    for state in states.values():
        assert float((logits(setup, state.theta, state.base) - expected).norm()) < 1e-4 * moved


def test_beside_a_memory_pairs_are_multiplied_and_rules_averaged(tmp_path: Path) -> None:
    sets: dict[str, Any] = {"backbone__ref": "random:llama?layers=1&hidden=16&heads=2", "federation": {"rounds": 1}}
    sets |= {"evaluation": {"which": "none"}, "method__trainable__rank": 2}
    split = {"kind": "product-svd", "split": "orthonormal-b"}
    mean, product = (
        last(play(experiment("fednl", **sets, method__aggregator=kind), tmp_path)) for kind in ({"kind": "mean"}, split)
    )
    spec = experiment("fednl", **sets).blueprint().build().spec
    assert {entry.role for entry in spec} == {*FACTORS, Role.RULE, Role.HEAD}
    for entry in spec:
        averaged = torch.equal(mean.theta[entry.name], product.theta[entry.name])
        assert averaged == (entry.role not in FACTORS), entry.name


# Variants of the adapter.


def logits(setup: Setup, theta: Mapping[str, Tensor], base: Base | None = None) -> Tensor:
    ids = torch.arange(10, 22).reshape(2, 6)
    with torch.no_grad(), bind(setup.backbone.model, theta, setup.spec, base) as bound:
        found: Tensor = bound(theta, input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    return found


def test_a_stabilised_adapter_is_the_same_function_at_its_own_scale() -> None:
    plain, stable = (row("lora-fedavg", method__trainable__stabilised=s).blueprint().build() for s in (False, True))
    assert {e.scale for e in stable.spec if e.role in FACTORS} == {4 / math.sqrt(2)}
    moved = {name: tensor + 0.01 for name, tensor in stable.start.items()}
    smaller = {n: t * math.sqrt(2) if "lora_B" in n else t for n, t in moved.items()}
    torch.testing.assert_close(logits(plain, smaller), logits(stable, moved))


def test_an_orthonormal_start_changes_nothing_and_trains(tmp_path: Path) -> None:
    played = row("subspace-reg", method__trainable__init="orthonormal-b")
    setup = played.blueprint().build()
    for b, a in setup.spec.pairs.values():
        matrix = setup.start[b.name].double()
        torch.testing.assert_close(matrix.mT @ matrix, torch.eye(2, dtype=torch.float64), atol=1e-6, rtol=0)
        assert not bool(setup.start[a.name].any())
    state = last(play(played, tmp_path))
    assert all(float(matrix.norm()) > 0 for matrix in effective(state, setup.spec).values())


@pytest.mark.parametrize(
    "variant", ["use_dora", "rank_pattern", "lora_dropout", "modules_to_save", "init_lora_weights"]
)
def test_a_variant_that_is_no_product_of_two_factors_is_refused_before_anything_loads(variant: str) -> None:
    with pytest.raises(CotuneError, match=f"no adapters with '{variant}'") as caught:
        recipe("subspace-reg", **{f"trainable.{variant}": True})
    assert caught.value.code is Code.CONFIG


def test_a_frozen_factor_of_zeros_is_refused() -> None:
    for fields in ({"train": "A"}, {"train": "B", "init": "orthonormal-b"}):
        with pytest.raises(CotuneError, match="no factor would ever move"):
            recipe("lora-fedavg", **{f"trainable.{name}": value for name, value in fields.items()})


def test_a_layer_that_is_no_matrix_is_refused_by_name() -> None:
    backbone = Backbone(ref="random:bert?layers=1&hidden=16&heads=2").load("classification", 2, seed=5)
    with pytest.raises(CotuneError, match="no low-rank factors for this kind of layer") as caught:
        ct.trainable.LoRA(rank=2, targets=("word_embeddings",)).attach(backbone, 1, "all")
    assert "word_embeddings (Embedding)" in str(caught.value)


def test_a_rank_above_a_layers_outputs_has_no_orthonormal_start() -> None:
    backbone = Backbone(ref="random:bert?layers=1&hidden=16&heads=2").load("classification", 2, seed=5)
    with pytest.raises(CotuneError, match="fewer outputs than the rank"):
        ct.trainable.LoRA(rank=17, init="orthonormal-b").attach(backbone, 1, "all")
