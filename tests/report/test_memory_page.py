"""The page about memory: there when there is something to show, and its numbers are those of the files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from parsed import Page, page
from pydantic import ValidationError
from remembered import DEPTHS, GAPS, LENGTHS, probed, remember, share, with_memory
from written import HOSTILE, write_run

from cotune.core.errors import CotuneError
from cotune.core.record import MemoryRecord, RoundRecord
from cotune.report import shown
from cotune.report.pages.memory import memory
from cotune.store import Run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return remember(write_run(tmp_path_factory.mktemp("runs") / "toy", change=with_memory), probed())


@pytest.fixture(scope="module")
def written(folder: Path) -> Page:
    return page(folder)


def traces(of: Page, plot: str, by: str = "r0") -> list[dict[str, Any]]:
    return list(of.data["plots"][plot]["figures"][by]["data"])


def test_a_run_without_memory_has_no_such_page(tmp_path: Path) -> None:
    def ordinary(one: RoundRecord) -> RoundRecord:
        more = {"agreement_lora": 0.5, "cosine_lora": 0.1, "update_lora": 1.0, "clients_lora": 2.0}
        return one.model_copy(update={"diagnostics": {**one.diagnostics, **more}})

    folder = write_run(tmp_path / "toy", change=ordinary)
    assert memory(shown([folder])) is None
    found = page(folder)
    assert "page-memory" not in found.html
    assert "agreement_lora" in [option["value"] for option in found.data["choices"]["metric"]]


@pytest.mark.parametrize("what", ["cells", "gate/0", "agreement_rule", "memory.json"])
def test_anything_of_a_memory_brings_the_page_with_what_there_is(what: str, tmp_path: Path) -> None:
    def only(one: RoundRecord) -> RoundRecord:
        if what == "cells":
            return one.model_copy(update={"cells": {"accuracy": {"gap 8": share(0.5)}}})
        return one.model_copy(update={"diagnostics": {what: 0.5}} if what != "memory.json" else {})

    folder = write_run(tmp_path / "toy", change=only)
    if what == "memory.json":
        remember(folder, {"version": 1, "layers": [{"layer": 0, "gate": [0.1]}]})
    made = memory(shown([folder]))
    assert made is not None
    plots = {"cells": "gaps", "gate/0": "gates", "agreement_rule": "conflict", "memory.json": "layers"}
    assert [block.id for block in made.blocks if not isinstance(block, str)] == [plots[what]]


def test_the_page_stands_before_cost_with_every_plot_and_its_tables(written: Page) -> None:
    tabs = [a["id"] for _, a in written.tags if a.get("role") == "tab"]
    assert tabs == ["tab-overview", "tab-convergence", "tab-clients", "tab-memory", "tab-cost"]
    own = written.html.partition('id="page-memory"')[2].partition('id="page-cost"')[0]
    for plot in ("places", "gaps", "gates", "conflict", "along", "beginning", "layers", "context"):
        after = own.partition(f'id="plot-{plot}"')[2].partition("</figure>")[0]
        assert "<table>" in after, plot


def test_a_map_has_a_place_for_every_depth_and_length_of_the_last_round(written: Page, folder: Path) -> None:
    last = Run(folder).rounds[-1].cells["accuracy"]
    assert written.column("r0/place/accuracy/depth") == list(DEPTHS)
    assert written.column("r0/place/accuracy/length") == ["512", "1,024", "16,384"]
    for i, depth in enumerate(DEPTHS):
        for j, length in enumerate(LENGTHS):
            one = last.get(f"depth {depth} · length {length}")
            assert written.column("r0/place/accuracy/value")[i][j] == (one.value if one else None)
            assert written.column("r0/place/accuracy/text")[i][j] == (f"{one.value:.2f}<br>n = 20" if one else "")
            note = written.column("r0/place/accuracy/note")[i][j]
            assert (one is None and note == "") or note.endswith(", n = 20, chance 0.2500")
    table = written.table("by length and depth, round 3", "run=r0&cell_metric=accuracy")
    assert table.column("Length") == [512.0] * 3 + [1024.0] * 3 + [16384.0] * 2
    cells = [last[f"depth {d} · length {n}"] for n in LENGTHS for d in DEPTHS if (d, n) != ("0.7", 16384)]
    for head, field in (("Accuracy", "value"), ("Low", "low"), ("High", "high"), ("n", "n"), ("Chance", "chance")):
        assert table.column(head) == [getattr(cell, field) for cell in cells]


def test_a_gap_is_a_point_with_its_interval_and_chance_is_a_line(written: Page, folder: Path) -> None:
    last = Run(folder).rounds[-1].cells["accuracy"]
    gaps = [last[f"gap {gap}"] for gap in GAPS]
    assert written.column("r0/gap/accuracy/place") == [gap + 1 for gap in GAPS]
    for end in ("value", "low", "high", "chance"):
        assert written.column(f"r0/gap/accuracy/{end}") == [getattr(one, end) for one in gaps]
    chance, curve = traces(written, "gaps", "")
    assert chance["across"] == ["r0/gap/{cell_metric}/chance"]
    assert curve["interval"] == ["r0/gap/{cell_metric}/low", "r0/gap/{cell_metric}/high"]
    axis = written.data["plots"]["gaps"]["figures"][""]["layout"]["xaxis"]
    assert (axis["tickvals"], axis["ticktext"]) == ([1, 17, 65, 257], ["0", "16", "64", "256"])
    table = written.table("Accuracy by gap")
    assert (table.column("Gap"), table.column("n"), table.column("Round")) == (list(GAPS), [30.0] * 4, [3.0] * 4)
    others = written.table("Other kinds of test rows")
    assert (others.texts("Rows"), others.column("n")) == (["other rows"], [7.0])


def test_gates_are_lines_by_round_and_stay_out_of_the_list_of_metrics(written: Page, folder: Path) -> None:
    records = Run(folder).rounds
    for i in range(10):
        assert written.column(f"r0/gate/{i}") == [record.diagnostics[f"gate/{i}"] for record in records]
        assert written.table("Gates of toy").column(f"Layer {i}") == written.column(f"r0/gate/{i}")
    styles = {(str(one["line"]["color"]), one["line"]["dash"]) for one in traces(written, "gates")}
    assert len(styles) == 10
    assert not [o for o in written.data["choices"]["metric"] if o["value"].startswith("gate/")]


def test_conflict_is_by_role_with_the_floor_of_as_many_clients(written: Page, folder: Path) -> None:
    records = Run(folder).rounds
    table = written.table("Updates of the clients of toy")
    for role in ("rule", "lora"):
        for name, head in (("agreement", "Agreement"), ("cosine", "Mean cosine")):
            values = [record.diagnostics[f"{name}_{role}"] for record in records]
            assert written.column(f"r0/conflict/{name}/{role}") == values
            assert table.column(f"{head}, {role}") == values
        assert table.column(f"1/√K, {role}") == [1 / math.sqrt(4 + record.round) for record in records]
        assert table.column(f"K, {role}") == [4.0 + record.round for record in records]
    names = [one["name"] for one in traces(written, "conflict")]
    assert names == ["rule", "lora", "1/√K"], "one floor for roles of as many clients"
    assert traces(written, "conflict")[-1]["when"] == {"conflict": "agreement"}


def test_loss_along_the_stream_is_relative_in_the_plot_and_absolute_in_the_table(written: Page) -> None:
    table = written.table("Loss per token along the stream, toy on 1 stream of 8,192 tokens of a synthetic text")
    for i, one in enumerate(probed()["stream"]["series"]):
        means = [bin_["mean"] for bin_ in one["equal"]]
        rows = slice(8 * i, 8 * i + 8)
        change = [mean / means[0] - 1 for mean in means]
        assert written.column(f"r0/along/{i}/tokens") == list(range(1024, 8193, 1024))
        assert written.column(f"r0/along/{i}/relative") == change
        assert written.column(f"r0/along/{i}/relative/low") == [b["low"] / means[0] - 1 for b in one["equal"]]
        assert (table.column("Loss")[rows], table.column("Relative to the first")[rows]) == (means, change)
        assert table.column("Peak bytes")[rows] == (one["peak_bytes"] or [None] * 8)
        assert table.column("n")[rows] == [1024.0] * 8
    assert [option["value"] for option in written.data["choices"]["along"]] == ["relative", "peak"]
    assert [one["name"] for one in traces(written, "along")] == ["memory", "&lt;b&gt;window&lt;/b&gt;"]


def test_the_first_tokens_are_on_a_logarithmic_axis_from_1(written: Page) -> None:
    first = probed()["stream"]["series"][0]["doubling"]
    assert written.column("r0/beginning/0/tokens") == [2**i - 1 for i in range(1, 12)]
    assert written.column("r0/beginning/0/mean") == [bin_["mean"] for bin_ in first]
    assert written.column("r0/beginning/0/low")[0] is None
    assert written.data["plots"]["beginning"]["figures"]["r0"]["layout"]["xaxis"]["type"] == "log"
    table = written.table("Loss of the first tokens, toy")
    assert table.column("Last token")[:11] == [float(bin_["last"]) for bin_ in first]


def test_heads_are_points_and_their_mean_a_line(written: Page) -> None:
    assert written.column("r0/layer/gate/x") == [0, 0, 0, 2, 2, 2, 5, 5, 5]
    assert written.column("r0/layer/gate/mean/x") == [0, 2, 5]
    assert written.column("r0/layer/gate/mean/y") == pytest.approx([0.5 / 3, 0.7 / 3, 1.0 / 3])
    assert written.column("r0/layer/state/mean/y") == pytest.approx([1.25, 2.25, 3.75])
    table = written.table("Gates and states of toy")
    assert table.column("State norm, by key-value head") == [0.0, 2.5, None, 2.0, 2.5, None, 5.0, 2.5, None]
    assert table.column("Clipped in the layer") == [0, 0, 0, 2, 2, 2, 5, 5, 5]


def test_bytes_are_those_of_window_and_memory_together_against_full_attention(written: Page) -> None:
    tokens = [1024, 4096, 16384]
    assert written.column("r0/context/tokens") == tokens
    assert written.column("r0/context/kept") == [4096 + 1024 * 64] * 3
    assert written.column("r0/context/full") == [64 * count for count in tokens]
    layout = written.data["plots"]["context"]["figures"]["r0"]["layout"]
    assert layout["xaxis"]["type"] == layout["yaxis"]["type"] == "log"
    table = written.table("Bytes kept for a context, toy")
    assert table.column("Full / together") == [64 * count / (4096 + 1024 * 64) for count in tokens]


def test_every_column_that_is_bound_is_there(written: Page) -> None:
    choices = {name: [option["value"] for option in options] for name, options in written.data["choices"].items()}
    optional = {"r0/along/1/peak/low", "r0/along/1/peak/high"}
    for plot in ("places", "gaps", "gates", "conflict", "along", "beginning", "layers", "context"):
        for figure in written.data["plots"][plot]["figures"].values():
            for trace in figure["data"]:
                for key in (*trace.get("bind", {}).values(), *trace.get("across", ())):
                    name = next((name for name in choices if f"{{{name}}}" in key), None)
                    for value in choices[name] if name else [""]:
                        column = key.replace(f"{{{name}}}", value)
                        assert column in written.data["columns"] or column in optional, column


def test_runs_with_and_without_memory_stand_side_by_side(folder: Path, tmp_path: Path) -> None:
    found = page(folder, write_run(tmp_path / "plain", name="plain"))
    assert traces(found, "places", "r0")
    assert "r1" not in found.data["plots"]["places"]["figures"]
    assert not any("Gates of plain" in one.caption for one in found.tables)


def test_a_bare_and_a_partial_file_are_enough(tmp_path: Path) -> None:
    bare = remember(write_run(tmp_path / "bare"), {})
    assert Run(bare).memory == MemoryRecord()
    assert memory(shown([bare])) is None, "there is nothing to show"
    gaps = [{"name": "m", "equal": [{"first": 0, "last": 9, "n": 0}, {"first": 10, "last": 19, "n": 4, "mean": 2.0}]}]
    partial = remember(
        write_run(tmp_path / "partial"),
        {"stream": {"series": gaps}, "layers": [{"layer": 3}], "bytes": [{"tokens": 0}, {"tokens": 64, "full": 8}]},
    )
    found = page(partial)
    assert found.column("r0/along/0/relative") == [None, None]
    assert found.column("r0/context/kept") == [None, None]
    assert found.column("r0/layer/gate/mean/y") == []


def test_no_run_has_a_memory_unless_it_was_probed(tmp_path: Path) -> None:
    assert Run(write_run(tmp_path / "toy")).memory is None


@pytest.mark.parametrize("wrong", [{"version": 2}, {"layers": [{"gate": [0.1]}]}, {"unheard": 1}, [1]])
def test_a_file_of_another_version_is_one_line(wrong: object, tmp_path: Path) -> None:
    folder = remember(write_run(tmp_path / "toy"), wrong)
    with pytest.raises(ValidationError):
        _ = Run(folder).memory
    with pytest.raises(CotuneError, match=r"error\[E_CKPT\] .* toy") as caught:
        shown([folder])
    assert "\n" not in str(caught.value)


def test_a_damaged_file_names_its_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "toy")
    (folder / "memory.json").write_text("{")
    with pytest.raises(CotuneError, match=r"E_CKPT.*toy"):
        shown([folder])


def test_hostile_names_and_numbers_that_are_none_do_no_harm(tmp_path: Path) -> None:
    wild = [{"name": name, "equal": [{"first": 0, "last": 9, "n": 1, "mean": math.nan}]} for name in HOSTILE]
    about = {"stream": {"source": HOSTILE[0], "series": wild}, "layers": [{"layer": 0, "gate": [math.inf]}]}

    def odd(one: RoundRecord) -> RoundRecord:
        cells = {name: share(0.5) for name in HOSTILE}
        return one.model_copy(update={"cells": {"accuracy": cells}, "diagnostics": {"gate/<b>": math.nan}})

    found = page(remember(write_run(tmp_path / "toy", change=odd), about))
    assert len(found.scripts) == 3
    assert not any(name == "img" or "onload" in attributes for name, attributes in found.tags)
    assert found.column("r0/gate/0") == [None] * 3
    assert found.column("r0/layer/gate/y") == [None]
    assert found.column("r0/along/0/relative") == [None]
