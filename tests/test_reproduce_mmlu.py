"""The rows of FedNL on five domains: the whole in small on rows of MMLU's own schema, and pages against oracles."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published import mmlu, on_disk

from cotune import experiment as experiments
from cotune.backbone import Backbone
from cotune.cli.options import REPRODUCED
from cotune.cli.show import view
from cotune.core.contracts import ClientInfo
from cotune.core.seeds import Seeds
from cotune.experiment import Experiment
from cotune.federation import Federation
from cotune.reproduce import REPRODUCTIONS, Laptop, beside, mmlu_told, paper
from cotune.reproduce.domains import Domains
from cotune.reproduce.mmlu import TWIN, FedNLMMLU, Size, ground, question
from cotune.reproduce.mmlu_told import FEDAVG, FEDNL, LOCAL, UNTRAINED, one_letter, over_domains, said
from cotune.reproduce.page import Titled
from cotune.reproduce.rates import FEW
from cotune.reproduce.reproduction import Found
from cotune.store import Run
from cotune.task.mmlu import DOMAINS

RESULTS = paper.folder("fednl") / "results"
SHAPES = "layers=1&hidden=16&heads=2&positions=512"
LLAMA = f"random:llama?{SHAPES}"
SUBJECTS = [subjects[0] for subjects in DOMAINS.values()]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Generated questions in the schema of MMLU, of one subject a domain."""
    folder = tmp_path_factory.mktemp("mmlu")
    splits = {"test": 6, "validation": 6, "dev": 2}
    asked = {split: [mmlu(i, one) for one in SUBJECTS for i in range(count)] for split, count in splits.items()}
    return str(on_disk(folder, "cais/mmlu:all", asked))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fednl-mmlu")


def reproduction(data: str) -> FedNLMMLU:
    """Two rows and the untrained model of each setting, which have learned nothing."""
    shared: Mapping[str, Any] = {"ref": LLAMA, "dtype": "float32", "rounds": 1, "steps": 1, "batch": 2, "own": {}}
    synthetic = {"synthetic": True, "data": "synth:choice?domains=2&things=4&rows=40", "test": 10, "every_row": True}

    class Small(FedNLMMLU):
        real = Size(data=data, max_tokens=200, rows=(FEDAVG, FEDNL), sweep=(1e-3, 1e-2), **shared)
        twin = Size(name="twin", max_tokens=400, rows=(FEDAVG, LOCAL), sweep=(1e-3,), **synthetic, **shared)

    return Small()


@pytest.fixture(scope="module")
def small(data: str, out: Path) -> Found:
    return reproduction(data).laptop(Laptop(out, seeds=1))


@pytest.fixture(scope="module")
def results(small: Found) -> Any:
    return json.loads((small.folder / "fednl-mmlu-laptop.json").read_text("utf-8"))


def table(small: Found, caption: str) -> list[dict[str, Any]]:
    """The rows of the first table whose caption begins so."""
    block = next(one for one in small.page.blocks if isinstance(one, Titled) and one.caption.startswith(caption))
    return [dict(zip(block.table.columns, row, strict=True)) for row in block.table.rows]


def test_it_leaves_a_page_that_says_what_it_shows_and_every_difference(small: Found) -> None:
    text = (small.folder / "fednl-mmlu-laptop.md").read_text("utf-8")
    for words in ("**Real** questions", "**Synthetic** questions", "95 % interval", "four times in five", "| FedALA |"):
        assert words in text
    assert text.count("Chance (25 %) is within the 95 % interval of") == 2
    assert "Every setting that differs: fednl on MMLU's development questions" in text
    assert "| task.data | cais/mmlu:all |" in text


