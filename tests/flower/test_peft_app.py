"""An app like FlowerTune's, a causal model with a LoRA adapter of PEFT's on two nodes, with our strategies in it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr.serverapp.strategy")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from grid import LocalGrid
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from transformers import LlamaConfig, LlamaForCausalLM

from cotune.core.errors import Code, CotuneError
from cotune.core.seeds import torch_generator
from cotune.flower.strategy import (
    CheckedAvg,
    SubspaceRegAvg,
    SVDRedistribute,
    ZOReplay,
    model_at,
    subspace_penalty,
    zo_steps,
)

# PEFT asks transformers by a name that is going out of use.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
RANK, ALPHA, NODES = 4, 8, 2
Train = Callable[[Any, ArrayRecord, ConfigRecord, list[Tensor]], tuple[ArrayRecord, float]]


@pytest.fixture(scope="module")
def frozen() -> Any:
    """The model that every node and the server have."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        shape = LlamaConfig(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=1,
            num_attention_heads=2,
            initializer_range=0.3,
        )
        model = LlamaForCausalLM(shape)
        config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM")
        return get_peft_model(model, config).eval()


def texts(partition: int) -> list[Tensor]:
    """Batches of synthetic token ids: each node repeats a cycle of its own."""
    ring = torch.randperm(32, generator=torch_generator(partition))[:6].repeat(5)
    return [ring[i : i + 16].repeat(2, 1) for i in range(6)]


def app(frozen: Any, train: Train) -> ClientApp:
    """The client app, as FlowerTune's has it: load the arrays, train, send the arrays."""
    made = ClientApp()

    @made.train()
    def _train(message: Message, context: Context) -> Message:
        model = copy.deepcopy(frozen)
        content, batches = message.content, texts(int(context.node_config["partition-id"]))
        record, config = content.array_records["arrays"], content.config_records["config"]
        set_peft_model_state_dict(model, record.to_torch_state_dict())
        sent, value = train(model, record, config, batches)
        metrics = MetricRecord({"train_loss": value, "num-examples": 2 * len(batches)})
        return Message(RecordDict({"arrays": sent, "metrics": metrics}), reply_to=message)

    return made


