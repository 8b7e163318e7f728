"""What a run leaves loads elsewhere: plain peft and plain transformers, in another process, compute the same logits."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml  # type: ignore[import-untyped]
from safetensors.torch import load_file, save_file
from tiny import experiment, play
from torch import Tensor
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSequenceClassification

import cotune as ct
from cotune.backbone import Backbone, Loaded
from cotune.backbone.bind import bind
from cotune.backbone.quiet import quiet
from cotune.checkpoint import unpack
from cotune.client import SEAL
from cotune.core.change import Base
from cotune.core.contracts import Corpus, Personalize, Trained
from cotune.core.errors import Code, CotuneError
from cotune.core.seeds import derive, torch_generator
from cotune.core.spec import Role, Spec
from cotune.core.state import Private, Theta, digest, from_bytes, to_bytes
from cotune.export import export, reopen, whole
from cotune.export import folder as folders
from cotune.export.whose import alone, of_client, shared
from cotune.resolve import recipe, recipes
from cotune.store import Checkpoints, Run
from cotune.trainable import Full, LoRA

DECODERS, ENCODERS = ("llama", "qwen2", "opt", "gpt2"), ("roberta", "bert")
SIZES = "layers=2&hidden=16&heads=2&intermediate=24&positions=32"
LABELS = ("bad", "fair", "good")
IDS = torch.arange(16, 40).reshape(2, 12)
MASK = torch.tensor([[1] * 12, [1] * 9 + [0] * 3])

# Runs in a process that knows nothing of cotune.
ELSEWHERE = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
import torch, transformers
from peft import PeftModel
from safetensors.torch import load_file
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
assert "cotune" not in sys.modules
root, found = sys.argv[1], {}

def logits(model, given):
    with torch.no_grad():
        return model.eval()(input_ids=given["ids"], attention_mask=given["mask"]).logits.float()

for case in json.load(open(os.path.join(root, "cases.json"))):
    given = load_file(case["given"])
    kind = getattr(transformers, case["auto"])
    off = {}
    for way in case["ways"]:
        if way == "whole":
            model = kind.from_pretrained(case["folder"])
        else:
            torch.manual_seed(len(found))
            model = kind.from_pretrained(case["base"], **case["settings"])
            if way == "peft":
                model = PeftModel.from_pretrained(model, case["folder"])
            else:
                model.load_adapter(case["folder"])
        off[way] = float((logits(model, given) - given["logits"]).abs().max())
    found[case["name"]] = off
os.chdir(sys.argv[2])
text = open("README.md").read()
lines = text.split("```python\\n")[1].split("```")[0]
scope = {}
exec(lines, scope)
found["card"] = {"lines": len(lines.strip().splitlines()), "shape": list(scope["logits"].shape)}
json.dump(found, open(os.path.join(root, "found.json"), "w"))
"""


SMALL = LoRA(rank=3, alpha=6)


@dataclass(frozen=True)
class Case:
    """An adapter to load elsewhere."""

    name: str
    arch: str
    head: str = "classification"
    trainable: LoRA = SMALL
    base: str = ""  # '', 'factors' or 'dense'
    ranks: Mapping[str, int] | None = None  # a part of a module's name -> its rank
    ways: tuple[str, ...] = ("peft", "transformers")


CASES = [
    *(Case(f"{arch} default", arch) for arch in (*DECODERS, *ENCODERS)),
    *(Case(f"{arch} all-linear", arch, trainable=LoRA(rank=2, alpha=5, targets="all-linear")) for arch in ENCODERS),
    *(
        Case(f"{arch} causal all-linear", arch, "causal", LoRA(rank=2, targets="all-linear", train="B"))
        for arch in DECODERS
    ),
    Case("llama causal tuple", "llama", "causal", LoRA(rank=2, alpha=4.5, targets=("q_proj", "layers.1.mlp.up_proj"))),
    Case("bert frozen head", "bert", trainable=LoRA(rank=2, head="frozen")),
    Case("gpt2 ranks", "gpt2", trainable=LoRA(rank=4), ranks={"h.0": 2}),
    Case("bert base", "bert", base="factors"),
    Case("gpt2 base", "gpt2", "causal", base="factors"),
    Case("gpt2 dense base", "gpt2", "causal", base="dense"),
    Case("bert merged", "bert", base="factors", ways=("whole",)),
    Case("gpt2 merged", "gpt2", "causal", base="dense", ways=("whole",)),
    Case("llama merged", "llama", "causal", ways=("whole",)),
]

