"""A memory leaves a run as rules beside the factors, and another process puts it back on a plain model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

import cotune as ct
from cotune.backbone import Backbone
from cotune.backbone.bind import bind
from cotune.backbone.quiet import quiet
from cotune.core.change import Base
from cotune.core.contracts import Trained
from cotune.core.errors import Code, CotuneError
from cotune.core.seeds import derive, torch_generator
from cotune.core.spec import Role
from cotune.core.state import to_bytes
from cotune.export import attach_memory, export, folder, reopen
from cotune.resolve import load
from cotune.store import Run
from cotune.trainable import Memory
from cotune.trainable.memory import Rules
from cotune.trainable.memory.saved import CONFIG, TENSORS

SIZES = "layers=2&hidden=16&heads=2&intermediate=24&positions=64"
IDS = torch.arange(16, 64).reshape(2, 24)
MASK = torch.tensor([[1] * 24, [1] * 17 + [0] * 7])

# Runs in a process of its own: plain transformers and peft, and one function of cotune.
ELSEWHERE = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
import torch, transformers
from peft import PeftModel
from safetensors.torch import load_file
from cotune import attach_memory
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
root, found = sys.argv[1], {}
for case in json.load(open(os.path.join(root, "cases.json"))):
    given = load_file(case["given"])
    kind = getattr(transformers, case["auto"])
    plain = kind.from_pretrained(case["base"], **case["settings"]).eval()
    model = PeftModel.from_pretrained(plain, case["folder"]).eval() if case["factors"] else plain
    with torch.no_grad():
        inputs = {"input_ids": given["ids"], "attention_mask": given["mask"]}
        without = model(**inputs).logits
        attach_memory(model, case["folder"])
        once = model(**inputs).logits
        session = model.memory_session()
        last = session.read(given["ids"][:1], 5) if case["auto"] == "AutoModelForCausalLM" else None
    off = {"once": once - given["logits"], "without": without - given["logits"]}
    off |= {} if last is None else {"session": last - given["logits"][:1, -1]}
    found[case["name"]] = {name: float(x.abs().max()) for name, x in off.items()}
    found[case["name"]]["bytes"] = session.state_bytes
os.chdir(sys.argv[2])
scope = {}
exec(open("README.md").read().split("```python\\n")[1].split("```")[0], scope)
session = scope["model"].memory_session()
ids = scope["tokenizer"](["k1 v2 ; k1 ?"], return_tensors="pt").input_ids
found["card"] = {"shape": list(scope["logits"].shape), "said": list(session.generate(ids, 3).shape)}
json.dump(found, open(os.path.join(root, "found.json"), "w"))
"""


@dataclass(frozen=True)
class Case:
    """A memory to load elsewhere."""

    name: str
    arch: str
    trainable: Memory
    window: int | None = None
    sinks: int = 0
    head: str = "causal"
    base: bool = False


ALL = Rules(rule="gated-delta", shift=True, centre=True, silu=True, norm=True, gate="sigmoid")
CASES = [
    *(Case(f"{arch}", arch, Memory(rank=2)) for arch in ("llama", "qwen2", "opt", "gpt2")),
    *(Case(f"{arch} rules alone", arch, Memory(factors=False)) for arch in ("llama", "qwen2", "opt", "gpt2")),
    Case("llama window", "llama", Memory(rank=2, rules=ALL), window=4),
    Case("gpt2 window", "gpt2", Memory(factors=False, rules=ALL), window=4, sinks=2),
    Case("qwen2 titans", "qwen2", Memory(rank=2, rules=Rules(rule="titans", beta="vector")), window=6),
    Case("llama base", "llama", Memory(factors=False), base=True),
    Case("llama classifier", "llama", Memory(factors=False), head="classification"),
    Case("qwen2 classifier", "qwen2", Memory(rank=2), head="classification"),
]


def original(arch: str, root: Path) -> Path:
    """A pretrained model's folder as anybody would publish it."""
    path = root / "originals" / arch
    if not path.exists():
        loaded = Backbone(ref=f"random:{arch}?{SIZES}").load("classification", 2, seed=3)
        kind: Any = AutoModelForMaskedLM if arch == "bert" else AutoModelForCausalLM
        torch.manual_seed(4)
        with quiet():
            kind.from_config(loaded.model.config).save_pretrained(path)
            loaded.tokenizer.save_pretrained(path)
    return path


