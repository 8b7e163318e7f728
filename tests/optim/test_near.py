"""Probes that are made where the model uses them: the same bits as probes that are there beforehand, in little room."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from cotune.backbone import Backbone, Loaded
from cotune.backbone.bind import Bound, bind
from cotune.backbone.cut import blocks
from cotune.core import unmade
from cotune.core.contracts import Optimizer, Task, Trainable
from cotune.core.seeds import Seeds, derive, torch_generator
from cotune.core.spec import Scope
from cotune.core.state import digest
from cotune.core.unmade import Unmade
from cotune.core.view import View
from cotune.diagnose.flops import FlopMeter
from cotune.diagnose.live import LiveBytes
from cotune.noise import Direction, Draw, Trace, signs
from cotune.objective import StepObjective, step_flops
from cotune.optim import ZO, SplitZO, near
from cotune.optim.near import Near
from cotune.optim.probe import Probe
from cotune.penalty import Proximal
from cotune.task import Text
from cotune.task.classify import Classify
from cotune.trainable import Full, LoRA, Memory

MU, NEVER = 2.0**-10, 10**12
DTYPES = ("float32", "bfloat16", "float16")
CLASSIFIERS = ("llama", "gpt2", "opt", "roberta", "bert")
LANGUAGE = Text(data="synth:stories?clients=2&rows=8")
SORTING = Classify(data="synth:sentiment?clients=2&rows=8")


def loaded(arch: str, head: str, **fields: Any) -> Loaded:
    ref, joint = f"random:{arch}", "&" if "?" in arch else "?"
    return Backbone(ref=f"{ref}{joint}layers=3&hidden=16&heads=2", **fields).load(head, 2, seed=3)


def begun(backbone: Loaded, trainable: Trainable) -> View:
    """A view of tensors that are not as they start, so that factors and gates do something."""
    theta, personal, spec = trainable.attach(backbone, 0, "all")
    scope = Scope(spec.names, spec.shared, spec.shared)
    here = View(1, "ada", theta, personal, {}, theta, {}, Seeds(seed=5), spec, scope, directions=99)
    shaken = {n: t + 0.05 * torch.randn(t.shape, generator=torch_generator(3)) for n, t in here.trained.items()}
    return here.moved(shaken)


def batch(task: Task) -> dict[str, Tensor]:
    ids = torch.randint(7, 250, (4, 9), generator=torch_generator(2))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    if task is SORTING:
        return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([0, 1, 1, 0])}
    return {"input_ids": ids, "attention_mask": mask, "labels": ids[:, 1:], "where": torch.arange(8).expand(4, 8)}


def objective(bound: Bound, here: View, task: Task = SORTING) -> StepObjective:
    return StepObjective(bound, task, (Proximal(mu=0.1),), here, (batch(task),), 2)


def dense(here: View, number: int, distance: float) -> dict[str, Tensor]:
    """θ + distance · z of plain signs, all of it, from the definition of the stream."""
    found, at = {}, dict[int, int]()
    for entry in here.spec:
        start = at.get(entry.block, 0)
        z = signs(derive(99, here.step), entry.block * 2**32 + number, start, entry.numel).view(entry.shape)
        found[entry.name] = here.trained[entry.name] + distance * z
        at[entry.block] = start + entry.numel
    return found


@pytest.mark.parametrize("kind", list(Direction))
@pytest.mark.parametrize("shape", [(40, 6), (40, 1), (1, 40), (40,), (10, 3, 2)])
def test_rows_have_the_bits_that_they_have_in_the_whole(kind: Direction, shape: tuple[int, ...]) -> None:
    theta = torch.randn(shape, generator=torch_generator(1))
    recipe = Near(theta, 0.01, [Draw.of(kind, 7, 5, 1000), Draw.of(kind, 7, 6, 1000)], 131)
    whole = recipe.part()
    assert not torch.equal(whole, theta)
    for chosen in ([0], [0, 1, 2, 7, 8, 39], [*range(40)], []):
        rows = torch.tensor([row for row in chosen if row < shape[0]], dtype=torch.int64)
        assert torch.equal(recipe.part(rows), whole[rows])


def test_small_tensors_are_made_at_once_and_large_ones_are_not() -> None:
    here = begun(loaded("roberta?vocab=2000", "classification"), Full())
    made = Probe(here, Direction.SIGN).at(0, MU)
    large = [name for name, tensor in made.items() if isinstance(tensor, Unmade)]
    assert large == ["roberta.embeddings.word_embeddings.weight"]
    assert {name: tensor.shape for name, tensor in made.items()} == {n: t.shape for n, t in here.trained.items()}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("arch", CLASSIFIERS)
def test_the_loss_at_a_probe_is_that_of_tensors_made_beforehand(
    monkeypatch: pytest.MonkeyPatch, arch: str, dtype: str
) -> None:
    monkeypatch.setattr(near, "SMALL", 0)
    backbone = loaded(arch, "classification", dtype=dtype)
    here = begun(backbone, Full())
    with torch.no_grad(), bind(backbone.model, here.tensors, here.spec) as bound:
        probe, loss = Probe(here, Direction.SIGN), objective(bound, here)
        for number, distance in ((0, MU), (1, -0.25)):
            made = probe.at(number, distance)
            assert all(isinstance(tensor, Unmade) for tensor in made.values())
            expected = dense(here, number, distance)
            assert torch.equal(loss(made), loss(expected))
            assert torch.equal(loss.back(made, loss.front(made)), loss.back(expected, loss.front(expected)))
        assert torch.equal(loss(probe.here), loss(here.trained))


@pytest.mark.parametrize("arch", ["llama?tied=true", "gpt2?tied=true", "opt?tied=true", "qwen2?tied=false"])
def test_a_language_model_with_a_tied_head_has_the_same_loss_and_nearly_so_in_blocks(
    monkeypatch: pytest.MonkeyPatch, arch: str
) -> None:
    monkeypatch.setattr(near, "SMALL", 0)
    backbone = loaded(arch, "causal")
    here = begun(backbone, Full())
    with torch.no_grad(), bind(backbone.model, here.tensors, here.spec) as bound:
        loss, made = objective(bound, here, LANGUAGE), Probe(here, Direction.SIGN).at(0, MU)
        expected = loss(dense(here, 0, MU))
        assert torch.equal(loss(made), expected)
        monkeypatch.setattr(unmade, "BLOCK", 1000)
        torch.testing.assert_close(loss(made), expected, rtol=1e-5, atol=0)


OTHERS: dict[str, tuple[Trainable, str, dict[str, Any]]] = {
    "lora": (LoRA(rank=2, targets="all-linear"), "llama", {}),
    "lora of another scale": (LoRA(rank=2, alpha=3.0), "bert", {}),
    "lora beside half precision": (LoRA(rank=2), "llama", {"dtype": "bfloat16"}),
    "memory": (Memory(rank=2), "llama", {"window": 4}),
    "rules alone": (Memory(factors=False), "gpt2", {"window": 4}),
    "some weights": (Full(only=("mlp", "embed")), "llama", {"dtype": "float16"}),
}


@pytest.mark.parametrize("other", OTHERS)
def test_whatever_trains_its_probes_have_the_loss_of_tensors_made_beforehand(
    monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    monkeypatch.setattr(near, "SMALL", 0)
    trainable, arch, fields = OTHERS[other]
    backbone = loaded(arch, "classification", **fields)
    here = begun(backbone, trainable)
    with torch.no_grad(), bind(backbone.model, here.tensors, here.spec) as bound:
        loss = objective(bound, here)
        made = Probe(here, Direction.SIGN).at(0, 0.1)
        assert torch.equal(loss(made), loss(dense(here, 0, 0.1)))
        assert not torch.equal(loss(made), loss(here.trained))


STEPS = (
    ZO(lr=0.01, directions=2),
    ZO(lr=0.01, difference="forward", direction=Direction.RANK1),
    ZO(lr=0.01, direction=Direction.SPHERE),
    SplitZO(lr=0.01, directions=2, again=2),
    SplitZO(lr=0.01, independent_blocks=True),
)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("part", STEPS, ids=repr)
def test_a_step_is_the_step_of_probes_made_beforehand(
    monkeypatch: pytest.MonkeyPatch, part: Optimizer, dtype: str
) -> None:
    backbone = loaded("llama", "classification", dtype=dtype)
    here = begun(backbone, Full())
    if isinstance(part, SplitZO):
        here = replace(here, spec=here.spec.halved(blocks(backbone.model, 2)))
    found = []
    for small in (NEVER, 0):
        monkeypatch.setattr(near, "SMALL", small)
        with bind(backbone.model, here.tensors, here.spec) as bound:
            step = part.step(here, None, objective(bound, here))
        assert isinstance(step.trace, Trace)
        found.append((digest(step.trace.coefficients), step.view.theta.sha256(), float(step.loss)))
    assert found[0] == found[1]


@pytest.mark.parametrize("part", STEPS, ids=repr)
def test_a_step_is_written_over_what_the_view_alone_holds_and_is_the_same_step(part: Optimizer) -> None:
    backbone = loaded("llama", "classification")
    here = begun(backbone, Full())
    if isinstance(part, SplitZO):
        here = replace(here, spec=here.spec.halved(blocks(backbone.model, 2)))
    own = replace(here.moved({n: t.clone() for n, t in here.trained.items()}), own=True, step=here.step)
    room = {n: t.data_ptr() for n, t in own.trained.items()}
    before = here.theta.sha256()
    with bind(backbone.model, here.tensors, here.spec) as bound:
        step_flops(objective(bound, own), part, None, FlopMeter())
        assert own.theta.sha256() == before, "a step that is counted is not taken"
        for _ in range(3):
            here = part.step(here, None, objective(bound, here)).view
            own = replace(part.step(own, None, objective(bound, own)).view, own=True)
            assert own.theta.sha256() == here.theta.sha256() != before
    assert {n: t.data_ptr() for n, t in own.trained.items()} == room


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("arch", "task"), [("roberta", SORTING), ("llama", LANGUAGE)], ids=["roberta", "llama"])
def test_looking_at_a_probe_takes_the_room_of_a_weight_beside_a_forward_pass(
    monkeypatch: pytest.MonkeyPatch, arch: str, task: Task, dtype: str
) -> None:
    for constant, least in (("BLOCK", 2**10), ("PIECE", 2**10)):
        monkeypatch.setattr(unmade, constant, least)
    backbone = loaded(f"{arch}?vocab=4000", task.head, dtype=dtype)
    here = begun(backbone, Full())
    placed = {n: t.to(getattr(torch, dtype)) for n, t in here.trained.items()}
    peaks = dict[int | None, int]()
    with torch.no_grad(), bind(backbone.model, here.tensors, here.spec) as bound:
        loss = StepObjective(bound, task, (), here, (batch(task),), 2)
        for small in (None, 0, NEVER):
            monkeypatch.setattr(near, "SMALL", small)
            with LiveBytes() as live:
                loss(placed if small is None else Probe(here, Direction.SIGN).at(0, MU))
            peaks[small] = live.peak
    layer = max(t.numel() for n, t in here.trained.items() if "layer" in n)
    theta = 4 * sum(t.numel() for t in here.trained.values())
    piece = 0 if dtype == "float32" else 3 * 4 * 2**10  # one is taken and moved while the last is still there
    beside = peaks[None] or 0
    assert peaks[0] - beside <= 4 * layer + piece + 2**10
    assert peaks[NEVER] - beside >= theta > 10 * (4 * layer + piece)
