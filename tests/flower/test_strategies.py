"""Strategies that take FedAvg's place in a Flower app, on nodes of this process."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from io import BytesIO
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr.serverapp.strategy")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from grid import Fault
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import Recorded, experiment, play
from toy_app import EXAMPLES, RANK, SHAPES, SIZES, arrays, best, drawn, federation, mean, moved, pair, start, tensors

from cotune.checkpoint import unpack
from cotune.core.errors import Code, CotuneError
from cotune.flower.strategy import CheckedAvg, SubspaceRegAvg, SVDRedistribute, fitted
from cotune.flower.strategy.arrays import read
from cotune.setup import Setup
from cotune.store import Checkpoints

A, B, HEAD = "base_model.model.q.lora_A.weight", "base_model.model.q.lora_B.weight", "head.weight"
EYE = torch.eye(RANK, dtype=torch.float64)


@pytest.mark.parametrize("kind", [SubspaceRegAvg, SVDRedistribute])
def test_factors_become_the_truncated_svd_of_the_mean_product_and_the_rest_its_mean(kind: type[CheckedAvg]) -> None:
    result, seen = start(kind(), federation(), drawn("start"), rounds=3)
    for round_, (before, after) in enumerate(pairwise(seen), start=1):
        replies = [moved(before, {"server-round": round_}, i)[0] for i in range(3)]
        assert [*after] == [*SHAPES]
        assert {tensor.dtype for tensor in after.values()} == {torch.float32}
        for module in SIZES:
            b, a = pair(after, module)
            expected = best([x @ y for x, y in (pair(theta, module) for theta in replies)], EXAMPLES)
            assert float((b @ a - expected).norm()) <= 1e-6 * float(expected.norm())
            if kind is SubspaceRegAvg:
                torch.testing.assert_close(b.mT @ b, EYE, atol=1e-6, rtol=0)
            else:
                torch.testing.assert_close(b.mT @ b, a @ a.mT, atol=1e-5, rtol=0)
        torch.testing.assert_close(after[HEAD].double(), mean(replies, EXAMPLES)[HEAD], atol=1e-6, rtol=0)
    assert all(torch.equal(tensor, seen[-1][name]) for name, tensor in tensors(result.arrays).items())


@pytest.mark.parametrize(
    ("recipe", "kind"), [("subspace-reg", SubspaceRegAvg), ("svd-redistribution", SVDRedistribute)]
)
def test_a_round_of_ours_on_the_same_replies_comes_to_the_same(
    recipe: str, kind: type[CheckedAvg], tmp_path: Path
) -> None:
    sent: dict[str, Mapping[str, Tensor]] = {}

    def recorded(setup: Setup, folder: Path) -> Recorded:
        engine = Recorded(setup, folder)
        engine.sent = sent
        return engine

    played = experiment(recipe, method__trainable__rank=2, federation={"rounds": 1}, evaluation={"which": "none"})
    setup, run = played.blueprint().build(), play(played, tmp_path, make_engine=recorded)
    found = Checkpoints(run.folder / "checkpoints").latest()
    assert found is not None
    ours, clients = unpack(found[1])[0].theta, sorted(sent)
    weights = [run.rounds[0].weights[client] for client in clients]

    grid = federation(lambda *asked: (sent[clients[asked[2]]], {"share": weights[asked[2]]}), nodes=len(clients))
    strategy = kind(weighted_by_key="share", min_train_nodes=len(clients), fraction_evaluate=0.0)
    _, (_, theirs) = start(strategy, grid, setup.start, rounds=1)
    assert set(theirs) == set(ours)
    assert any(not torch.equal(ours[name], setup.start[name]) for name in ours)
    for name, tensor in theirs.items():
        torch.testing.assert_close(tensor, ours[name], atol=1e-6, rtol=1e-6)


def test_the_mean_is_fedavgs_where_nothing_is_wrong() -> None:
    _, ours = start(CheckedAvg(), federation(), drawn("start"))
    _, theirs = start(FedAvg(), federation(), drawn("start"))
    for name in SHAPES:
        torch.testing.assert_close(ours[-1][name], theirs[-1][name], atol=1e-6, rtol=0)


def test_replies_may_arrive_in_any_order() -> None:
    def train(sent: dict[str, Tensor], config: ConfigRecord, partition: int) -> tuple[Any, Mapping[str, Any]]:
        big = torch.full((4, 12), (2.0**60, -(2.0**60), 1.0)[partition])  # their sum depends on the order
        return {**moved(sent, {"server-round": 1}, partition)[0], HEAD: big}, {"num-examples": 1}

    digests = set()
    for order in permutations(range(3)):
        grid, strategy = federation(train), SubspaceRegAvg()
        asked = strategy.configure_train(1, arrays(drawn("start")), ConfigRecord(), grid)
        replies = {reply.metadata.src_node_id: reply for reply in grid.send_and_receive(asked)}
        made, _ = strategy.aggregate_train(1, [replies[grid.ids[i]] for i in order])
        assert made is not None
        digests.add(b"".join(array.data for array in made.values()))
    assert len(digests) == 1


def test_whole_numbers_and_half_precision_keep_their_dtype() -> None:
    initial = {"steps": torch.tensor([3, 8]), "bias": torch.randn(5).half(), **drawn("start")}

    def train(sent: dict[str, Tensor], _: ConfigRecord, partition: int) -> tuple[dict[str, Tensor], dict[str, float]]:
        return {**sent, "steps": sent["steps"] + partition}, {}

    _, seen = start(SVDRedistribute(), federation(train), initial, rounds=1)
    assert torch.equal(seen[-1]["steps"], torch.tensor([4, 9]))  # (3·0 + 5·1 + 9·2) / 17 = 1.35
    assert torch.equal(seen[-1]["bias"], initial["bias"])


def test_nodes_of_smaller_rank_count_by_their_own_scale() -> None:
    ranks = (1, 2, 3)

    def train(sent: dict[str, Tensor], config: ConfigRecord, partition: int) -> tuple[Any, Mapping[str, Any]]:
        own = tensors(fitted(arrays(sent), ranks[partition]))
        return moved(own, config, partition)

    _, (before, after) = start(SVDRedistribute(mixed_ranks=True), federation(train), drawn("start"), rounds=1)
    for module in SIZES:
        products = []
        for i, rank in enumerate(ranks):
            b, a = (x.narrow(axis, 0, rank) for axis, x in zip((1, 0), pair(before, module), strict=True))
            names = [f"base_model.model.{module}.lora_{half}.weight" for half in "BA"]
            # alpha / r in front of every product: what comes down means the same at any rank
            fitted_ = {names[0]: (b * rank / RANK).float(), names[1]: a.float()}
            sent = moved({**before, **fitted_}, {"server-round": 1}, i)[0]
            b, a = pair(sent, module)
            products.append(RANK / rank * b @ a)
        expected = best(products, EXAMPLES)
        b, a = pair(after, module)
        assert float((b @ a - expected).norm()) <= 1e-6 * float(expected.norm())


def training(message: Message) -> bool:
    return message.metadata.message_type == "train"


def spoiled(change: Callable[[dict[str, Any], dict[str, Any]], object]) -> Callable[[RecordDict], RecordDict]:
    """A reply after something was done to its arrays or to its metrics."""

    def spoil(content: RecordDict) -> RecordDict:
        named: dict[str, Any] = {**tensors(content.array_records["arrays"])}
        told = dict(content.metric_records["metrics"])
        change(named, told)
        record = ArrayRecord({n: Array(t.numpy()) if isinstance(t, Tensor) else t for n, t in named.items()})
        return RecordDict({"arrays": record, "metrics": MetricRecord(told)})

    return spoil


def lying(dtype: str, shape: tuple[int, ...]) -> Array:
    """An array whose bytes are another than it says."""
    return Array(dtype, shape, "numpy.ndarray", Array(torch.ones(1).numpy()).data)


def written(shape: tuple[int, ...], data: bytes) -> Array:
    """An array whose header promises this shape, followed by these bytes."""
    file = BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return Array("float32", (4, 12), "numpy.ndarray", file.getvalue() + data)


BROKEN = written((4, 12), b"\0" * 192).data.replace(b"}", b"(")

BAD: Mapping[str, tuple[Code, Callable[[RecordDict], RecordDict]]] = {
    "a NaN": (Code.NONFINITE, spoiled(lambda named, _: named[HEAD].view(-1)[3:4].fill_(math.nan))),
    "an infinity": (Code.NONFINITE, spoiled(lambda named, _: named[B].view(-1)[:1].fill_(math.inf))),
    "a missing array": (Code.KEYS, spoiled(lambda named, _: named.pop(A))),
    "another array": (Code.KEYS, spoiled(lambda named, _: named.update(more=torch.ones(2)))),
    "a broadcast": (Code.SHAPE, spoiled(lambda named, _: named.update({HEAD: torch.ones(1)}))),
    "another rank": (Code.SHAPE, spoiled(lambda named, _: named.update({A: named[A][:2], B: named[B][:, :2]}))),
    "another dtype": (Code.DTYPE, spoiled(lambda named, _: named.update({HEAD: named[HEAD].double()}))),
    "a lie": (Code.SHAPE, spoiled(lambda named, _: named.update({HEAD: lying("float32", (4, 12))}))),
    "no array": (
        Code.FORMAT,
        spoiled(lambda named, _: named.update({HEAD: Array("float32", (4, 12), "numpy.ndarray", b"\0" * 192)})),
    ),
    "a pickle": (Code.FORMAT, spoiled(lambda named, _: named.update({HEAD: Array("float32", (4, 12), "pickle", b"")}))),
    "cut bytes": (
        Code.TRUNCATED,
        spoiled(lambda named, _: named.update({HEAD: written((4, 12), b"\0" * 191)})),
    ),
    "endless bytes": (Code.TRUNCATED, spoiled(lambda named, _: named.update({HEAD: written((10**12,), b"\0" * 4)}))),
    "a broken header": (
        Code.FORMAT,
        spoiled(lambda named, _: named.update({HEAD: Array("float32", (1,), "numpy.ndarray", BROKEN)})),
    ),
    "no examples": (Code.COUNT, spoiled(lambda _, told: told.update({"num-examples": 0}))),
    "endless examples": (Code.COUNT, spoiled(lambda _, told: told.update({"num-examples": 1e300}))),
    "NaN examples": (Code.COUNT, spoiled(lambda _, told: told.update({"num-examples": math.nan}))),
    "many counts": (Code.COUNT, spoiled(lambda _, told: told.update({"num-examples": [1, 2]}))),
    "no count": (Code.COUNT, spoiled(lambda _, told: told.pop("num-examples"))),
    "no metrics": (Code.KEYS, lambda content: RecordDict({"arrays": content.array_records["arrays"]})),
    "no arrays": (Code.KEYS, lambda content: RecordDict({"metrics": content.metric_records["metrics"]})),
    "nothing": (Code.KEYS, lambda _: RecordDict()),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_reply_costs_its_node_a_round_and_nobody_else_anything(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    code, spoil = BAD[what]
    grid, strategy = federation(), SubspaceRegAvg()
    bad = grid.ids[1]
    grid.faults = {bad: Fault(spoil=spoil, on=training)}
    with caplog.at_level(logging.WARNING, "flwr"):
        result, (before, after) = start(strategy, grid, drawn("start"), rounds=1)
    replies = [moved(before, {"server-round": 1}, i)[0] for i in (0, 2)]
    weights = [EXAMPLES[0], EXAMPLES[2]]
    b, a = pair(after, "q")
    expected = best([x @ y for x, y in (pair(theta, "q") for theta in replies)], weights)
    assert float((b @ a - expected).norm()) <= 1e-6 * float(expected.norm())
    torch.testing.assert_close(after[HEAD].double(), mean(replies, weights)[HEAD], atol=1e-6, rtol=0)
    assert strategy.dropped == {1: {bad: code.value}}
    assert result.train_metrics_clientapp[1]["dropped-replies"] == 1
    assert f"error[{code}]" in caplog.text
    assert f"node {bad}" in caplog.text


@settings(max_examples=60)
@given(st.data())
def test_bytes_that_are_no_array_raise_an_error_of_ours(data: st.DataObject) -> None:
    good = written((4, 12), b"\0" * 192)
    changed = bytearray(good.data)
    for at in data.draw(st.lists(st.integers(0, len(changed) - 1), min_size=1, max_size=4)):
        changed[at] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(changed)) | st.just(len(changed)))
    record = ArrayRecord({"x": Array("float32", (4, 12), "numpy.ndarray", bytes(changed[:end]))})
    try:
        found = read(record, {"x": ("float32", (4, 12))})
    except CotuneError:
        return
    assert found["x"].shape == (4, 12)
    assert bool(torch.isfinite(found["x"]).all())


def test_two_factors_of_different_rank_are_no_pair() -> None:
    grid, strategy = federation(), SVDRedistribute(mixed_ranks=True)
    grid.faults = {grid.ids[0]: Fault(spoil=BAD["another rank"][1], on=training)}
    grid.faults[grid.ids[1]] = Fault(spoil=spoiled(lambda named, _: named.update({A: named[A][:2]})), on=training)
    start(strategy, grid, drawn("start"), rounds=1)
    assert strategy.dropped == {1: {grid.ids[1]: "E_SHAPE"}}


@pytest.mark.parametrize(
    ("fault", "code"),
    [(Fault(error=2), "E_CLIENT"), (Fault(error=8), "E_CLIENT"), (Fault(error=5), "E_LATE")],
    ids=["raised", "crashed", "unavailable"],
)
def test_a_node_that_fails_is_counted_and_the_others_go_on(fault: Fault, code: str) -> None:
    grid, strategy = federation(), SVDRedistribute()
    grid.faults = {grid.ids[2]: fault}
    result, seen = start(strategy, grid, drawn("start"))
    assert strategy.dropped == {1: {grid.ids[2]: code}, 2: {grid.ids[2]: code}}
    replies = [moved(seen[1], {"server-round": 2}, i)[0] for i in (0, 1)]
    torch.testing.assert_close(seen[2][HEAD].double(), mean(replies, EXAMPLES[:2])[HEAD], atol=1e-6, rtol=0)
    assert result.train_metrics_clientapp[2]["loss"] == pytest.approx((3 * 1 + 5 * 2) / 8)


def test_an_exception_in_a_node_leaves_its_text_there(caplog: pytest.LogCaptureFixture) -> None:
    def train(sent: dict[str, Tensor], config: ConfigRecord, partition: int) -> tuple[Any, Mapping[str, Any]]:
        if partition == 1:
            raise ValueError("a row of somebody's training text")
        return moved(sent, config, partition)

    with caplog.at_level(logging.INFO, "flwr"):
        start(SubspaceRegAvg(), federation(train), drawn("start"), rounds=1)
    ours = [record.getMessage() for record in caplog.records if record.name == "flwr"]
    assert any("Flower's error 2" in line for line in ours)
    assert not any("training text" in line for line in ours)


def test_too_few_good_replies_keep_the_arrays_and_say_so(caplog: pytest.LogCaptureFixture) -> None:
    grid, strategy = federation(), SubspaceRegAvg()
    first = {
        node: Fault(error=2, on=lambda m: m.content.config_records["config"]["server-round"] == 1)
        for node in grid.ids[:2]
    }
    grid.faults = dict(first)
    with caplog.at_level(logging.WARNING, "flwr"):
        result, seen = start(strategy, grid, drawn("start"))
    assert all(torch.equal(tensor, seen[0][name]) for name, tensor in seen[1].items())
    assert not torch.equal(seen[2][HEAD], seen[1][HEAD])
    assert "round 1 keeps the arrays: 1 good replies of 3, 2 needed" in caplog.text
    assert dict(result.train_metrics_clientapp[1]) == {"dropped-replies": 2}
    assert result.train_metrics_clientapp[2]["dropped-replies"] == 0
    one = SubspaceRegAvg(min_replies=1)
    grid.faults = first
    _, seen = start(one, grid, drawn("start"), rounds=1)
    assert not torch.equal(seen[1][HEAD], seen[0][HEAD])


def test_metrics_that_differ_between_nodes_or_are_not_finite_are_left_out() -> None:
    def train(sent: dict[str, Tensor], config: ConfigRecord, partition: int) -> tuple[Any, Mapping[str, Any]]:
        odd: dict[str, Any] = {
            f"only-{partition}": 1.0,
            "nan": math.nan if partition else 0.0,
            "all": [1.0, float(partition)],
        }
        return moved(sent, config, partition)[0], {**odd, "ragged": [1.0] * (partition + 1), "loss": partition}

    result, _ = start(SubspaceRegAvg(), federation(train), drawn("start"), rounds=1)
    expected = (5 * 1 + 9 * 2) / 17
    assert dict(result.train_metrics_clientapp[1]) == {
        "all": pytest.approx([1.0, expected]),
        "loss": pytest.approx(expected),
        "dropped-replies": 0,
    }
    assert result.evaluate_metrics_clientapp[1]["loss"] == pytest.approx(expected)


def test_an_evaluation_without_a_count_is_left_out() -> None:
    grid = federation()
    spoil = Fault(
        spoil=lambda _: RecordDict({"metrics": MetricRecord({"loss": 9.0})}),
        on=lambda message: not training(message),
    )
    grid.faults = {grid.ids[2]: spoil}
    result, _ = start(SubspaceRegAvg(), grid, drawn("start"), rounds=1)
    assert result.evaluate_metrics_clientapp[1]["loss"] == pytest.approx(5 / 8)


def test_no_node_counts_more_than_allowed() -> None:
    def train(sent: dict[str, Tensor], config: ConfigRecord, partition: int) -> tuple[Any, Mapping[str, Any]]:
        return moved(sent, config, partition)[0], {"num-examples": 10**9 if partition == 2 else 4, "loss": partition}

    result, (before, after) = start(CheckedAvg(most_examples=4), federation(train), drawn("start"), rounds=1)
    replies = [moved(before, {"server-round": 1}, i)[0] for i in range(3)]
    torch.testing.assert_close(after[HEAD].double(), mean(replies, (1, 1, 1))[HEAD], atol=1e-6, rtol=0)
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx(1.0)


def test_waiting_for_nodes_ends() -> None:
    grid = federation()
    grid.offline.update(grid.ids[:2])
    with pytest.raises(CotuneError, match="too few nodes after") as caught:
        start(SubspaceRegAvg(wait=0.05), grid, drawn("start"))
    assert caught.value.code is Code.QUORUM


def test_too_few_nodes_to_evaluate_end_no_run(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "flwr"):
        result, seen = start(SubspaceRegAvg(wait=0.05, min_evaluate_nodes=4), federation(), drawn("start"))
    assert len(seen) == 3
    assert not result.evaluate_metrics_clientapp
    assert "round 2 is not evaluated" in caplog.text


@pytest.mark.parametrize(
    ("initial", "code"),
    [
        ({"head.weight": torch.ones(2, 2)}, Code.KEYS),
        ({"q.lora_B.weight": torch.ones(4, 2)}, Code.KEYS),
        ({"q.lora_B.weight": torch.ones(4, 2), "q.lora_A.weight": torch.ones(3, 5)}, Code.SHAPE),
        ({"q.lora_B.weight": torch.ones(4, 2, 1, 1), "q.lora_A.weight": torch.ones(2, 5, 3, 3)}, Code.SHAPE),
    ],
    ids=["no pair", "half a pair", "two ranks", "a convolution"],
)
def test_arrays_that_are_no_adapter_are_refused_before_a_message_is_sent(initial: Any, code: Code) -> None:
    grid = federation()
    with pytest.raises(CotuneError) as caught:
        start(SubspaceRegAvg(), grid, initial)
    assert caught.value.code is code
    assert not grid.pushed


def test_names_with_an_adapter_and_of_embeddings_make_pairs() -> None:
    initial = {
        "e.lora_embedding_A": torch.randn(2, 9),
        "e.lora_embedding_B": torch.randn(5, 2),
        "q.lora_A.default.weight": torch.randn(2, 4),
        "q.lora_B.default.weight": torch.randn(6, 2),
    }
    _, seen = start(SubspaceRegAvg(), federation(), initial, rounds=1)
    for name in ("e.lora_embedding_B", "q.lora_B.default.weight"):
        torch.testing.assert_close(seen[1][name].mT @ seen[1][name], torch.eye(2), atol=1e-6, rtol=0)