def test_a_row_of_the_table_has_every_domain_both_averages_and_whose_model_it_is(small: Found, results: Any) -> None:
    rows = table(small, "MMLU's development questions: accuracy")
    assert [row["row"] for row in rows] == [FEDAVG, FEDNL, UNTRAINED]
    assert [name for name in rows[0] if "(n 6)" in name] == [f"{domain} (n 6)" for domain in DOMAINS]
    told = results["mmlu"]
    assert told["n"] == [30]
    assert told["chance"] == 0.25
    for row, plain in zip(rows, told["rows"], strict=True):
        assert row["over rows"].startswith(f"{100 * plain['value']:.1f} [")
        assert row["average over domains"].startswith(f"{100 * plain['value']:.1f} ["), "domains are as large here"
        assert row["scored model"] == "global theta"
    twin = table(small, "Synthetic questions: accuracy")
    assert [row["scored model"] for row in twin][:2] == ["global theta", "mean over the own models of 2 clients"]


def test_the_untrained_model_is_what_nothing_has_moved(small: Found) -> None:
    """At rate 0 theta is the start, and so B is 0 in every layer."""
    from cotune.core.state import from_bytes

    for folder in small.folder.glob(f"{UNTRAINED}-*"):
        tensors = from_bytes((folder / "adapter" / "adapter_model.safetensors").read_bytes())
        downs = [tensor for name, tensor in tensors.items() if "lora_B" in name]
        assert downs
        assert not any(tensor.any() for tensor in downs)


def test_the_bytes_are_those_of_the_ledger_and_rules_alone_those_of_a_run_that_sends_nothing_else(
    small: Found, results: Any
) -> None:
    run = Run(next(small.folder.glob("fednl-seed-0-*")))
    lines = [line for line in run.ledger if line.purpose == "train"]
    sent = results["mmlu"]["bytes"][FEDNL]
    for direction in ("up", "down"):
        (one, *others) = [line for line in lines if line.direction == direction]
        assert all(line.payload_bytes == one.payload_bytes for line in others)
        assert {name: size for name, size in sent[direction].items() if name != "framing"} == one.payload_bytes
    sets = ("method.share=memory", "method.trainable.rank=8")
    found = json.loads(view("fednl", shapes_only=True, backbone=LLAMA, task="recall", rounds=1, sets=sets).json())
    (alone,) = [m for m in found["rounds"][0]["messages"] if (m["purpose"], m["direction"]) == ("train", "up")]
    assert alone["payload_bytes"] == {"rule": sent["up"]["rule"]}
    rows = {row["row"]: row for row in table(small, "Bytes of a client")}
    assert rows["fednl, rules alone"]["up"] == f"{sent['up']['rule']:,.0f}"
    assert rows["paper: FedNL, Qwen2.5-1.5B, rules alone"]["up"] == f"{4 * 28_672:,}"
    assert rows["paper: FedNL, Qwen2.5-1.5B"]["up"] == f"{4 * (28_672 + 5_963_776):,}"


def test_its_results_hold_nothing_of_the_machine(small: Found, out: Path, data: str) -> None:
    for suffix in ("md", "json", "html"):
        text = (small.folder / f"fednl-mmlu-laptop.{suffix}").read_text("utf-8").replace(data, "")
        for trace in (str(out), str(Path.home()), os.uname().nodename, '"seconds"', '"peak_bytes"'):
            assert trace not in text, (suffix, trace)


def test_a_second_call_carries_nothing_out_again(small: Found, out: Path, data: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in out.rglob("rounds.jsonl")}
    again = reproduction(data).laptop(Laptop(out, seeds=1))
    assert again.results == small.results
    assert len(before) == 2 + 3 + 2 + 3
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("rounds.jsonl")}