# Every recipe that trains low-rank factors, each on a family of its own in turn; some with clients of two ranks.
ROWS = sorted(name for name in recipes() if recipe(name).trainable.kind == "lora")
MIXED = ("flora", "svd-redistribution", "fedrot-lora")


def drawn(name: str, shape: Sequence[int]) -> Tensor:
    return 0.3 * torch.randn(tuple(shape), generator=torch_generator(derive(1, name)))


def original(arch: str, root: Path) -> Path:
    """A pretrained model's folder as anybody would publish it: no classification head, and BERT without a pooler."""
    folder = root / "originals" / arch
    if not folder.exists():
        loaded = Backbone(ref=f"random:{arch}?{SIZES}").load("classification", 2, seed=3)
        kind: Any = AutoModelForCausalLM if arch in DECODERS else AutoModelForMaskedLM
        torch.manual_seed(4)
        with quiet():
            kind.from_config(loaded.model.config).save_pretrained(folder)
            loaded.tokenizer.save_pretrained(folder)
    return folder


def attached(case: Case, ref: str) -> tuple[Trained, Loaded]:
    """A model some way from its start: every tensor drawn, ranks and base deltas as the case says."""
    backbone = Backbone(ref=ref).load(case.head, len(LABELS), seed=5)
    _, _, spec = case.trainable.attach(backbone, 6, "all")
    if case.ranks:
        rows = []
        for entry in spec:
            rank = next((r for part, r in case.ranks.items() if part in entry.name), None)
            rows.append(entry if rank is None else Spec((entry,)).ranked(rank).entries[0])
        spec = Spec(tuple(rows))
    tensors = {entry.name: drawn(entry.name, entry.shape) for entry in spec}
    factors = {}
    for entry in spec if case.base else ():
        if entry.role is Role.FACTOR_B:
            layer: Any = backbone.model.get_submodule(entry.module)
            b = drawn(entry.module, (layer.out_features, 2))
            a = drawn(f"{entry.module}/A", (2, layer.in_features))
            factors[entry.module] = (b, a) if case.base == "factors" else (b @ a, torch.empty(0, a.shape[1]))
    return Trained(backbone, spec, tensors, Base(factors), ref), backbone


def logits(trained: Trained) -> Tensor:
    with torch.no_grad(), bind(trained.backbone.model, trained.tensors, trained.spec, trained.base) as bound:
        computed: Tensor = bound(trained.tensors, input_ids=IDS, attention_mask=MASK).logits
    return computed.float()


def given(trained: Trained, path: Path) -> str:
    save_file({"ids": IDS, "mask": MASK, "logits": logits(trained)}, path)
    return str(path)


def auto(head: str) -> str:
    return "AutoModelForCausalLM" if head == "causal" else "AutoModelForSequenceClassification"


