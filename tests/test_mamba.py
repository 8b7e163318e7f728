"""Fed-Mamba: `lora-fedavg` on a backbone without attention trains, scores, exports, and loads in plain peft."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from tiny import assert_predicted, experiment, play
from transformers import AutoModelForCausalLM

import cotune as ct
from cotune.backbone import Backbone
from cotune.backbone.bind import bind
from cotune.backbone.quiet import quiet
from cotune.core.errors import Code, CotuneError
from cotune.core.part import Capability
from cotune.core.spec import Role
from cotune.export import export, reopen
from cotune.export.whose import shared
from cotune.store import Run
from cotune.trainable import LoRA

MAMBA = "random:mamba?layers=2&hidden=16&state=4"
TASK = {"kind": "sft", "data": "synth:instructions?clients=3&rows=45", "max_tokens": 40}


def federated(ref: str) -> ct.Experiment:
    return experiment(
        backbone__ref=ref,
        task=dict(TASK),
        method__optimizer={"kind": "adamw", "lr": 0.03},
        federation={"rounds": 2, "cohort": 2},
        evaluation={"which": "global", "rows": 6},
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder as anybody would publish it."""
    folder = tmp_path_factory.mktemp("mamba") / "base"
    loaded = Backbone(ref=MAMBA).load("causal", 0, seed=3)
    with quiet():
        loaded.model.save_pretrained(folder)  # type: ignore[operator]
        loaded.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def run(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return play(federated(str(base)), tmp_path_factory.mktemp("runs"))


def test_fed_mamba_trains_factors_beside_the_projections_its_forward_pass_calls(run: Run) -> None:
    setup = federated(MAMBA).blueprint().build()
    modules = {entry.module.rpartition(".")[2] for entry in setup.spec}
    assert modules == {"in_proj", "x_proj"}
    assert {entry.role for entry in setup.spec} == {Role.FACTOR_A, Role.FACTOR_B}
    first, last = run.rounds
    assert first.abandoned is last.abandoned is None
    assert last.global_metrics["perplexity"].value < first.global_metrics["perplexity"].value
    assert last.flops > 0


def test_every_message_of_fed_mamba_costs_what_its_shapes_predict(run: Run, base: Path) -> None:
    whole = federated(str(base))
    assert_predicted(run, whole.blueprint().sketch(whole.task.load(whole.seeds)))


def test_an_adapter_of_mamba_loads_in_plain_peft_on_the_original_and_computes_the_same(
    run: Run, base: Path, tmp_path: Path
) -> None:
    blueprint = ct.Experiment.model_validate(run.about["experiment"]).blueprint()
    export(run, blueprint, tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["target_modules"], config["task_type"]) == (["in_proj", "x_proj"], "CAUSAL_LM")
    setup, state = reopen(run, blueprint)
    trained = shared(setup, state, blueprint.backbone).trained
    ids, mask = torch.arange(16, 40).reshape(2, 12), torch.tensor([[1] * 12, [1] * 9 + [0] * 3])
    with quiet():  # peft asks transformers for what transformers calls deprecated
        plain: Any = AutoModelForCausalLM.from_pretrained(base)
        untrained = plain.eval()(input_ids=ids, attention_mask=mask).logits.detach()
        loaded: Any = PeftModel.from_pretrained(plain, str(tmp_path / "adapter"))
    with torch.no_grad():
        got = loaded.eval()(input_ids=ids, attention_mask=mask).logits
        with bind(setup.backbone.model, trained.tensors, trained.spec, trained.base) as bound:
            expected = bound(trained.tensors, input_ids=ids, attention_mask=mask).logits
    assert float((got - expected).abs().max()) <= 1e-5
    assert float((got - untrained).abs().max()) > 1e-2


def test_padding_behind_a_row_changes_nothing_and_another_dtype_is_the_same_model_rounded() -> None:
    exact, rounded = (Backbone(ref=MAMBA, dtype=dtype).load("causal", 0, 3) for dtype in ("float32", "bfloat16"))
    ids, mask = torch.arange(16, 40).reshape(2, 12), torch.tensor([[1] * 12, [1] * 9 + [0] * 3])
    with torch.no_grad():
        together = exact.model(input_ids=ids, attention_mask=mask).logits
        alone = exact.model(input_ids=ids[1:, :9]).logits
    torch.testing.assert_close(together[1:, :9], alone)
    for name, tensor in exact.model.named_parameters():
        assert torch.equal(tensor.bfloat16(), rounded.model.get_parameter(name))
    assert exact.gives == {Capability.CAUSAL, Capability.DECODER}
    assert exact.limit == 512


def test_the_skeleton_of_mamba_has_the_shapes_of_the_loaded_model() -> None:
    backbone = Backbone(ref=MAMBA)
    loaded, skeleton = backbone.load("causal", 0, 0), backbone.skeleton("causal", 0)
    shapes = [(name, tensor.shape) for name, tensor in loaded.model.named_parameters()]
    assert [(name, tensor.shape) for name, tensor in skeleton.model.named_parameters()] == shapes
    assert skeleton.gives == loaded.gives


def test_libraries_say_nothing_about_kernels_that_a_machine_without_cuda_cannot_have(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    loaded = Backbone(ref=MAMBA).load("causal", 0, 3)
    with caplog.at_level(logging.WARNING), torch.no_grad():
        loaded.model(input_ids=torch.arange(16, 24)[None])
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("call", "code", "why"),
    [
        (lambda: Backbone(ref=MAMBA).load("classification", 2, 0), Code.MODEL, "mamba is no classifier of sequences"),
        (lambda: Backbone(ref=f"{MAMBA}&heads=2"), Code.CONFIG, "mamba has no option 'heads'"),
        (lambda: Backbone(ref="random:llama?state=4"), Code.CONFIG, "llama has no option 'state'"),
        (lambda: Backbone(ref=MAMBA, window=8).load("causal", 0, 0), Code.MODEL, "cannot find every attention layer"),
        (
            lambda: LoRA(targets=("out_proj",)).attach(Backbone(ref=MAMBA).load("causal", 0, 0), 1, "all"),
            Code.CONFIG,
            "incompatible with Mamba",
        ),
        (
            lambda: ct.trainable.Memory(rank=2).attach(Backbone(ref=MAMBA).load("causal", 0, 0), 1, "all"),
            Code.MODEL,
            "no attention layer",
        ),
    ],
)
def test_what_mamba_has_not_is_refused_in_words(call: Any, code: Code, why: str) -> None:
    with pytest.raises(CotuneError, match=why) as caught:
        call()
    assert caught.value.code is code