def test_rates_are_searched_under_a_seed_of_their_own_by_loss_on_few_rows(results: Any, out: Path) -> None:
    (search,) = results["mmlu"]["search"].values()
    assert search["seed"] not in results["mmlu"]["seeds"]
    assert search["chosen"] == float(min(search["losses"], key=search["losses"].__getitem__))
    assert {row["label"]: row["lr"] for row in results["mmlu"]["rows"]} == {
        FEDAVG: search["chosen"],
        FEDNL: search["chosen"],
        UNTRAINED: 0.0,
    }
    assert set(results["synthetic"]["search"]) == {FEDAVG, LOCAL}
    for path in out.glob("*-search/*/experiment.json"):
        assert json.loads(path.read_text())["experiment"]["evaluation"]["rows"] == FEW


def test_all_rows_share_the_ground_the_budget_and_the_layers() -> None:
    for size in (FedNLMMLU.real, FedNLMMLU.twin):
        asked = question(size, 3, dict.fromkeys(size.rows, 1e-3))
        assert asked.reference == FEDAVG
        assert asked.search_seed not in asked.numbers
        assert len({method.budget for method in asked.rows.values()}) == 1
        parts = [method.trainable.model_dump() for method in asked.rows.values()]
        assert len({(part["rank"], part["alpha"], tuple(part["targets"])) for part in parts}) == 1
        assert Experiment.model_validate(ground(size).resolved()).hash == ground(size).hash


def test_a_question_of_the_twin_is_in_the_stratum_of_its_domain() -> None:
    task = ground(TWIN).task
    assert isinstance(task, Domains)
    corpus = task.load(Seeds(seed=0))
    for name, split in corpus.clients.items():
        assert {task.cell(row) for row in [*split.train, *split.held]} == {name}
    assert {task.cell(row) for row in corpus.test} == set(corpus.clients)
    experiment = ground(TWIN)
    assert Experiment.model_validate(experiment.resolved()).task == experiment.task == task


def score(value: float, half: float) -> dict[str, Any]:
    return {"value": value, "low": value - half, "high": value + half}


def test_the_average_over_domains_weighs_them_alike_and_its_interval_is_that_of_a_sum_of_independent_means() -> None:
    strata = [{"scores": {"a": score(0.2, 0.1)}}, {"scores": {"a": score(0.6, 0.2)}}]
    half = math.sqrt(0.1**2 + 0.2**2) / 2
    assert over_domains(strata, "a") == pytest.approx([0.4, 0.4 - half, 0.4 + half])


def spoken(
    values: Mapping[str, tuple[float, float]],
    *,
    seen: bool,
    detectable: float = 0.05,
    letters: str = "",
    gains: tuple[float, ...] = (-0.2,),
) -> list[str]:
    rows = [{"label": label, "low": low, "high": high} for label, (low, high) in values.items()]
    pair = {"ours": FEDAVG, "theirs": FEDNL, "gain": -0.2, "low": -0.3, "high": -0.1, "by_seed": gains, "seen": seen}
    told = {"chance": 0.25, "rows": rows, "pairs": [{**pair, "detectable": detectable}], "n": [40, 40]}
    models = {label: {"one_letter": [letters, letters]} for label in values}
    return said({**told, "models": models, "different_rows": 61})