@pytest.fixture(scope="module")
def into_base(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with a base delta."""
    out = tmp_path_factory.mktemp("into-base")
    return play(experiment(method__aggregator={"kind": "probes:IntoBase"}, method__optimizer__lr=0.05), out)


@dataclass(frozen=True)
class Row:
    """What a recipe's run left, and the folder that it was exported to."""

    trained: Trained
    base: Path
    folder: Path


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    """Recipe -> its run on a published model's folder, exported: for one client where what all share is no model."""
    root, found = tmp_path_factory.mktemp("rows"), {}
    for number, name in enumerate(ROWS):
        base = original((*DECODERS, *ENCODERS)[number % 6], root)
        sets: dict[str, Any] = {"federation": {"rounds": 2}, "evaluation": {"which": "none"}}
        sets |= {"method__trainable__rank": 4, "method__optimizer__lr": 0.3, "backbone__ref": str(base)}
        if name in MIXED:
            sets["federation"]["groups"] = [{"match": "*[01]", "rank": 2}]
        run = play(experiment(name, **sets), root / "runs")
        blueprint = ct.Experiment.model_validate(run.about["experiment"]).blueprint()
        setup, state = reopen(run, blueprint)
        client = sorted(run.about["clients"])[0] if alone(setup) else None
        export(run, blueprint, root / name, client=client)
        config = blueprint.backbone
        whose = of_client(setup, state, config, run, client) if client else shared(setup, state, config)
        found[name] = Row(whose.trained, base, root / name)
    return found


@pytest.fixture(scope="module")
def elsewhere(
    tmp_path_factory: pytest.TempPathFactory, into_base: Run, rows: dict[str, Row]
) -> dict[str, dict[str, float]]:
    """Case -> way of loading -> by how much logits are off, all from one process without cotune."""
    root = tmp_path_factory.mktemp("cases")
    cases = []
    for case in CASES:
        base, folder = original(case.arch, root), root / case.name.replace(" ", "-")
        trained, backbone = attached(case, str(base))
        folder.mkdir()
        if case.ways == ("whole",):
            whole.save(folder, backbone, case.trainable.weights(trained), LABELS if case.head != "causal" else ())
        else:
            for name, data in case.trainable.adapter(trained).items():
                (folder / name).write_bytes(data)
        settings: dict[str, Any] = {"dtype": "float32", "pad_token_id": 0}
        settings |= {} if case.head == "causal" else {"num_labels": len(LABELS)}
        about: dict[str, Any] = {"name": case.name, "folder": str(folder), "base": str(base), "auto": auto(case.head)}
        about |= {"settings": settings, "ways": case.ways, "given": given(trained, root / f"{folder.name}.safetensors")}
        cases.append(about)
    for name, row in rows.items():
        settings = {"dtype": "float32", "pad_token_id": 0, "num_labels": 2}
        about = {"name": name, "folder": str(row.folder), "base": str(row.base), "auto": auto("classification")}
        about |= {"settings": settings, "ways": ("peft", "transformers")}
        cases.append({**about, "given": given(row.trained, root / f"{name}.safetensors")})
    blueprint = ct.Experiment.model_validate(into_base.about["experiment"]).blueprint()
    setup, state = reopen(into_base, blueprint)
    run = Trained(setup.backbone, setup.spec, {**state.theta}, state.base, "")
    folder = root / "run"
    export(into_base, blueprint, folder, with_backbone=True)
    about = {"name": "run", "folder": str(folder), "base": str(folder / "backbone"), "auto": auto("classification")}
    about |= {"settings": {}, "ways": ("peft", "transformers"), "given": given(run, root / "run.safetensors")}
    cases.append(about)
    (root / "cases.json").write_text(json.dumps(cases))
    script = root / "elsewhere.py"
    script.write_text(ELSEWHERE)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, str(script), str(root), str(folder)], check=True, env=environment)
    found: dict[str, dict[str, float]] = json.loads((root / "found.json").read_text())
    return found


@pytest.mark.parametrize("name", [*(case.name for case in CASES), *ROWS, "run"])
def test_plain_peft_and_transformers_compute_the_same_logits_in_another_process(
    name: str, elsewhere: dict[str, dict[str, float]]
) -> None:
    assert elsewhere[name]
    assert max(elsewhere[name].values()) <= 1e-5, elsewhere[name]


