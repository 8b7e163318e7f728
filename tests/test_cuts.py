"""What a cut is worth, against dense gradients in float64 and the formula written another way."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import experiment
from torch.nn import functional

from cotune.cli import main
from cotune.cuts import _batches, measure
from cotune.diagnose.energy import Cut, best
from cotune.trainable import Full, LoRA

LLAMA = "random:llama?layers=4&hidden=16&heads=2"
POSITIVE = st.floats(1e-3, 1e3)
COUNT = st.integers(1, 10**6)


@given(st.tuples(COUNT, COUNT, POSITIVE, POSITIVE, POSITIVE, POSITIVE), st.integers(1, 20))
def test_the_saving_is_variance_times_cost_of_the_whole_over_that_of_the_halves(
    given_: tuple[int, int, float, float, float, float], again: int
) -> None:
    d1, d2, f1, f2, n1, n2 = given_
    for directions in (1, 3):
        joint = (d1 + d2) / directions * (n1 + n2) * 2 * directions * (f1 + f2)
        halves = (d1 * n1 / directions + d2 * n2 / (2 * directions * again)) * (directions * (2 * f1 + 4 * again * f2))
        cut = Cut(1, d1, d2, f1, f2, n1, n2)
        assert cut.saving(again) == pytest.approx(joint / halves)
        forward = (d1 + d2) / directions * (n1 + n2) * (directions + 1) * (f1 + f2)
        assert cut.saving(again, directions) == pytest.approx(forward / halves)
    assert cut.saving(cut.again) == pytest.approx(max(cut.saving(i) for i in range(1, cut.again + 3)))


@pytest.mark.parametrize(("ratio", "saving"), [(0.1, 1.15), (1, 1.83), (3, 2.84), (9, 4.3)])
def test_a_quarter_of_numbers_and_cost_behind_saves_what_the_closed_form_says(ratio: float, saving: float) -> None:
    phi = 0.25
    cut = Cut(3, 75, 25, 3.0, 1.0, 1.0, ratio)
    assert cut.saving(1) == pytest.approx(saving, abs=0.05)
    assert cut.saving(1) == pytest.approx(2 * (1 + ratio) / ((1 - phi + phi * ratio / 2) * (2 + 2 * phi)))


def test_the_best_cut_saves_most_and_no_energy_in_front_is_an_infinite_ratio() -> None:
    poor, rich = Cut(1, 10, 90, 1, 9, 1, 1), Cut(3, 75, 25, 3, 1, 1, 9)
    assert best([poor, rich]) is rich
    bare = Cut(2, 5, 5, 1, 1, 0.0, 1.0)
    assert math.isinf(bare.energy_ratio)
    assert bare.again == 1


def dense(setup: Any, batches: int) -> tuple[dict[str, float], int]:
    """Name -> mean ‖gradient‖² in float64, client after client as the probe takes turns."""
    model = setup.backbone.model.double()
    found, seen = dict.fromkeys(setup.spec.names, 0.0), 0
    parameters = dict(model.named_parameters())
    for name, value in setup.start.items():
        parameters[name].data = value.double()
    leaves = [parameters[name].requires_grad_() for name in setup.spec.names]
    for _, batch in _batches(setup, batches):
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        loss = functional.cross_entropy(logits, batch["labels"])
        for name, grad in zip(setup.spec.names, torch.autograd.grad(loss, leaves), strict=True):
            found[name] += float(grad.square().sum())
        seen += 1
    return {name: value / seen for name, value in found.items()}, seen


@pytest.mark.parametrize("trainable", [Full(), Full(only=("layers.2", "layers.3", "model.norm")), LoRA(rank=2)])
def test_energies_are_those_of_dense_gradients(trainable: Any) -> None:
    whole = experiment("fedspzo", backbone__ref=LLAMA, method__trainable=trainable)
    setup = whole.blueprint().build()
    found = measure(setup, 5)
    energy, seen = dense(whole.blueprint().build(), 5)
    frozen = setup.frozen.layers
    assert (seen, found.batches, found.frozen) == (5, 5, frozen)
    assert [cut.layer for cut in found.cuts] == list(range(frozen + 1, 4))
    for cut in found.cuts:
        behind = [n for n in energy if _layer(n) is None or (_layer(n) or 0) >= cut.layer]
        behind = [n for n in behind if "embed" not in n]
        assert cut.back_numbers == sum(setup.spec[name].numel for name in behind)
        assert cut.back_energy == pytest.approx(sum(energy[name] for name in behind), rel=1e-4)
        assert cut.front_energy + cut.back_energy == pytest.approx(sum(energy.values()), rel=1e-4)
    # The layers are alike, so that each costs the same, and the head costs next to nothing.
    each = [b.front_flops - a.front_flops for a, b in zip(found.cuts, found.cuts[1:], strict=False)]
    assert all(cost == found.cuts[0].front_flops for cost in each)
    assert len({cut.front_flops + cut.back_flops for cut in found.cuts}) == 1


def _layer(name: str) -> int | None:
    return int(name.split("layers.", 1)[1].split(".", 1)[0]) if "layers." in name else None


def test_show_says_where_to_cut(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["show", "fedspzo", "--backbone", LLAMA, "--task", "synth:sentiment?rows=80", "--probe"]
    words += ["--set", "method.budget.batch=2"]
    assert main(words) == 0
    text = capfd.readouterr().out
    (tmp_path / "shown.toml").write_text(text)
    assert "mean of 50 batches" in text
    assert main([*words, "--json"]) == 0
    shown = json.loads(capfd.readouterr().out)["cuts"]
    assert len(shown["cuts"]) == 3
    chosen = next(cut for cut in shown["cuts"] if cut["layer"] == shown["best"])
    assert chosen["saving_there"] == max(cut["saving_there"] for cut in shown["cuts"])
    assert f"--set method.optimizer.cut={shown['best']} --set method.optimizer.again={chosen['again']}" in text
    assert main(["show", "fedspzo", "--probe"]) == 2
    assert "add --backbone" in capfd.readouterr().err