def descend(model: Any, record: ArrayRecord, config: ConfigRecord, batches: list[Tensor]) -> tuple[ArrayRecord, float]:
    """A training loop of one's own; the penalty is one line before it and one in it."""
    penalty = subspace_penalty(model, record, config) if "subspace-mu" in config else lambda: torch.zeros(())
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=float(str(config["lr"])))
    for ids in batches:
        loss = model(input_ids=ids, labels=ids).loss
        (loss + penalty()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return ArrayRecord(get_peft_model_state_dict(model)), float(loss.detach())


def look(model: Any, record: ArrayRecord, config: ConfigRecord, batches: list[Tensor]) -> tuple[ArrayRecord, float]:
    """Zeroth-order steps in place of a training loop."""
    run = model_at(model)
    scalars, after = zo_steps(
        lambda tensors, ids: run(tensors, input_ids=ids, labels=ids).loss, record, config, cycle(batches)
    )
    with torch.no_grad():
        value = run(after, input_ids=batches[0], labels=batches[0]).loss
    return scalars, float(value)


@pytest.mark.parametrize(
    ("strategy", "train"),
    [
        (lambda: SubspaceRegAvg(mu=0.01, fraction_evaluate=0.0), descend),
        (lambda: SVDRedistribute(fraction_evaluate=0.0), descend),
        (lambda: CheckedAvg(fraction_evaluate=0.0), descend),
        (lambda: ZOReplay(steps=6, lr=4e-3, directions=2, seed=1, largest=50.0, fraction_evaluate=0.0), look),
    ],
    ids=["subspace", "svd", "mean", "zo"],
)
def test_an_app_with_another_strategy_learns_and_its_arrays_are_an_adapter(
    frozen: Any, strategy: Callable[[], CheckedAvg], train: Train
) -> None:
    losses: list[float] = []

    def evaluate(_: int, record: ArrayRecord) -> MetricRecord:
        model = copy.deepcopy(frozen)
        loaded: Any = set_peft_model_state_dict(model, record.to_torch_state_dict())
        assert not loaded.unexpected_keys
        with torch.no_grad():
            found = [float(model(input_ids=ids, labels=ids).loss) for i in range(NODES) for ids in texts(i)]
        losses.append(sum(found) / len(found))
        return MetricRecord({"loss": losses[-1]})

    built = strategy()
    grid = LocalGrid(app(frozen, train), [{"partition-id": i, "num-partitions": NODES} for i in range(NODES)])
    initial = ArrayRecord(get_peft_model_state_dict(frozen))
    config = ConfigRecord({"lr": 1e-2, "save_path": "results"})
    result = built.start(grid, initial, num_rounds=3, timeout=30, train_config=config, evaluate_fn=evaluate)
    assert built.dropped == {1: {}, 2: {}, 3: {}}
    assert losses[-1] < losses[0] - 0.05
    assert list(result.arrays) == list(initial)
    told = grid.pushed[-1].content.config_records["config"]
    assert {"lr", "save_path", "server-round"} <= set(told)
    if isinstance(built, SubspaceRegAvg):
        assert (told["subspace-mu"], told["subspace-anchor"]) == (0.01, "arrays")
        for name, array in result.arrays.items():
            if "lora_B" in name:
                b = torch.from_numpy(array.numpy())
                torch.testing.assert_close(b.mT @ b, torch.eye(RANK), atol=1e-5, rtol=0)


def test_the_penalty_is_the_papers_and_pulls_back_to_what_came_down(frozen: Any) -> None:
    model = copy.deepcopy(frozen)
    factors = {n: p for n, p in model.named_parameters() if p.requires_grad}
    assert len(factors) == 14
    with torch.no_grad():
        for i, parameter in enumerate(factors.values()):
            parameter.copy_(torch.randn(parameter.shape, generator=torch_generator(i)))
    record = ArrayRecord({n: t.clone() for n, t in get_peft_model_state_dict(model).items()})
    pull = subspace_penalty(model, record, {"subspace-mu": 0.3})
    assert float(pull().detach()) == 0
    with torch.no_grad():
        for i, parameter in enumerate(factors.values()):
            parameter.add_(torch.randn(parameter.shape, generator=torch_generator(50 + i)), alpha=0.1)
    config = {"subspace-mu": 0.3, "subspace-ridge": 0.2, "subspace-basis": 0.1}
    value = subspace_penalty(model, record, config)()
    value.backward()  # type: ignore[no-untyped-call]

    wide = {n: p.detach().double().requires_grad_() for n, p in factors.items()}
    anchor = {n.replace(".weight", ".default.weight"): t.double() for n, t in record.to_torch_state_dict().items()}
    terms = []
    for name in [n for n in wide if "lora_A" in n]:
        a, b = wide[name], wide[name.replace("lora_A", "lora_B")]
        a_g, b_g = anchor[name], anchor[name.replace("lora_A", "lora_B")]
        apart = (ALPHA / RANK) ** 2 * (b @ a - b_g @ a_g).square().sum()
        ridge = a.square().sum() + b.square().sum()
        terms.append(0.3 / 2 * apart + 0.2 / 2 * ridge + 0.1 / 2 * (b - b_g).square().sum())
    expected = torch.stack(terms).mean()
    expected.backward()  # type: ignore[no-untyped-call]
    assert float(value.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    for name, parameter in factors.items():
        found, wanted = parameter.grad, wide[name].grad
        assert found is not None
        assert wanted is not None
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-6)
    added = subspace_penalty(model, record, {**config, "subspace-reduction": "sum"})()
    assert float(added.detach()) == pytest.approx(len(terms) * float(expected.detach()), rel=1e-5)


@pytest.mark.parametrize(
    ("config", "code"),
    [({}, Code.CONFIG), ({"subspace-mu": -1.0}, Code.CONFIG), ({"subspace-mu": 1.0}, Code.KEYS)],
    ids=["no strength", "a negative strength", "another model"],
)
def test_a_penalty_that_means_nothing_is_refused(frozen: Any, config: Mapping[str, Any], code: Code) -> None:
    record = ArrayRecord(get_peft_model_state_dict(frozen))
    model = torch.nn.Linear(2, 2) if code is Code.KEYS else frozen
    with pytest.raises(CotuneError) as caught:
        subspace_penalty(model, record, config)
    assert caught.value.code is code


def test_a_strategy_takes_no_strength_that_a_penalty_does_not() -> None:
    with pytest.raises(CotuneError) as caught:
        SubspaceRegAvg(mu=-0.1)
    assert caught.value.code is Code.CONFIG
