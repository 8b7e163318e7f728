"""Layers in front of everything that trains run once a row, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import experiment, play, theta
from torch import Tensor, nn

from cotune.backbone import Backbone, split
from cotune.backbone.bind import bind
from cotune.backbone.frozen import Frozen, unchanging
from cotune.objective import score
from cotune.trainable import Full, LoRA

DECODERS, ENCODERS, LAYERS = ("llama", "qwen2", "opt?tied=true", "gpt2?tied=true"), ("roberta", "bert"), 4
LLAMA = "random:llama?layers=4&hidden=16&heads=2"


def load(arch: str, head: str = "causal") -> Any:
    name, _, options = arch.partition("?")
    ref = f"random:{name}?layers={LAYERS}&hidden=16&heads=2" + (f"&{options}" if options else "")
    return Backbone(ref=ref).load(head, 3, seed=3)


def batch(head: str = "causal", side: str = "right") -> dict[str, Tensor]:
    ids = torch.randint(7, 250, (3, 9), generator=torch.Generator().manual_seed(5))
    mask = torch.ones_like(ids)
    for row, pads in enumerate((0, 4, 2)):
        mask[row, 9 - pads :] = 0
    mask = mask.flip(1) if side == "left" else mask
    ids = ids.masked_fill(mask == 0, 1)
    labels = ids.masked_fill(mask == 0, -100) if head == "causal" else torch.tensor([0, 2, 1])
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def traces(model: nn.Module) -> list[object]:
    """Everything that passes could leave in a model."""
    kept = [(name, sorted(vars(module))) for name, module in model.named_modules()]
    return [*kept, [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]]


def count(_what: object, action: Any) -> int:
    action()
    return 1


@pytest.mark.parametrize("arch", [*DECODERS, *ENCODERS])
@pytest.mark.parametrize("layers", [1, 3])
def test_passes_that_begin_behind_the_frozen_layers_are_the_models_own(arch: str, layers: int) -> None:
    """To float32's rounding with padding; every cut of the model, before, at and behind where they begin."""
    head = "causal" if arch in DECODERS else "classification"
    model, given = load(arch, head).model, batch(head)
    frozen, before = Frozen(model, layers), traces(model)
    with torch.no_grad():
        whole = model(**given)
        with frozen.over():
            assert frozen.prepare([given], count, set()) == 3
            found = [model(**given)]
            for cut in range(1, LAYERS):
                front, back = split(model, cut)
                found.append(back(front(given), given))
    mask = given["attention_mask"].bool() if head == "causal" else slice(None)
    for one in found:
        assert torch.allclose(one.logits[mask], whole.logits[mask], atol=1e-6)
        assert abs(float(one.loss - whole.loss)) < 1e-6
    assert traces(model) == before


def test_a_row_has_the_same_bits_in_any_batch_and_runs_once() -> None:
    model, given = load("llama").model, batch()
    frozen = Frozen(model, 2)
    ran = list[int]()
    hook = model.model.layers[0].mlp.register_forward_hook(lambda _m, inputs, _o: ran.append(inputs[0].shape[1]))
    with torch.no_grad(), frozen.over():
        together = [frozen._halfway(ids).hidden for ids in _plain(given)]
        for i in (2, 0, 1):
            model(**{name: tensor[i : i + 1] for name, tensor in given.items()})
            assert torch.equal(frozen._given.hidden[0, : together[i].shape[1]], together[i][0])  # type: ignore[union-attr]
        alone = Frozen(model, 2)._alone(_plain(given)[1]).hidden
    hook.remove()
    assert torch.equal(alone, together[1])
    assert ran == [9, 5, 7, 5]


def _plain(given: Any) -> list[Tensor]:
    return [ids[: int(mask.sum())] for ids, mask in zip(given["input_ids"], given["attention_mask"], strict=True)]


@pytest.mark.parametrize("odd", ["left", "position_ids"])
def test_rows_that_are_more_than_tokens_run_from_the_start(odd: str) -> None:
    model, given = load("llama").model, batch(side="left" if odd == "left" else "right")
    if odd == "position_ids":
        given["position_ids"] = torch.arange(9).repeat(3, 1) + 3
    frozen = Frozen(model, 2)
    with torch.no_grad():
        outside = model(**given).logits
        with frozen.over():
            assert torch.equal(model(**given).logits, outside)
    assert not frozen._kept


def test_nothing_that_can_change_is_behind_a_frozen_layer() -> None:
    names = dict(load("bert", "classification").model.named_parameters())
    model = load("bert", "classification").model
    cases = {
        "bert.encoder.layer.2.output.dense.weight": 2,
        "bert.encoder.layer.0.output.dense.weight": 0,
        "bert.embeddings.word_embeddings.weight": 0,
        "classifier.weight": LAYERS - 1,
    }
    assert set(cases) <= set(names)
    for name, layers in cases.items():
        assert unchanging(model, [name, "classifier.bias"]) == layers
    tied = load("llama?tied=true")
    assert unchanging(tied.model, ["model.embed_tokens.weight"]) == 0
    bare = load("bert", "classification")
    _, _, spec = LoRA(rank=2, targets=("layer.3.attention.self.query",)).attach(bare, 0, "all")
    assert unchanging(bare.model, spec.names) == 3


def last_layers(**sets: Any) -> Any:
    trained = Full(only=("layers.2", "layers.3", "model.norm"))
    return experiment("fedspzo", backbone__ref=LLAMA, federation={"rounds": 2}, method__trainable=trained, **sets)


def test_a_run_counts_frozen_layers_once_a_row_and_round(tmp_path: Path) -> None:
    """One step a round of all rows, and two steps of the same rows: the second pays for the layers that train alone."""
    flops = []
    for steps in (1, 2):
        whole = last_layers(method__budget={"steps": steps, "batch": 64}, method__uplink={"kind": "tensors"})
        assert whole.blueprint().build().frozen.layers == 2
        flops.append([record.flops for record in play(whole, tmp_path / str(steps)).rounds])
    assert flops[0][0] == flops[0][1]
    assert flops[0][0] < flops[1][0] < 2 * flops[0][0]


def test_scores_and_theta_depend_on_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no room to keep rows, every bit is the same."""
    first = theta(last_layers(), tmp_path / "first")
    setup = last_layers().blueprint().build()
    rows = setup.test.examples

    def scored() -> Any:
        with bind(setup.backbone.model, setup.start, setup.spec) as bound:
            return score(bound, setup.start, setup, rows)

    kept = scored()
    monkeypatch.setattr("cotune.backbone.frozen.KEPT", 0)
    setup.frozen._kept.clear()
    assert all(torch.equal(kept[name], values) for name, values in scored().items())
    assert theta(last_layers(), tmp_path / "second") == first


def test_without_room_only_the_rows_of_a_step_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cotune.backbone.frozen.KEPT", 0)
    model, given = load("llama").model, batch()
    frozen = Frozen(model, 2)
    with torch.no_grad(), frozen.over():
        model(**given)
        assert (len(frozen._kept), len(frozen._step)) == (0, 0)
        frozen.prepare([given], count, set())
        assert (len(frozen._kept), len(frozen._step)) == (0, 3)
        frozen.prepare([{name: tensor[:1] for name, tensor in given.items()}], count, set())
        assert len(frozen._step) == 1
    assert not frozen._step