def trained(case: Case, ref: str) -> Trained:
    """A model some way from its start: every tensor drawn."""
    backbone = Backbone(ref=ref, window=case.window, sinks=case.sinks).load(case.head, 2, seed=5)
    _, _, spec = case.trainable.attach(backbone, 6, "all")
    tensors = {}
    for entry in spec:
        drawn = torch.randn(entry.shape, generator=torch_generator(derive(1, entry.name)))
        tensors[entry.name] = 0.3 * drawn + (1.0 if entry.name.endswith(".gate") else 0.0)
    layer: Any = backbone.model.get_submodule("model.layers.0.mlp.up_proj") if case.base else None
    factors = {"model.layers.0.mlp.up_proj": (torch.ones(layer.out_features, 1), torch.ones(1, 16))} if layer else {}
    return Trained(backbone, spec, tensors, Base(factors), ref, None, case.window, case.sinks)


def logits(model: Trained) -> Tensor:
    with torch.no_grad(), bind(model.backbone.model, model.tensors, model.spec, model.base) as bound:
        computed: Tensor = bound(model.tensors, input_ids=IDS, attention_mask=MASK).logits
    return computed.float()


def written(case: Case, root: Path) -> tuple[Trained, Path]:
    """The model, and its adapter folder."""
    model, to = trained(case, str(original(case.arch, root))), root / case.name.replace(" ", "-")
    to.mkdir()
    for name, data in case.trainable.adapter(model).items():
        (to / name).write_bytes(data)
    return model, to


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run of fednl on synthetic recall."""
    experiment = load(
        "fednl",
        backbone="builtin:tiny-recall",
        task="recall?rows=8&held=0&test_rows=2&clients=2",
        rounds=1,
        sets=["method.budget.steps=1", "method.budget.batch=2", "backbone.window=12", "method.trainable.rank=2"],
    )
    return ct.run(experiment, out=tmp_path_factory.mktemp("run"))


def blueprint(run: Run) -> Any:
    return ct.Experiment.model_validate(run.about["experiment"]).blueprint()


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory, run: Run) -> dict[str, dict[str, Any]]:
    """Case -> by how much logits are off, all from one process."""
    root = tmp_path_factory.mktemp("cases")
    cases = []
    for case in CASES:
        model, to = written(case, root)
        given = root / f"{to.name}.safetensors"
        save_file({"ids": IDS, "mask": MASK, "logits": logits(model)}, given)
        causal = case.head == "causal"
        about: dict[str, Any] = {"name": case.name, "folder": str(to), "base": model.origin, "given": str(given)}
        about["auto"] = "AutoModelForCausalLM" if causal else "AutoModelForSequenceClassification"
        about["settings"] = {"dtype": "float32", "pad_token_id": 0, **({} if causal else {"num_labels": 2})}
        about["factors"] = (to / "adapter_config.json").exists()
        cases.append(about)
    setup, state = reopen(run, blueprint(run))
    ours = Trained(setup.backbone, setup.spec, {**state.theta}, state.base, "")
    export(run, blueprint(run), root / "run", with_backbone=True)
    save_file({"ids": IDS, "mask": MASK, "logits": logits(ours)}, root / "run.safetensors")
    about = {"name": "run", "folder": str(root / "run"), "base": str(root / "run" / "backbone"), "factors": True}
    about |= {"given": str(root / "run.safetensors"), "auto": "AutoModelForCausalLM", "settings": {"dtype": "float32"}}
    cases.append(about)
    (root / "cases.json").write_text(json.dumps(cases))
    (root / "elsewhere.py").write_text(ELSEWHERE)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    words = [sys.executable, str(root / "elsewhere.py"), str(root), str(root / "run")]
    subprocess.run(words, check=True, env=environment)
    found: dict[str, dict[str, Any]] = json.loads((root / "found.json").read_text())
    return found


@pytest.mark.parametrize("name", [*(case.name for case in CASES), "run"])
def test_the_memory_is_on_a_plain_model_of_another_process_what_it_was_in_the_run(
    name: str, elsewhere: dict[str, dict[str, Any]]
) -> None:
    off = elsewhere[name]
    assert off["once"] <= 1e-5, off
    assert off.get("session", 0.0) <= 1e-5, off
    assert off["bytes"] > 0 or "session" not in off


def test_peft_alone_computes_something_else(elsewhere: dict[str, dict[str, Any]]) -> None:
    assert all(elsewhere[case.name]["without"] > 1e-3 for case in CASES)


def test_the_lines_of_the_card_run_as_they_stand(elsewhere: dict[str, Any]) -> None:
    assert elsewhere["card"] == {"shape": [1, 2, 149], "said": [1, 3]}


def test_the_folder_says_what_a_loader_needs(tmp_path: Path) -> None:
    case = CASES[8]
    model, to = written(case, tmp_path)
    assert sorted(path.name for path in to.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        CONFIG,
        TENSORS,
    ]
    about = json.loads((to / CONFIG).read_text())
    site = {"queries": 2, "heads": 2, "width": 8}
    assert about.pop("rules") == ALL.model_dump()
    assert about == {
        "version": 1,
        "backbone": model.origin,
        "revision": None,
        "window": 4,
        "sinks": 0,
        "sites": [{"name": f"model.layers.{i}.self_attn", "layer": i, **site} for i in range(2)],
    }
    rules = {entry.name for entry in model.spec if entry.role is Role.RULE}
    assert {*load_file(to / TENSORS)} == rules
    assert not any("memory" in name for name in load_file(to / "adapter_model.safetensors"))


def test_the_frozen_backbone_beside_an_adapter_has_no_rule_in_it() -> None:
    model = trained(CASES[0], f"random:llama?{SIZES}")
    plain = Backbone(ref=f"random:llama?{SIZES}").load("causal", 0, seed=5)
    weights = Memory(rank=2).weights(Trained(model.backbone, model.spec, {}, Base(), ""))
    assert {*weights} == {*plain.model.state_dict()}
    assert all(torch.equal(weights[name], tensor) for name, tensor in plain.model.state_dict().items())


# ---- a run


def exported(run: Run, to: Path, **options: Any) -> folder.Exported:
    return export(run, blueprint(run), to, **options)


def test_a_run_says_what_peft_leaves_out_and_is_never_merged(run: Run, tmp_path: Path) -> None:
    done = exported(run, tmp_path / "new")
    for path in (run.folder / "adapter").iterdir():
        assert (done.folder / path.name).read_bytes() == path.read_bytes()
    assert done.what == "adapter of rank 2 and memory rules for builtin:tiny-recall"
    said = "peft alone loads the factors and NOT the memory"
    assert said in done.notes[0]
    card = (done.folder / "README.md").read_text()
    for words in (said, "the window of 12 tokens", 'attach_memory(model, ".")', "A session is never saved"):
        assert words in card
    with pytest.raises(CotuneError, match=r"a memory is no weight of the model.*--merge") as caught:
        exported(run, tmp_path / "whole", merge=True)
    assert caught.value.code is Code.CONFLICT
    assert not (tmp_path / "whole").exists()


def test_a_run_of_rules_alone_leaves_no_peft_folder(tmp_path: Path) -> None:
    experiment = load(
        "fednl",
        backbone=f"random:gpt2?{SIZES}",
        task="synth:prose?clients=2&rows=24",
        rounds=1,
        sets=["method.budget.steps=1", "method.trainable.factors=false", "task.max_tokens=16"],
    )
    done = ct.run(experiment, out=tmp_path)
    assert sorted(path.name for path in (done.folder / "adapter").iterdir()) == ["README.md", CONFIG, TENSORS]
    card = (done.folder / "adapter" / "README.md").read_text()
    assert "Rules of a private memory for" in card
    assert "peft does not load a memory" in card
    assert "PeftModel" not in card
    assert exported(done, tmp_path / "new", with_backbone=True).what.startswith("memory rules for random:gpt2")
    assert json.loads((tmp_path / "new" / "backbone" / "config.json").read_text())["use_cache"] is True


# ---- what does not fit


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter folder of llama, beside its backbone."""
    root = tmp_path_factory.mktemp("fit")
    return written(CASES[0], root)[1]