def test_what_the_intervals_say_is_said_either_way() -> None:
    chance, apart, visible = spoken({FEDAVG: (0.2, 0.3), FEDNL: (0.1, 0.26)}, seen=False)
    assert chance == "Chance (25 %) is within the 95 % interval of 2 of 2 rows: no row is told from guessing."
    assert apart.startswith("None of the 1 pairs of rows is told apart")
    two = round(100 * 2.8016 * math.sqrt(2 * 0.25 * 0.75 / 61))
    assert visible == (
        f"With 40 questions a seed, 61 different ones, two rows that guess independently had to be {two} points apart "
        "to be told apart four times in five, before Holm's correction; by how these rows differ from lora-fedavg, "
        "5.0 points."
    )
    chance, apart, _ = spoken({FEDAVG: (0.3, 0.4), FEDNL: (0.1, 0.2)}, seen=True)
    assert chance.endswith(f"0 of 2 rows; above it: {FEDAVG}; below it: {FEDNL}.")
    assert apart.endswith(f"Told from {FEDAVG}, in points: {FEDNL} +20.0 [+10.0, +30.0].")
    assert "of 1 pairs of rows are told apart over test rows (interval off zero, Holm p at most .05). Told" in apart
    assert (
        ".05), and 1 over seeds, uncorrected. Told"
        in spoken({FEDAVG: (0, 1), FEDNL: (0, 1)}, seen=True, gains=(-0.2, -0.21))[1]
    )
    assert (
        ".05), and 0 over seeds, uncorrected. Told"
        in spoken({FEDAVG: (0, 1), FEDNL: (0, 1)}, seen=True, gains=(-0.2, 0.1))[1]
    )
    _, constant, _, visible = spoken({FEDAVG: (0.3, 0.4)}, seen=False, detectable=0.0, letters="C")
    assert constant == (
        "1 of 1 rows give one letter to all questions of a seed, or to all but one in twenty, and score how often it "
        f"is right: {FEDAVG} C."
    )
    assert visible.endswith("; 1 of 1 rows score every question as lora-fedavg does.")


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(0, 3), st.sets(st.integers(0, 59), max_size=5))
def test_a_model_that_gives_one_letter_to_nearly_all_is_found_and_no_other(
    right: list[int], letter: int, turned: set[int]
) -> None:
    scores = [float(one == letter) for one in right]
    for place in turned & set(range(len(right))):
        scores[place] = 1.0 - scores[place]
    off = {i: sum((one == i) != bool(score) for one, score in zip(right, scores, strict=True)) for i in range(4)}
    found = one_letter(scores, right)
    assert bool(found) == (min(off.values()) <= len(right) / 20)
    assert not found or off["ABCD".index(found)] == min(off.values())


def test_the_papers_table_stands_with_wilsons_intervals_and_its_lead_with_one_of_two_shares() -> None:
    block, lead = beside.mmlu(paper.expected("fednl"))
    assert isinstance(block, Titled)
    rows = {(row[0], row[1]): row for row in block.table.rows}
    assert len(rows) == 13
    centre, spread = (0.5888 + 1.96**2 / 1966) / (1 + 1.96**2 / 983), 1.96 / (1 + 1.96**2 / 983)
    half = spread * math.sqrt(0.5888 * 0.4112 / 983 + 1.96**2 / (4 * 983**2))
    cell = f"58.88 [{100 * (centre - half):.1f}, {100 * (centre + half):.1f}]"
    assert rows["Qwen2.5-1.5B", "FedNL"][-1] == cell
    half = 196 * math.sqrt((0.5888 * 0.4112 + 0.58 * 0.42) / 983)
    assert f"+0.9 [{0.88 - half:+.1f}, {0.88 + half:+.1f}] on Qwen2.5-1.5B" in str(lead)


def test_the_published_files_run_on_small_models_and_are_paired_where_they_answer_the_same_questions(
    data: str, tmp_path: Path
) -> None:
    """Every TOML with its model and data exchanged: what the page of `--scale paper` is made of."""
    runs = {}
    for file in ("mmlu.toml", "mmlu-fedavg.toml", "mmlu-mamba.toml"):
        published = paper.experiment("fednl", file)
        ref = "random:mamba?layers=1&hidden=16&state=4" if "mamba" in file else LLAMA
        task = published.task.model_copy(update={"data": data, "max_tokens": 57 if "mamba" in file else 200})
        swap = {"task": task, "backbone": Backbone(ref=ref), "federation": Federation(rounds=1)}
        runs[file] = experiments.run(published.model_copy(update=swap), tmp_path)
    page = FedNLMMLU().beside(runs)
    held, tested = (one for one in page.blocks[-2:] if isinstance(one, Titled))
    assert [row[0] for row in held.table.rows] == list(runs)
    first = next(iter(runs.values())).rounds[-1].client_metrics
    shares = [one["accuracy"].federated or 0.0 for one in first.values()]
    assert held.table.rows[0][-3] == f"{100 * sum(shares) / 5:.2f}"
    assert held.table.rows[0][-1] == sum(one["accuracy"].n for one in first.values()) == 5
    assert [(row[0], row[1]) for row in tested.table.rows] == [("mmlu.toml", "mmlu-fedavg.toml")]
    ours, theirs = (run.scores(1)["accuracy"] for run in [*runs.values()][:2])
    gain = 100 * sum(a - b for a, b in zip(ours, theirs, strict=True)) / len(ours)
    assert str(tested.table.rows[0][2]).startswith(f"{gain:+.1f} [")


