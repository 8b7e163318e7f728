"""A Flower app of three nodes that train LoRA factors of a few numbers, for tests of strategies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, Result
from grid import LocalGrid
from torch import Tensor

from cotune.core.seeds import derive, torch_generator

RANK = 3
SIZES = {"q": (12, 10), "v": (7, 10)}  # module -> d_out, d_in
EXAMPLES = (3, 5, 9)
SHAPES: Mapping[str, tuple[int, ...]] = {
    "head.weight": (4, 12),
    **{f"base_model.model.{m}.lora_A.weight": (RANK, d_in) for m, (_, d_in) in SIZES.items()},
    **{f"base_model.model.{m}.lora_B.weight": (d_out, RANK) for m, (d_out, _) in SIZES.items()},
}
Named = Mapping[str, Tensor]
Train = Callable[[dict[str, Tensor], ConfigRecord, int], tuple[Named, Mapping[str, Any]]]


def drawn(*path: int | str, shapes: Mapping[str, tuple[int, ...]] = SHAPES) -> dict[str, Tensor]:
    """Standard normal numbers by name."""
    return {n: torch.randn(shape, generator=torch_generator(derive(0, *path, n))) for n, shape in shapes.items()}


def arrays(tensors: Named) -> ArrayRecord:
    """As Flower sends them."""
    return ArrayRecord(dict(tensors))


def tensors(record: ArrayRecord) -> dict[str, Tensor]:
    """As they came."""
    return dict(record.to_torch_state_dict())


def moved(sent: Named, config: Mapping[str, Any], partition: int) -> tuple[Named, Mapping[str, Any]]:
    """What a node trains: a step that depends on it and on the round alone."""
    step = drawn("step", int(config["server-round"]), partition, shapes={n: tuple(t.shape) for n, t in sent.items()})
    return {name: tensor + step[name] for name, tensor in sent.items()}, {"loss": 1.0 + partition}


def app(train: Train) -> ClientApp:
    """Nodes that train by a function of (arrays, config, partition), and evaluate to their partition."""
    made = ClientApp()

    def partition_of(context: Context) -> int:
        return int(context.node_config["partition-id"])

    @made.train()
    def _train(message: Message, context: Context) -> Message:
        content, partition = message.content, partition_of(context)
        after, metrics = train(tensors(content.array_records["arrays"]), content.config_records["config"], partition)
        told = MetricRecord({"num-examples": EXAMPLES[partition % 3], **metrics})
        return Message(RecordDict({"arrays": arrays(after), "metrics": told}), reply_to=message)

    @made.evaluate()
    def _evaluate(message: Message, context: Context) -> Message:
        told = MetricRecord({"num-examples": EXAMPLES[partition_of(context) % 3], "loss": float(partition_of(context))})
        return Message(RecordDict({"metrics": told}), reply_to=message)

    return made


def federation(train: Train = moved, nodes: int = 3) -> LocalGrid:
    """Nodes, each of a partition."""
    return LocalGrid(app(train), [{"partition-id": i, "num-partitions": nodes} for i in range(nodes)])


def start(strategy: FedAvg, grid: LocalGrid, initial: Named, rounds: int = 2) -> tuple[Result, list[dict[str, Tensor]]]:
    """The result, and the arrays before the first round and after each."""
    seen: list[dict[str, Tensor]] = []

    def evaluate(_: int, record: ArrayRecord) -> MetricRecord:
        seen.append(tensors(record))
        return MetricRecord({"seen": len(seen)})

    config = ConfigRecord({"lr": 0.1})
    result = strategy.start(
        grid, arrays(initial), num_rounds=rounds, timeout=5, train_config=config, evaluate_fn=evaluate
    )
    return result, seen


def mean(thetas: Sequence[Named], weights: Sequence[float]) -> dict[str, Tensor]:
    """Σ n θ / Σ n, in float64."""
    total = {name: torch.zeros(tensor.shape, dtype=torch.float64) for name, tensor in thetas[0].items()}
    for theta, weight in zip(thetas, weights, strict=True):
        total = {name: tensor + weight / sum(weights) * theta[name].double() for name, tensor in total.items()}
    return total


def pair(theta: Named, module: str) -> tuple[Tensor, Tensor]:
    """B and A, in float64."""
    b, a = (theta[f"base_model.model.{module}.lora_{half}.weight"].double() for half in "BA")
    return b, a


def best(products: Sequence[Tensor], weights: Sequence[float], rank: int = RANK) -> Tensor:
    """The truncated SVD of Σ n M / Σ n, dense, in float64."""
    total = torch.zeros_like(products[0])
    for product, weight in zip(products, weights, strict=True):
        total = total + weight / sum(weights) * product
    u, sigma, v = torch.linalg.svd(total)
    found: Tensor = u[:, :rank] * sigma[:rank] @ v[:rank]
    return found