def test_what_every_row_learnt_is_in_its_logits_and_so_is_what_its_server_added(rows: dict[str, Row]) -> None:
    moved = {}
    for name, row in rows.items():
        trained, full = row.trained, logits(row.trained)
        factors = {e.name for e in trained.spec if e.role is Role.FACTOR_B}
        without = {n: torch.zeros_like(t) if n in factors else t for n, t in trained.tensors.items()}
        plain = replace(trained, tensors=without, base=Base())
        moved[name] = [float((logits(plain) - full).abs().max())]
        assert bool(trained.base) == (name in ("flora", "fedex-lora")), name
        if trained.base:
            moved[name].append(float((logits(replace(trained, base=Base())) - full).abs().max()))
    assert min(min(gaps) for gaps in moved.values()) > 1e-3, moved


def test_an_exported_row_has_one_rank_whatever_those_of_its_clients(rows: dict[str, Row]) -> None:  # peft issue 3737
    for name in MIXED:
        config = json.loads((rows[name].folder / "adapter_config.json").read_text())
        saved = load_file(rows[name].folder / "adapter_model.safetensors")
        ranks = {t.shape[0] for n, t in saved.items() if "lora_A" in n} | {
            t.shape[1] for n, t in saved.items() if "lora_B" in n
        }
        assert (config["rank_pattern"], config["alpha_pattern"], {config["r"]}) == ({}, {}, ranks), name


def test_the_six_lines_of_the_card_run_as_they_stand(elsewhere: dict[str, Any]) -> None:
    assert elsewhere["card"] == {"lines": 6, "shape": [1, 2]}


def config_of(case: Case, root: Path) -> dict[str, Any]:
    trained, _ = attached(case, str(original(case.arch, root)))
    read: dict[str, Any] = json.loads(case.trainable.adapter(trained)["adapter_config.json"])
    return read


def test_the_config_has_one_rank_one_alpha_no_patterns_and_sorted_targets(tmp_path: Path) -> None:
    by_name = {case.name: case for case in CASES}
    plain = config_of(by_name["roberta all-linear"], tmp_path)
    assert plain["target_modules"] == sorted(plain["target_modules"])
    assert plain["target_modules"] == ["intermediate.dense", "key", "output.dense", "query", "value"]
    assert (plain["r"], plain["lora_alpha"], plain["task_type"]) == (2, 5, "SEQ_CLS")
    assert plain["modules_to_save"] == ["classifier"]
    ranks = config_of(by_name["gpt2 ranks"], tmp_path)
    assert (ranks["r"], ranks["rank_pattern"], ranks["alpha_pattern"]) == (4, {}, {})
    assert ranks["fan_in_fan_out"] is True
    fraction = config_of(by_name["llama causal tuple"], tmp_path)
    assert (fraction["r"], fraction["lora_alpha"], fraction["task_type"]) == (2, 2, "CAUSAL_LM")
    assert fraction["modules_to_save"] is None
    assert fraction["base_model_name_or_path"] == str(tmp_path / "originals" / "llama")
    stacked = config_of(by_name["gpt2 base"], tmp_path)
    assert (stacked["r"], stacked["lora_alpha"]) == (5, 5)
    new_pooler = config_of(by_name["bert default"], tmp_path)
    assert new_pooler["modules_to_save"] == ["bert.pooler.dense", "classifier"]