def plain(ref: str) -> Any:
    return Backbone(ref=ref).load("causal", 0, seed=5).model


@pytest.mark.parametrize(
    ("ref", "code", "said"),
    [
        ("random:llama?layers=2&hidden=32&heads=2", Code.SHAPE, "other attention layers.*width 16.*width 8"),
        ("random:llama?layers=2&hidden=16&heads=2&kv_heads=1", Code.SHAPE, "1 key-value heads"),
        ("random:llama?layers=3&hidden=16&heads=2", Code.SHAPE, "more or fewer layers.*got 3"),
        ("random:gpt2?layers=2&hidden=16&heads=2", Code.SHAPE, "transformer.h.0.attn"),
    ],
)
def test_another_model_is_refused_in_one_line_and_left_as_it_was(ref: str, code: Code, said: str, place: Path) -> None:
    model = plain(ref)
    names = {*model.state_dict()}
    with pytest.raises(CotuneError, match=said) as caught:
        attach_memory(model, place)
    assert caught.value.code is code
    assert "\n" not in str(caught.value)
    assert {*model.state_dict()} == names
    assert not hasattr(model, "memory_session")


def test_an_encoder_has_no_place_for_it(place: Path) -> None:
    model = Backbone(ref="random:bert?layers=2&hidden=16&heads=2").load("classification", 2, seed=5).model
    with pytest.raises(CotuneError) as caught:
        attach_memory(model, place)
    assert caught.value.code is Code.MODEL


