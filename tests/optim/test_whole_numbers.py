"""Zeroth-order steps beside frozen weights of 8 or 4 bits: theta is float32, and what is frozen is not touched."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cotune.backbone import Backbone, Loaded
from cotune.backbone.bind import bind
from cotune.backbone.cut import blocks
from cotune.core.contracts import Optimizer, Trainable
from cotune.core.seeds import Seeds, torch_generator
from cotune.core.spec import Scope
from cotune.core.state import digest
from cotune.core.view import Step, View
from cotune.noise import Trace
from cotune.objective import StepObjective
from cotune.optim import ZO, SplitZO, near
from cotune.task.classify import Classify
from cotune.trainable import Full, LoRA

PARTS = (ZO(lr=0.01), SplitZO(lr=0.01, again=2))
needs_extra = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes, of the extra quant, is not installed"
)
# bitsandbytes tells of casts and missing kernels by warnings of its own.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")


class Bytes(nn.Linear):
    """A frozen linear layer whose weight is int8, with a scale a row; its name for it is `weight`, as everywhere."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=layer.bias is not None)
        scale = layer.weight.abs().amax(1, keepdim=True) / 127
        self.register_buffer("scale", scale)
        self.weight = nn.Parameter((layer.weight / scale).round().to(torch.int8), requires_grad=False)
        self.bias = layer.bias

    @property
    def meant(self) -> Tensor:
        scale = self.scale
        assert isinstance(scale, Tensor)
        return self.weight.float() * scale

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.meant, self.bias)


def load(kind: str | None = None) -> Loaded:
    ref = "random:llama?layers=3&hidden=32&heads=2"
    return Backbone.model_validate({"ref": ref, "quantization": kind}).load("classification", 2, 3)


def in_bytes() -> tuple[Loaded, Loaded]:
    """A model of int8 layers, and the float32 model that they mean."""
    found, meant = load(), load()
    for name, layer in list(found.model.named_modules()):
        if isinstance(layer, nn.Linear) and f"{name}.weight" not in found.head:
            parent, _, last = name.rpartition(".")
            made = Bytes(layer).requires_grad_(False).eval()
            setattr(found.model.get_submodule(parent), last, made)
            with torch.no_grad():
                meant.model.get_parameter(f"{name}.weight").copy_(made.meant)
    return found, meant


def step(backbone: Loaded, trainable: Trainable, part: Optimizer) -> Step:
    theta, personal, spec = trainable.attach(backbone, 0, "all")
    if isinstance(part, SplitZO):
        spec = spec.halved(blocks(backbone.model, 2))
    scope = Scope(spec.names, spec.shared, spec.shared)
    here = View(1, "ada", theta, personal, {}, theta, {}, Seeds(seed=5), spec, scope, directions=99)
    here = here.moved({n: t + 0.05 * torch.randn(t.shape, generator=torch_generator(3)) for n, t in theta.items()})
    ids = torch.randint(7, 250, (4, 9), generator=torch_generator(2))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor([0, 1, 1, 0])}
    task = Classify(data="synth:sentiment?clients=2&rows=8")
    frozen = digest(dict(backbone.model.named_parameters()))
    with bind(backbone.model, here.tensors, here.spec) as bound:
        found = part.step(here, None, StepObjective(bound, task, (), here, (batch,), 2))
    assert digest(dict(backbone.model.named_parameters())) == frozen
    assert {tensor.dtype for tensor in found.view.trained.values()} == {torch.float32}
    assert found.view.theta.sha256() != here.theta.sha256()
    return found


def coefficients(found: Step) -> dict[str, Tensor]:
    assert isinstance(found.trace, Trace)
    return dict(found.trace.coefficients)


@pytest.mark.parametrize("small", [0, near.SMALL])
@pytest.mark.parametrize("trainable", [LoRA(rank=2, targets="all-linear"), Full(only=("norm",))], ids=repr)
@pytest.mark.parametrize("part", PARTS, ids=repr)
def test_steps_beside_int8_layers_are_those_beside_what_they_mean(
    monkeypatch: pytest.MonkeyPatch, part: Optimizer, trainable: Trainable, small: int
) -> None:
    monkeypatch.setattr(near, "SMALL", small)
    found, meant = (step(backbone, trainable, part) for backbone in in_bytes())
    assert digest(coefficients(found)) == digest(coefficients(meant))
    assert found.view.theta.sha256() == meant.view.theta.sha256()


@needs_extra
@pytest.mark.parametrize("part", PARTS, ids=repr)
@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_steps_beside_layers_of_bitsandbytes_are_the_same_each_time_however_probes_are_made(
    monkeypatch: pytest.MonkeyPatch, kind: str, part: Optimizer
) -> None:
    found = []
    for small in (0, near.SMALL):
        monkeypatch.setattr(near, "SMALL", small)
        found.append(coefficients(step(load(kind), LoRA(rank=2), part)))
    assert digest(found[0]) == digest(found[1])
    plain = coefficients(step(load(), LoRA(rank=2), part))
    for key, slopes in plain.items():
        assert torch.nn.functional.cosine_similarity(found[0][key], slopes, dim=0) > 0.9