@pytest.mark.parametrize("base", ["", "factors", "dense"])
def test_folding_that_would_change_a_layer_is_refused(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, _ = attached(Case("", "bert", base=base), str(original("bert", tmp_path)))
    monkeypatch.setattr("cotune.trainable.adapter._padded", lambda b, a, rank: (b * 1.001, a))
    with pytest.raises(CotuneError, match="compute something else"):
        LoRA(rank=3, alpha=6).adapter(trained)


# ---- runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run on local rows and a local backbone."""
    root = tmp_path_factory.mktemp("run")
    rows = root / "secret" / "rows.jsonl"
    rows.parent.mkdir()
    rows.write_text("".join(f'{{"text": "row {i} is {i % 3}", "label": "{LABELS[i % 3]}"}}\n' for i in range(60)))
    task = {"kind": "classify", "data": str(rows), "partition": {"kind": "iid", "clients": 3}, "max_tokens": 24}
    return play(
        experiment(task=task, backbone={"ref": str(original("bert", root))}, federation={"rounds": 2, "cohort": 2}),
        root,
    )


def exported(run: Run, to: Path, **options: Any) -> folders.Exported:
    return export(run, ct.Experiment.model_validate(run.about["experiment"]).blueprint(), to, **options)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_finished_run_leaves_an_adapter_and_export_writes_the_same_bytes(run: Run, tmp_path: Path) -> None:
    left = content(run.folder / "adapter")
    assert sorted(left) == ["README.md", "adapter_config.json", "adapter_model.safetensors"]
    done = exported(run, tmp_path / "new" / "folder")
    assert content(done.folder) == left
    assert done.what == f"adapter of rank 8 for {run.about['experiment']['backbone']['ref']}"
    assert run.about["labels"] == list(LABELS)
    assert run.about["head"] == "classification"
    with pytest.raises(CotuneError, match="folder is not empty"):
        exported(run, done.folder)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["folder"]


def test_the_card_says_what_it_must_and_no_more(run: Run) -> None:
    text = (run.folder / "adapter" / "README.md").read_text()
    _, front, body = text.split("---\n", 2)
    fields = yaml.safe_load(front)
    assert fields["library_name"] == "peft"
    assert fields["base_model"] == run.about["experiment"]["backbone"]["ref"]
    assert {"federated-learning", "lora"} <= set(fields["tags"])
    record = run.rounds[-1]
    metric = record.global_metrics["accuracy"]
    for said in (
        run.theta_sha256,
        f"| accuracy | {metric.value:.4f} | {metric.n} | {metric.low:.4f} to {metric.high:.4f} | {metric.chance:.4f} |",
        f"{sum(r.uplink_bytes for r in run.rounds):,} up, {sum(r.downlink_bytes for r in run.rounds):,} down",
        "| rounds | 2 of 2 |",
        "| clients | 3, 2 a round |",
        "Local data, `rows.jsonl`",
        "No differential privacy",
        "init 0",
        '0 = "bad"',
    ):
        assert said in body, said
    assert "secret" not in text
    assert "directions" not in text


def test_synthetic_data_and_random_weights_are_called_so_and_the_way_to_a_backbone_is_told(into_base: Run) -> None:
    text = (into_base.folder / "adapter" / "README.md").read_text()
    assert "Synthetic data, generated by `synth:sentiment" in text
    assert "random weights, drawn by seed" in text
    assert "--with-backbone" in text
    assert "rank 32" not in text
    assert "what the server added to the backbone is in these factors: rank 16" in text.replace("rank 32", "")


def test_a_merged_folder_is_the_model_with_the_names_of_its_classes(run: Run, tmp_path: Path) -> None:
    done = exported(run, tmp_path / "whole", merge=True)
    assert "differ by at most" in done.what
    files = content(done.folder)
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= set(files)
    config = json.loads(files["config.json"])
    assert config["id2label"] == dict(zip("012", LABELS, strict=True))
    assert all(b"secret" not in data for data in files.values())
    assert {stat.S_IMODE(path.stat().st_mode) for path in done.folder.iterdir()} == {
        stat.S_IMODE((run.folder / "experiment.json").stat().st_mode)
    }
    assert yaml.safe_load(files["README.md"].decode().split("---\n")[1])["library_name"] == "transformers"
    setup, state = reopen(run, ct.Experiment.model_validate(run.about["experiment"]).blueprint())
    model = AutoModelForSequenceClassification.from_pretrained(done.folder).eval()
    with torch.no_grad():
        ours = model(input_ids=IDS, attention_mask=MASK).logits
    theirs = logits(Trained(setup.backbone, setup.spec, {**state.theta}, state.base, ""))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert isinstance(AutoModel.from_pretrained(done.folder), torch.nn.Module)


@pytest.mark.parametrize("trainable", [LoRA(rank=2, targets="all-linear"), Full()])
def test_tied_embeddings_stay_tied_and_are_written_once(trainable: LoRA | Full, tmp_path: Path) -> None:
    backbone = Backbone(ref=f"random:llama?{SIZES}").load("causal", 0, seed=5)
    _, _, spec = trainable.attach(backbone, 6, "all")
    trained = Trained(backbone, spec, {e.name: drawn(e.name, e.shape) for e in spec}, Base(), "")
    whole.save(tmp_path, backbone, trainable.weights(trained), ())
    assert ("lm_head.weight" in load_file(tmp_path / "model.safetensors")) is False
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path)
    model.eval()
    assert model.lm_head.weight is model.get_input_embeddings().weight
    model.save_pretrained(tmp_path / "again")
    with torch.no_grad():
        ours = model(input_ids=IDS, attention_mask=MASK).logits
    torch.testing.assert_close(ours, logits(trained), rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings")
def test_a_change_of_a_tied_weight_alone_is_an_adapter_and_never_merged(tmp_path: Path) -> None:
    case = Case("", "llama", "causal", LoRA(rank=2, targets=("lm_head", "q_proj")))
    trained, _ = attached(case, str(original("llama", tmp_path)))
    with pytest.raises(CotuneError, match="tied weight") as caught:
        case.trainable.weights(trained)
    assert caught.value.code is Code.CONFLICT


def test_merging_into_bfloat16_rounds_once_and_leaves_the_backbone_as_it_was(
    tmp_path: Path,
) -> None:  # peft issue 1388
    backbone = Backbone(ref=f"random:gpt2?{SIZES}", dtype="bfloat16").load("causal", 0, seed=5)
    frozen = {name: tensor.clone() for name, tensor in backbone.model.state_dict().items()}
    trainable = LoRA(rank=2, targets="all-linear")
    _, _, spec = trainable.attach(backbone, 6, "all")
    trained = Trained(backbone, spec, {e.name: drawn(e.name, e.shape) for e in spec}, Base(), "")
    for _ in range(100):
        merged = trainable.weights(trained)
    plain = trainable.weights(replace(trained, tensors={}))
    assert {name: tensor.dtype for name, tensor in merged.items()} == {n: t.dtype for n, t in frozen.items()}
    assert all(torch.equal(plain[name], tensor) for name, tensor in frozen.items())
    b, a = (trained.tensors[f"transformer.h.0.mlp.c_fc.lora_{x}.default.weight"] for x in "BA")
    exact = frozen["transformer.h.0.mlp.c_fc.weight"].double() + 8.0 * (b.double() @ a.double()).mT
    assert torch.equal(merged["transformer.h.0.mlp.c_fc.weight"], exact.bfloat16())
    whole.save(tmp_path, backbone, merged, ())
    moved = whole.difference(tmp_path, trained, Corpus({}, (), "causal", (), {}), backbone.config)
    assert 0 < moved <= 2.0**-8 * 8 * float(logits(trained).abs().max())


def test_full_training_leaves_a_whole_model(tmp_path: Path) -> None:
    run = play(experiment("fedavg", federation={"rounds": 1}), tmp_path)
    left = run.folder / "adapter"
    model: Any = AutoModelForSequenceClassification.from_pretrained(left).eval()
    setup, state = reopen(run, ct.Experiment.model_validate(run.about["experiment"]).blueprint())
    for name, tensor in model.state_dict().items():
        if name in state.theta:
            assert torch.equal(tensor, state.theta[name])
    assert model.config.id2label == dict(enumerate(setup.corpus.labels))
    assert (
        content(exported(run, tmp_path / "new").folder)["model.safetensors"]
        == (left / "model.safetensors").read_bytes()
    )
    with pytest.raises(CotuneError, match="has its backbone inside"):
        exported(run, tmp_path / "other", with_backbone=True)
    assert not (tmp_path / "other").exists()


# ---- whose


def personal(out: Path, **sets: Any) -> Run:
    return play(experiment(federation={"rounds": 2, "cohort": 2}, **sets), out)


@pytest.mark.parametrize(
    ("sets", "why"),
    [
        ({"method__trainable": {"kind": "lora", "rank": 2, "head": "personal"}}, "the head stays with each client"),
        ({"recipe": "local"}, "nothing is shared"),
        ({"method__share": ["factor_b", "head"]}, "A stays with each client"),
    ],
)
def test_what_is_no_model_without_its_clients_is_exported_for_one_of_them(
    sets: dict[str, Any], why: str, tmp_path: Path
) -> None:
    run = personal(tmp_path, **sets)
    assert run.status == "finished"
    assert not (run.folder / "adapter").exists()
    with pytest.raises(CotuneError, match=f"{why}.*--client ID") as caught:
        exported(run, tmp_path / "none")
    assert caught.value.code is Code.CONFLICT
    client = run.rounds[-1].cohort.accepted[0]
    done = exported(run, tmp_path / "one", client=client, with_backbone=True)
    assert f"model of client {client}" in done.notes[0]
    assert f"| model of | client {client} |" in (done.folder / "README.md").read_text()
    kept = from_bytes((run.folder / "clients" / client / "round-00002.safetensors").read_bytes())
    saved = load_file(done.folder / "adapter_model.safetensors")
    for name, tensor in kept.items():
        if name.startswith("personal/"):
            plain = name.removeprefix("personal/").replace(".default", "")
            assert torch.equal(saved[f"base_model.model.{plain}"], tensor), name
    with pytest.raises(CotuneError, match="no client 'nobody'"):
        exported(run, tmp_path / "none", client="nobody")


def test_a_shared_a_is_exported_alone_and_says_that_b_stays(tmp_path: Path) -> None:
    run = personal(
        tmp_path, method__trainable={"kind": "lora", "rank": 2, "head": "frozen"}, method__share=["factor_a"]
    )
    left = load_file(run.folder / "adapter" / "adapter_model.safetensors")
    assert not any(bool(tensor.any()) for name, tensor in left.items() if "lora_B" in name)
    assert "B stays with each client" in (run.folder / "adapter" / "README.md").read_text()
    assert "B stays with each client" in exported(run, tmp_path / "new").notes[0]


def test_a_client_that_was_never_accepted_or_whose_state_is_not_whole_has_no_model(tmp_path: Path) -> None:
    run = play(experiment("local", federation={"rounds": 1, "cohort": 1}), tmp_path)
    (client,) = run.rounds[0].cohort.accepted
    other = next(name for name in run.about["clients"] if name != client)
    with pytest.raises(CotuneError, match="accepted in no round"):
        exported(run, tmp_path / "none", client=other)
    path = run.folder / "clients" / client / "round-00001.safetensors"
    named = from_bytes(path.read_bytes())
    lost = {name: tensor for name, tensor in named.items() if "lora_B" not in name}
    path.write_bytes(to_bytes(lost))
    with pytest.raises(CotuneError, match="state is damaged"):
        exported(run, tmp_path / "none", client=client)
    del lost[SEAL]
    seal = torch.frombuffer(bytearray.fromhex(digest(lost)), dtype=torch.uint8)
    path.write_bytes(to_bytes({**lost, SEAL: seal}))
    with pytest.raises(CotuneError, match=r"not those of the run.*without.*lora_B"):
        exported(run, tmp_path / "none", client=client)
    path.unlink()
    with pytest.raises(CotuneError, match="state is not in this folder"):
        exported(run, tmp_path / "none", client=client)


class Halved(Personalize):
    """Half of theta, and what the client learnt."""

    kind = "halved"

    def view(self, theta: Theta, private: Private) -> Theta:
        return Theta({name: tensor / 2 for name, tensor in theta.items()})


def test_a_personalised_model_is_the_view_that_its_client_is_scored_with(tmp_path: Path) -> None:
    whole_run = experiment(federation={"rounds": 1})
    halved = whole_run.model_copy(update={"method": whole_run.method.model_copy(update={"personalize": Halved()})})
    run, setup = play(halved, tmp_path), halved.blueprint().build()
    found = Checkpoints(run.folder / "checkpoints").latest()
    assert found is not None
    state, client = unpack(found[1])[0], run.rounds[0].cohort.accepted[0]
    own = of_client(setup, state, halved.backbone, run, client)
    assert all(torch.equal(own.trained.tensors[name], tensor / 2) for name, tensor in state.theta.items())
    assert "clients use models of their own" in own.notes[0]
    assert "made by halved of this one" in (run.folder / "adapter" / "README.md").read_text()


def test_one_model_has_no_clients(run: Run, tmp_path: Path) -> None:
    with pytest.raises(CotuneError, match="all clients have one model"):
        exported(run, tmp_path / "none", client=run.rounds[0].cohort.accepted[0])


# ---- nothing on trust


def renamed(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {**{n: t for n, t in tensors.items() if n != name}, f"{name}.x": tensors[name]}


TAMPERED: dict[str, Callable[[dict[str, Tensor], str], dict[str, Tensor]]] = {
    "renamed": renamed,
    "dropped": lambda tensors, name: {n: t for n, t in tensors.items() if n != name},
    "added": lambda tensors, name: {**tensors, f"{name}.x": tensors[name]},
    "empty": lambda tensors, name: {**tensors, name: torch.empty(0)},
    "changed": lambda tensors, name: {**tensors, name: tensors[name] + 1},
    "float64": lambda tensors, name: {**tensors, name: tensors[name].double()},
}


@pytest.mark.parametrize("file", ["theta", "server"])
@pytest.mark.parametrize("how", TAMPERED)
def test_a_checkpoint_that_is_not_exactly_the_runs_is_refused(
    how: str, file: str, into_base: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Checkpoints(into_base.folder / "checkpoints").latest()
    assert found is not None
    files = dict(found[1])
    tensors = from_bytes(files[f"{file}.safetensors"])
    name = next(n for n in sorted(tensors) if n.endswith("weight" if file == "theta" else "/A"))
    files[f"{file}.safetensors"] = to_bytes(TAMPERED[how](tensors, name))
    if file == "theta" and how == "renamed":  # and its list of names with it
        about = json.loads(files["state.json"])
        about["names"] = [f"{n}.x" if n == name else n for n in about["names"]]
        files["state.json"] = json.dumps(about).encode()
    monkeypatch.setattr(Checkpoints, "latest", lambda self, watch=None: (found[0], files))
    if file == "server" and how == "changed":
        return  # seen by the manifest alone, which this test has taken away
    with pytest.raises(CotuneError) as caught:
        exported(into_base, tmp_path / "none")
    assert caught.value.code in (Code.KEYS, Code.SHAPE, Code.DTYPE, Code.HASH, Code.CHECKPOINT)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_last_checkpoint_is_not_replaced_by_an_older_model(run: Run, tmp_path: Path) -> None:
    last = sorted((run.folder / "checkpoints").glob("round-*/theta.safetensors"))[-1]
    data = last.read_bytes()
    last.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CotuneError, match="last checkpoint is damaged"):
        exported(run, tmp_path / "none")
    last.write_bytes(data)
    assert unpack(Checkpoints(run.folder / "checkpoints").latest()[1])  # type: ignore[index]


def test_a_failure_at_the_end_loses_nothing_and_the_run_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_run = experiment(federation={"rounds": 2})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("cotune.export.folder.card", full)
        with pytest.raises(CotuneError, match="repeat with --resume") as caught:
            play(whole_run, tmp_path)
    assert caught.value.code is Code.DISK
    failed = Run(whole_run.folder(tmp_path))
    assert failed.status == "failed"
    assert len(failed.rounds) == 2
    assert not list(failed.folder.glob("*adapter*"))
    again = play(whole_run, tmp_path, resume=True)
    assert again.status == "finished"
    assert len(again.rounds) == 2
    assert (again.folder / "adapter" / "adapter_config.json").exists()