def test_the_help_of_the_command_names_every_reproduction() -> None:
    assert set(re.findall(r"[a-z]+-[a-z]+", REPRODUCED)) == set(REPRODUCTIONS)


def test_it_is_a_reproduction_whose_files_are_the_papers_backbones() -> None:
    assert REPRODUCTIONS["fednl-mmlu"] is FedNLMMLU
    backbones = {paper.experiment("fednl", file).backbone.ref for file in FedNLMMLU.files}
    assert {ref.rpartition("/")[2].lower() for ref in backbones} == {
        "qwen2.5-1.5b",
        "llama-3.2-1b",
        "mamba-1.4b-hf",
    }


def test_numbers_that_train_on_the_published_model_are_those_of_the_arithmetic() -> None:
    found = mmlu_told.published_numbers(paper.expected("fednl"))
    assert found["FedNL"] == {"rules": 28_672, "theta": 28_672 + 5_963_776}
    assert found["FedAvg, all linear layers"] == {"rules": 0, "theta": 36_929_536}


def committed() -> Any:
    return json.loads((RESULTS / "mmlu-laptop.json").read_text("utf-8"))


@pytest.mark.parametrize(("which", "size"), [("mmlu", FedNLMMLU.real), ("synthetic", FedNLMMLU.twin)])
def test_committed_results_are_of_the_experiments_that_the_command_carries_out(which: str, size: Size) -> None:
    found = committed()[which]
    rates = {row["label"]: row["lr"] for row in found["rows"] if row["label"] != UNTRAINED}
    assert list(rates) == list(size.rows)
    assert all(rates[label] == one["chosen"] for label, one in found["search"].items())
    assert set(found["search"]) == (set(size.rows) if size.every_row else {FEDAVG})
    asked = question(size, min(FedNLMMLU.seeds, size.seeds), rates)
    clients = [ClientInfo(name, 1, 1) for name in asked_of(which)]
    assert found["seeds"] == asked.numbers
    assert found["hashes"] == {
        label: [asked.experiment(label, method, seed, clients).hash for seed in asked.numbers]
        for label, method in asked.rows.items()
    }


def asked_of(which: str) -> list[str]:
    return [*DOMAINS] if which == "mmlu" else [f"domain-{i}" for i in range(5)]


def test_the_readme_says_what_the_committed_intervals_say_word_for_word() -> None:
    page = (RESULTS / "mmlu-laptop.md").read_text("utf-8")
    readme = " ".join((RESULTS.parent / "README.md").read_text("utf-8").split())
    for which in ("mmlu", "synthetic"):
        found = committed()[which]
        assert found["said"] == said(found)
        for sentence in found["said"]:
            assert sentence in page
            assert sentence in readme


def test_the_committed_page_is_made_of_the_committed_numbers() -> None:
    page = (RESULTS / "mmlu-laptop.md").read_text("utf-8")
    for which in ("mmlu", "synthetic"):
        found = committed()[which]
        for row in found["rows"]:
            ends = (100 * row[name] for name in ("value", "low", "high"))
            assert "{:.1f} [{:.1f}, {:.1f}]".format(*ends) in page
        assert all(" ".join(hashes) in page for hashes in found["hashes"].values())