def test_a_second_memory_is_refused(place: Path) -> None:
    model = plain(f"random:llama?{SIZES}")
    attach_memory(model, place)
    with pytest.raises(CotuneError, match="has a memory already") as caught:
        attach_memory(model, place)
    assert caught.value.code is Code.CONFLICT


def changed(place: Path, to: Path, **fields: Any) -> Path:
    """The folder with other fields in its configuration."""
    to.mkdir()
    about = json.loads((place / CONFIG).read_text())
    (to / CONFIG).write_text(json.dumps({**about, **fields}))
    (to / TENSORS).write_bytes((place / TENSORS).read_bytes())
    return to


def test_files_that_are_not_whole_are_refused_in_one_line(place: Path, tmp_path: Path) -> None:
    model = plain(f"random:llama?{SIZES}")

    def refused(where: Path, code: Code, said: str) -> None:
        with pytest.raises(CotuneError, match=said) as caught:
            attach_memory(model, where)
        assert caught.value.code is code, caught.value
        assert "\n" not in str(caught.value)

    refused(tmp_path / "nowhere", Code.MODEL, "no memory is in the folder")
    refused(changed(place, tmp_path / "newer", version=2), Code.VERSION, "got 2, expected 1")
    refused(changed(place, tmp_path / "odd", rules={"rle": "delta"}), Code.CONFIG, "unknown key 'rle'")
    refused(changed(place, tmp_path / "other", rules={"shift": True}), Code.KEYS, "without .*shift")
    refused(changed(place, tmp_path / "thin", rules={"gate": "constant"}), Code.KEYS, "with .*gate")
    cut = changed(place, tmp_path / "cut")
    (cut / TENSORS).write_bytes((place / TENSORS).read_bytes()[:-9])
    refused(cut, Code.MODEL, "cannot read the memory")
    tensors = load_file(place / TENSORS)
    name = next(name for name in tensors if name.endswith("gate"))
    (cut / TENSORS).write_bytes(to_bytes({**tensors, name: torch.zeros(3)}))
    refused(cut, Code.SHAPE, r"gate.*got \(3,\), expected \(2,\)")
    attach_memory(model, place)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")  # peft asks for it
def test_an_adapter_that_comes_after_the_memory_is_noticed(place: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(place.parent / "originals" / "llama")
    attach_memory(model, place)
    late: Any = PeftModel.from_pretrained(model, str(place))
    with pytest.raises(CotuneError, match="load the adapter first") as caught:
        late(input_ids=IDS)
    assert caught.value.code is Code.CONFLICT
