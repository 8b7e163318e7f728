"""Zeroth-order training in a Flower app: scalars go up, and what the server makes of them is what nodes had."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from itertools import repeat
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("flwr.serverapp.strategy")

from flwr.app import ArrayRecord, ConfigRecord
from grid import Fault, LocalGrid
from toy_app import EXAMPLES, SHAPES, drawn, federation, mean, start, tensors

from cotune.core.errors import Code, CotuneError
from cotune.core.seeds import derive
from cotune.flower.strategy import ZOReplay, model_at, zo_steps
from cotune.noise import signs

Named = Mapping[str, Tensor]
Kept = dict[tuple[int, int], tuple[Named, Named, ConfigRecord]]


def loss(named: Named, target: float) -> Tensor:
    """½ Σ (θ − target)² as one row."""
    return torch.stack([(tensor.double() - target).square().sum() / 2 for tensor in named.values()]).sum()


def zeroth(kept: Kept, batches: Callable[[int], Any] = lambda partition: repeat(partition / 4)) -> LocalGrid:
    """Nodes that descend, and remember by (round, partition) what they were asked, what they sent, and arrived at."""

    def train(sent: dict[str, Tensor], config: ConfigRecord, partition: int) -> tuple[Named, Mapping[str, Any]]:
        scalars, after = zo_steps(loss, sent, config, batches(partition))
        up = tensors(scalars)
        kept[int(str(config["server-round"])), partition] = up, after, config
        return up, {}

    return federation(train)


@pytest.mark.parametrize(
    "settings",
    [{}, {"seeds": "shared", "directions": 5, "difference": "forward"}, {"direction": "rank1", "directions": 2}],
    ids=["mezo", "decomfl", "rank1"],
)
def test_the_server_arrives_at_the_mean_of_what_nodes_arrived_at(settings: dict[str, Any]) -> None:
    kept: Kept = {}
    strategy = ZOReplay(steps=3, lr=1e-3, seed=1, **settings)
    result, seen = start(strategy, zeroth(kept), drawn("start"), rounds=3)
    assert strategy.dropped == {1: {}, 2: {}, 3: {}}
    assert result.train_metrics_clientapp[3]["dropped-replies"] == 0
    for round_ in (1, 2, 3):
        expected = mean([kept[round_, i][1] for i in range(3)], EXAMPLES)
        for name in SHAPES:
            assert not torch.equal(seen[round_][name], seen[round_ - 1][name])
            assert torch.equal(seen[round_][name], expected[name].float())
    seeds = [config["zo-seed"] for _, _, config in kept.values()]
    assert len(set(seeds)) == (3 if settings.get("seeds") == "shared" else 9)
    assert all(config["lr"] == 0.1 for _, _, config in kept.values())  # what the app told is still told
    sent = {name: tuple(t.shape) for up, _, _ in kept.values() for name, t in up.items()}
    assert sent == {f"{settings.get('direction', 'sign')}/all": (3, settings.get("directions", 1))}


def test_one_node_alone_and_the_server_hold_the_same_bits() -> None:
    kept: Kept = {}
    strategy = ZOReplay(
        steps=20, lr=1e-3, directions=3, seed=1, min_train_nodes=1, min_available_nodes=1, min_replies=1
    )
    strategy.min_evaluate_nodes = 1
    grid = zeroth(kept)
    grid.offline.update(grid.ids[1:])
    _, seen = start(strategy, grid, drawn("start"))
    assert all(torch.equal(tensor, seen[2][name]) for name, tensor in kept[2, 0][1].items())


def test_theta_moves_along_the_signs_of_the_seed_by_the_scalars_that_were_sent() -> None:
    kept: Kept = {}
    _, seen = start(ZOReplay(steps=2, lr=1e-3, directions=2, seed=1), zeroth(kept), drawn("start"), rounds=1)
    for partition in range(3):
        up, after, config = kept[1, partition]
        flat = torch.cat([seen[0][name].reshape(-1) for name in sorted(SHAPES)])
        for step, row in enumerate(up["sign/all"]):
            for direction, coefficient in enumerate(row):
                seed = derive(int(str(config["zo-seed"])), step)
                flat = flat + coefficient * signs(seed, direction, 0, len(flat))
        assert torch.equal(flat, torch.cat([after[name].reshape(-1) for name in sorted(SHAPES)]))


def test_slopes_are_those_of_the_loss() -> None:
    config = {"zo-seed": 5, "zo-steps": 1, "zo-lr": 1e-3, "zo-eps": 2.0**-10, "zo-directions": 4}
    start_ = drawn("start")
    scalars, _ = zo_steps(loss, start_, config, [0.25])
    flat = torch.cat([start_[name].reshape(-1) for name in sorted(start_)]).double()
    for direction, coefficient in enumerate(tensors(scalars)["sign/all"][0]):
        z = signs(derive(5, 0), direction, 0, len(flat)).double()
        slope = float((flat - 0.25) @ z)
        assert float(coefficient) == pytest.approx(-1e-3 / 4 * slope, rel=1e-4, abs=1e-8)


def test_the_loss_falls() -> None:
    strategy = ZOReplay(steps=15, lr=4e-3, directions=2, seed=1, fraction_evaluate=0.0)
    _, seen = start(strategy, zeroth({}, lambda _: repeat(0.0)), drawn("start"), rounds=3)
    before, after = (float(loss(named, 0.0)) for named in (seen[0], seen[-1]))
    assert after < 0.85 * before


def test_seeds_come_from_the_operating_system_unless_one_is_given() -> None:
    found = []
    for seed in (None, None, 3, 3):
        kept: Kept = {}
        start(ZOReplay(steps=1, lr=1e-3, seed=seed), zeroth(kept), drawn("start"), rounds=1)
        found.append(kept[1, 0][2]["zo-seed"])
    assert len(set(found)) == 3


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda up: {name: tensor * math.nan for name, tensor in up.items()}, "E_NONFINITE"),
        (lambda up: {name: tensor + 3 for name, tensor in up.items()}, "E_SCALAR"),
        (lambda up: {name: tensor[:2] for name, tensor in up.items()}, "E_SHAPE"),
        (lambda up: {name: tensor.double() for name, tensor in up.items()}, "E_DTYPE"),
        (lambda up: {f"gaussian/{name}": tensor for name, tensor in up.items()}, "E_KEYS"),
        (lambda _: drawn("start"), "E_KEYS"),
    ],
    ids=["NaN", "too large", "too few", "too exact", "another kind", "arrays"],
)
def test_scalars_that_were_not_asked_for_are_dropped(spoil: Callable[[Named], Named], code: str) -> None:
    kept: Kept = {}
    grid, strategy = zeroth(kept), ZOReplay(steps=3, lr=1e-3, seed=1)

    def spoiled(content: Any) -> Any:
        content["arrays"] = ArrayRecord(dict(spoil(tensors(content["arrays"]))))
        return content

    grid.faults = {grid.ids[1]: Fault(spoil=spoiled, on=lambda m: m.metadata.message_type == "train")}
    _, seen = start(strategy, grid, drawn("start"), rounds=1)
    assert strategy.dropped == {1: {grid.ids[1]: code}}
    expected = mean([kept[1, i][1] for i in (0, 2)], [EXAMPLES[0], EXAMPLES[2]])
    assert all(torch.equal(seen[1][name], expected[name].float()) for name in SHAPES)


def test_a_node_without_a_finite_loss_or_with_too_few_batches_costs_a_round(caplog: pytest.LogCaptureFixture) -> None:
    def batches(partition: int) -> Any:
        return {0: repeat(0.0), 1: repeat(math.nan), 2: [0.0, 0.0]}[partition]

    strategy, grid = ZOReplay(steps=3, lr=1e-3, seed=1, min_replies=1), zeroth({}, batches)
    with caplog.at_level(logging.WARNING, "flwr"):
        start(strategy, grid, drawn("start"), rounds=1)
    assert strategy.dropped == {1: dict.fromkeys(sorted(grid.ids[1:]), "E_CLIENT")}


def test_what_cannot_be_replayed_is_refused_at_once() -> None:
    every: list[dict[str, Any]] = [{"lr": -1.0}, {"lr": 1.0, "directions": 0}, {"lr": 1.0, "direction": "gaussian"}]
    for settings in every:
        with pytest.raises(CotuneError) as caught:
            ZOReplay(steps=1, **settings)
        assert caught.value.code in (Code.CONFIG, Code.CONFLICT)
    with pytest.raises(CotuneError, match="no number of steps"):
        ZOReplay(steps=0, lr=1e-3)
    with pytest.raises(CotuneError) as caught:
        start(ZOReplay(steps=1, lr=1e-3), zeroth({}), {"x": torch.ones(3).half()})
    assert caught.value.code is Code.DTYPE
    for missing in ("zo-seed", "zo-steps", "zo-lr"):
        config = {"zo-seed": 5, "zo-steps": 1, "zo-lr": 1e-3}
        del config[missing]
        with pytest.raises(CotuneError) as caught:
            zo_steps(loss, drawn("start"), config, [0.0])
        assert caught.value.code is Code.CONFIG


def test_a_model_runs_at_other_tensors_and_keeps_its_own() -> None:
    model = nn.Sequential(nn.Embedding(300, 64), nn.Linear(64, 5))
    own = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    run, inputs = model_at(model), torch.tensor([[1, 2, 299]])

    def cross(named: Named, batch: Tensor) -> Tensor:
        logits: Tensor = run(named, batch)
        return nn.functional.cross_entropy(logits.view(-1, 5), torch.tensor([0, 1, 2]), reduction="none")

    # 300 · 64 numbers are made where they are used; written out, they give the same losses
    config = {"zo-seed": 5, "zo-steps": 3, "zo-lr": 1e-4, "zo-directions": 2}
    scalars, after = zo_steps(cross, own, config, repeat(inputs))
    dense, same = zo_steps(lambda n, b: cross({k: t + 0 for k, t in n.items()}, b), own, config, repeat(inputs))
    assert all(torch.equal(tensor, same[name]) for name, tensor in after.items())
    assert torch.equal(tensors(scalars)["sign/all"], tensors(dense)["sign/all"])
    assert all(torch.equal(tensor, own[name]) for name, tensor in model.state_dict().items())
    assert not torch.equal(after["0.weight"], own["0.weight"])
    with pytest.raises(CotuneError) as caught:
        run({"nowhere": torch.ones(1)}, inputs)
    assert caught.value.code is Code.KEYS
