"""Reproductions: the claims in small, the controls against dumb oracles, and pages without a trace of the machine."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

import cotune as ct
from cotune import comparison, resolve
from cotune.cli import main
from cotune.core.errors import Code
from cotune.core.spec import Role
from cotune.experiment import Experiment
from cotune.reproduce import REPRODUCTIONS, Laptop, tables
from cotune.reproduce.ablation import RULES, FedNLAblation
from cotune.reproduce.along import PLAIN
from cotune.reproduce.needle import FEDNL, FROZEN, FULL, LOCAL, WINDOWED, FedNLNeedle, Size, ground, question, recipe
from cotune.reproduce.page import Page, Titled
from cotune.reproduce.repeated import Repeated, repeated
from cotune.reproduce.shuffled import shuffled
from cotune.reproduce.stream import FedNLStream
from cotune.reproduce.streams import context_bytes, read, reopened
from cotune.store import Run, Table

TINY = Size(rounds=1, steps=1, rows=16, held=3, test_rows=4, sweep=())


@pytest.fixture(scope="module")
def needle(tmp_path_factory: pytest.TempPathFactory) -> ct.Comparison:
    """Three rows of `fednl-needle` that have learned nothing."""
    asked = question(TINY, 1, (FEDNL, FULL, LOCAL))
    return comparison.answer(asked, tmp_path_factory.mktemp("needle"))


def test_fednl_recalls_what_a_window_cannot_see(tmp_path: Path) -> None:
    """The claim in small: one seed, 300 client-steps; by 10 points at least, and factors alone stay at guessing."""
    small = Size(rounds=5, steps=15, rows=240, held=1, test_rows=24, gaps=(24, 64), sweep=(), lr=8e-3)
    found = comparison.answer(question(small, 1, (FEDNL, WINDOWED)), tmp_path)
    (pair,) = found.table["pairs"]
    fednl, windowed = found.table["rows"]
    assert pair["gain"] > 0.1
    assert pair["low"] > 0
    assert pair["seen"]
    assert windowed["value"] < 0.1
    for stratum in found.table["strata"]:
        assert tables.between(stratum["pairs"], FEDNL, WINDOWED)["gain"] > 0.1  # type: ignore[index]
    assert fednl["client_steps"] == windowed["client_steps"] == 300


def test_every_question_of_the_setting_is_farther_than_the_window() -> None:
    asked = question(FedNLNeedle.size, 1)
    corpus = asked.ground.task.load(asked.seeds_of(0))
    window = asked.ground.backbone.window or 0
    for row in [*corpus.test, *(row for split in corpus.clients.values() for row in split.train)][:400]:
        words = row["text"].split()
        for place in row["told"]:
            latest = max(i for i, word in enumerate(words[: place - 2]) if word == words[place - 2])
            written = latest + 1  # the place of the value behind its key
            assert words[written] == words[place]
            assert place - 1 - written >= window  # the question stands one before the answer


def test_test_rows_are_of_keys_that_no_client_has() -> None:
    asked = question(FedNLNeedle.size, 1)
    corpus = asked.ground.task.load(asked.seeds_of(0))

    def keys(rows: Any) -> set[str]:
        return {word for row in rows for word in row["text"].split() if word.startswith("k")}

    clients = [keys([*split.train, *split.held]) for split in corpus.clients.values()]
    assert sum(map(len, clients)) == len(set().union(*clients)), "pools are disjoint"
    assert not keys(corpus.test) & set().union(*clients)


def test_sinks_and_window_keep_as_many_bytes_as_the_state(needle: ct.Comparison) -> None:
    asked = question(TINY, 1)
    wide = asked.backbones["lora sinks + window"]
    with reopened(needle.runs[FEDNL][0]) as setup:
        (one,) = context_bytes(setup.backbone.model, [64])
        model: Any = setup.backbone.model
        each = 2 * 4 * model.config.num_hidden_layers * model.config.num_key_value_heads * model.config.head_dim
    assert one.state is not None
    assert wide.window is not None
    kept = wide.window + wide.sinks
    assert one.state == (kept - (asked.ground.backbone.window or 0)) * each


def test_frozen_rules_start_at_random_alike_for_everyone_stay_and_do_not_travel(tmp_path: Path) -> None:
    method = recipe("fednl", TINY, train_rules=False, **{"trainable.rules": {"start": "random"}})
    assert method == question(TINY, 1, (FEDNL, FROZEN)).rows[FROZEN]
    backbone = ct.Backbone(ref="builtin:tiny-recall", window=12)

    def start(seed: int) -> tuple[Any, Any]:
        theta, _, spec = method.trainable.attach(backbone.load("causal", 0, 0), seed, "all")
        return theta, spec

    (first, spec), (again, _), (other, _) = start(1), start(1), start(2)
    rules = [entry.name for entry in spec if entry.role is Role.RULE]
    drawn = torch.cat([first[name].flatten() for name in rules])
    assert all(torch.equal(first[name], again[name]) for name in rules)
    assert not any(torch.equal(first[name], other[name]) for name in rules)
    assert 0.7 < float(drawn.std()) < 1.3
    scope = method.trainable.scope(spec, 1)
    assert not set(rules) & {*scope.train, *scope.up, *scope.down}

    run = ct.run(ground(TINY).model_copy(update={"method": method}), out=tmp_path)
    assert all("rule" not in line.payload_bytes for line in run.ledger)
    with reopened(run) as setup:
        trained = dict(setup.backbone.model.named_parameters())
        assert all(torch.equal(trained[name], setup.start[name]) for name in rules)
        assert not all(torch.equal(trained[name], setup.start[name]) for name in scope.train)


@pytest.mark.parametrize("gate", [0, 1])
def test_a_sigmoid_gate_that_never_opens_or_never_closes_is_refused(gate: int) -> None:
    with pytest.raises(ct.CotuneError, match="a sigmoid never is"):
        resolve.recipe("fednl", **{"trainable.rules": {"gate": "sigmoid", "gate_start": gate}})


def test_the_diagonal_of_shuffled_rules_is_what_the_clients_reported(needle: ct.Comparison) -> None:
    (run,) = needle.runs[LOCAL]
    found = shuffled([run])
    record = run.rounds[-1]
    assert found["clients"] == sorted(record.client_metrics)
    for i, client in enumerate(found["clients"]):
        assert found["held"][i][i] == pytest.approx(record.client_metrics[client]["accuracy"].federated)
    assert sum(found["unseen"]) / len(found["unseen"]) == pytest.approx(record.global_metrics["accuracy"].value)
    cells = [value for i, row in enumerate(found["held"]) for j, value in enumerate(row) if i != j]
    assert found["others"] == pytest.approx(sum(cells) / len(cells))
    assert found["n"] == 3


def test_the_table_has_a_dash_where_full_attention_does_not_reach(needle: ct.Comparison) -> None:
    shown = {row[0]: row for row in tables.scores(needle.table).table.rows}
    assert shown[FULL][3] == "–"
    assert all(cell != "–" for cell in shown[FEDNL])
    gains = {row[0]: row for row in tables.gains(needle.table, FEDNL).table.rows}
    assert gains[FULL][3] == "–"


def test_a_verdict_is_given_either_way() -> None:
    pair = {"ours": "a", "theirs": "b", "gain": 0.2, "low": 0.1, "high": 0.3, "seen": True, "by_seed": [0.1, 0.3]}
    unsure = (
        "yes on these seeds, and others might say otherwise, +20.0 [+10.0, +30.0] points, over seeds [-107.1, +147.1]"
    )
    assert tables.verdict("It helps", pair) == f"It helps: {unsure}, in 2 of 2 seeds."
    sure = {**pair, "by_seed": [0.19, 0.2, 0.21]}
    assert tables.verdict("It helps", sure).startswith(
        "It helps: yes, +20.0 [+10.0, +30.0] points, over seeds [+17.5, "
    )
    turned = tables.between([sure], "b", "a")
    assert tables.verdict("It helps", turned).startswith("It helps: no, the other way round, -20.0 [-30.0, -10.0] poi")
    assert tables.verdict("It helps", {**pair, "seen": False}).startswith("It helps: not seen, +20.0")
    assert tables.verdict("It helps", None) == "It helps: not measured."


def test_the_interval_over_seeds_is_students() -> None:
    assert tables.over_seeds([0.3]) is None
    low, high = tables.over_seeds([0.1, 0.2, 0.3, 0.4, 0.5]) or (0, 0)
    assert (low, high) == pytest.approx((0.3 - 0.19632, 0.3 + 0.19632), abs=1e-4)  # 2.7764 · 0.15811 / √5
    many = tables.over_seeds([float(value) for value in range(21)]) or (0, 0)
    assert many[1] - 10 == pytest.approx(2.0860 * math.sqrt(38.5 / 21), abs=1e-3)


@given(seed=st.integers(0, 50), keys=st.integers(1, 64), gap=st.integers(0, 6))
def test_a_dumb_reader_knows_every_repeated_value_but_the_first(seed: int, keys: int, gap: int) -> None:
    words, told = repeated(seed, 300, range(keys), gap)
    assert len(words) >= 300
    held: dict[str, str] = {}
    asked = [i + 2 for i, word in enumerate(words) if word.startswith("k") and words[i + 1] == "?"]
    assert told == asked
    for i, word in enumerate(words):
        if word.startswith("k"):
            value = words[i + (2 if words[i + 1] == "?" else 1)]
            assert held.setdefault(word, value) == value
    assert set(held) <= {f"k{key}" for key in range(keys)}


def test_rows_of_a_stream_are_of_a_clients_own_keys_and_tests_of_nobodys() -> None:
    task = Repeated(clients=2, rows=6, held=2, test_rows=4, pairs=5, questions=1, events=7, gap=3, test_gaps=(3,))
    corpus = task.load(ct.Seeds())
    groups = [[*split.train, *split.held] for split in corpus.clients.values()]
    pools = [{w for row in rows for w in row["text"].split() if w.startswith("k")} for rows in (*groups, corpus.test)]
    assert sum(map(len, pools)) == len(set().union(*pools))
    assert all(len(row["told"]) == 7 for rows in groups for row in rows)
    experiment = ground(TINY).model_copy(update={"task": task})
    assert Experiment.model_validate(experiment.resolved()).task == task


def test_reading_by_bins_is_one_pass_and_is_what_a_session_says(needle: ct.Comparison) -> None:
    ids = torch.randint(5, 140, (2, 50), generator=torch.Generator().manual_seed(0))
    with reopened(needle.runs[FEDNL][0]) as setup:
        model: Any = setup.backbone.model
        ours = read(model, ids, width=16)
        theirs = model.memory_session().losses(ids, segment=7)
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits
        whole = functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    assert ours.nll[:, 0].isnan().all()
    assert torch.allclose(ours.nll[:, 1:], theirs[:, 1:], atol=1e-4)
    assert torch.allclose(ours.nll[:, 1:], whole.view(2, 49), atol=1e-4)
    assert ours.kept_bytes[0][0] == ours.kept_bytes[-1][0] > 0, "the state does not grow"
    assert [layer.layer for layer in ours.layers] == [0, 1]
    assert all(norm > 0 for layer in ours.layers for norm in layer.state_norm)


def test_a_stream_reproduction_leaves_its_page_and_a_memory_that_the_report_shows(tmp_path: Path) -> None:
    class Small(FedNLStream):
        size, prose_rounds, tokens, streams, lengths, events = TINY, 1, 1200, 2, (64, 128), 4

    found = Small().laptop(Laptop(tmp_path, seeds=1))
    run = Run(found.folder)
    assert run.memory is not None
    assert run.memory.stream is not None
    assert [series.name for series in run.memory.stream.series] == [FEDNL, PLAIN, WINDOWED]
    assert [one.state for one in run.memory.bytes] == [run.memory.bytes[0].state] * 2
    from cotune import report

    assert "Memory" in report.write([run.folder]).read_text()
    results = json.loads((found.folder / "fednl-stream-laptop.json").read_text())
    for kind in ("repeated", "overwritten", "prose"):
        series = results["streams"][kind]["series"]
        assert set(series) == {FEDNL, PLAIN, WINDOWED}
        assert math.isfinite(series[FEDNL]["change"]["mean"])
    _check_portable(found.folder, "fednl-stream-laptop", tmp_path)


def test_a_needle_reproduction_leaves_pages_without_a_trace_of_the_machine(tmp_path: Path) -> None:
    class Small(FedNLNeedle):
        size = TINY.model_copy(update={"sweep": (8e-3,)})

    said: list[str] = []
    found = Small().laptop(Laptop(tmp_path, seeds=1, say=said.append))
    results = json.loads((found.folder / "fednl-needle-laptop.json").read_text())
    assert len(results["hashes"]) == 7
    assert set(results["conflict"][FEDNL]) == {f"{a}_{b}" for a in ("agreement", "cosine") for b in ("rule", "lora")}
    text = (found.folder / "fednl-needle-laptop.md").read_text()
    for said_there in ("FedSSI", "Every setting that differs", "backbone.window", "A federated rule beats a local one"):
        assert said_there in text
    assert any("fednl · seed 1000 · learning rate 0.008" in line for line in said)
    _check_portable(found.folder, "fednl-needle-laptop", tmp_path)


def _check_portable(folder: Path, name: str, out: Path) -> None:
    for suffix in ("md", "json", "html"):
        text = (folder / f"{name}.{suffix}").read_text()
        for trace in (str(out), str(Path.home()), os.uname().nodename, '"seconds"', '"peak_bytes"'):
            assert trace not in text, (suffix, trace)


def test_every_rule_of_the_ablation_is_a_method_of_the_same_budget() -> None:
    from cotune.reproduce.ablation import question as ablation

    asked = ablation(FedNLAblation.size, 1)
    assert asked.reference == "plain"
    assert len({method.model_dump_json() for method in asked.rows.values()}) == len(asked.rows) == len(RULES) + 2
    assert asked.rows["centre"].trainable == resolve.recipe("fednl").trainable
    assert asked.rows["plain"].trainable != resolve.recipe("fednl").trainable


def test_a_page_is_printed_as_markdown_and_as_html() -> None:
    page = Page("A <b>", ["One & two.", Titled("Rows", Table(("row", "x|y"), [["a|b", 0.5], ["c", None]]))])
    assert page.markdown().splitlines()[:8] == [
        "# A <b>",
        "",
        "One & two.",
        "",
        "**Rows**",
        "",
        "| row | x&#124;y |",
        "| :--- | ---: |",
    ]
    assert "| a&#124;b | 0.5 |" in page.markdown()
    assert "| c | – |" in page.markdown()
    html = page.html()
    assert "<h1>A &lt;b&gt;</h1>" in html
    assert "<b>" not in html
    assert "0.5" in page.text()


def test_every_reproduction_says_what_it_is() -> None:
    for name, reproduction in REPRODUCTIONS.items():
        assert reproduction.name == name
        assert len(reproduction.summary()) > 20


def test_an_unknown_name_or_scale_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "fednl-needel"]) == 2
    assert "did you mean 'fednl-needle'?" in capsys.readouterr().err
    assert main(["reproduce", "fednl-needle", "--scale", "huge"]) == 2
    assert "laptop or paper" in capsys.readouterr().err


def test_offline_the_published_setting_says_what_it_needs_and_then_why_not(tmp_path: Path) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    script = "import sys; from cotune.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", script, "reproduce", "fednl-stream", "--scale", "paper", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=120)
    assert "1.24 G parameters" in done.stdout
    assert "of one thread here, so " in done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error[{Code.MODEL}]") or line.startswith(f"error[{Code.DATA}]")
    assert done.returncode == 3
