"""The page about low-rank pairs: there when there are some, and its numbers are those of the files."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
from parsed import Page, page
from written import HOSTILE, write_run

from cotune.core.record import LayerSubspace, RoundRecord, SubspaceRecord
from cotune.report import shown
from cotune.report.pages.subspace import subspace
from cotune.store import Run

PLOTS = ("alignment", "spaces", "sizes", "spectra")
FLOORED = ("basis_overlap", "basis_overlap_squared", "client_global_cosine", "cancellation", "cancellation_increments")
PLAIN = ("pairwise_cosine", "norm_b", "norm_a", "norm_products", "norm_effective", "aggregation_gap", "truncation_tail")
LAYERS = [f"model.layers.{i}.self_attn.{name}_proj" for i in (0, 1, 10) for name in "qv"]


def layer(name: str, draw: random.Random, clients: int = 2) -> LayerSubspace:
    return LayerSubspace(
        layer=name,
        overlap=tuple(draw.random() for _ in range(clients)),
        cosine=tuple(draw.uniform(-1, 1) for _ in range(clients)),
        cancellation=draw.random(),
        gap=draw.random(),
        spectrum=(3.0, 2.0, draw.random()),
        tail=0.25,
    )


def with_pairs(one: RoundRecord) -> RoundRecord:
    """A record as a low-rank run leaves it; nothing but names where the round was the last."""
    draw = random.Random(one.round)
    told = {name: draw.random() for name in (*FLOORED, *(f"{name}_floor" for name in FLOORED), *PLAIN)}
    record = SubspaceRecord(clients=one.cohort.accepted, layers=tuple(layer(name, draw) for name in LAYERS))
    diagnostics = {**one.diagnostics, **told, "clients_subspace": 2.0}
    return one.model_copy(update={"diagnostics": diagnostics, "subspace": record})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "toy", change=with_pairs)


@pytest.fixture(scope="module")
def written(folder: Path) -> Page:
    return page(folder)


def traces(of: Page, plot: str, by: str = "r0") -> list[dict[str, Any]]:
    return list(of.data["plots"][plot]["figures"][by]["data"])


def test_a_run_without_pairs_has_no_such_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "toy")
    assert subspace(shown([folder])) is None
    assert "page-subspace" not in page(folder).html


def test_the_page_stands_before_cost_with_every_plot_and_its_tables(written: Page) -> None:
    tabs = [a["id"] for _, a in written.tags if a.get("role") == "tab"]
    assert tabs == ["tab-overview", "tab-convergence", "tab-clients", "tab-subspace", "tab-cost"]
    own = written.html.partition('id="page-subspace"')[2].partition('id="page-cost"')[0]
    for plot in PLOTS:
        after = own.partition(f'id="plot-{plot}"')[2].partition("</figure>")[0]
        assert "<table>" in after, plot


def test_every_number_is_a_line_by_round_with_its_floor_dotted_beside_it(written: Page, folder: Path) -> None:
    records = Run(folder).rounds
    bound = {one["bind"]["y"]: one for plot in ("alignment", "sizes") for one in traces(written, plot)}
    assert set(bound) == {f"r0/subspace/{n}" for n in (*FLOORED, *(f"{n}_floor" for n in FLOORED), *PLAIN)}
    for key, drawn in bound.items():
        name = key.rpartition("/")[2]
        assert written.column(key) == [record.diagnostics[name] for record in records]
        assert (drawn["line"]["dash"] == "dot") == name.endswith("_floor"), name
        assert drawn["name"].endswith(", floor") == name.endswith("_floor")
    for name in FLOORED:
        line, floor = bound[f"r0/subspace/{name}"], bound[f"r0/subspace/{name}_floor"]
        assert (line["line"]["color"], line["when"]) == (floor["line"]["color"], floor["when"])
    for plot, groups in (("alignment", ["overlap", "cosine", "cancellation"]), ("sizes", ["norms", "lost"])):
        assert [option["value"] for option in written.data["choices"][plot]] == groups
    table = written.table("How the clients' pairs lie to each other, toy")
    assert table.column("Basis overlap, overlap") == [record.diagnostics["basis_overlap"] for record in records]
    floors = [record.diagnostics["cancellation_increments_floor"] for record in records]
    assert table.column("Cancellation ratio, of increments, floor") == floors
    table = written.table("How long they are, and what a sum of them loses, toy")
    assert table.column("What is lost, aggregation gap") == [r.diagnostics["aggregation_gap"] for r in records]


def test_floors_stay_out_of_the_list_of_metrics(written: Page) -> None:
    listed = [option["value"] for option in written.data["choices"]["metric"]]
    assert "basis_overlap" in listed
    assert not [name for name in listed if name.endswith("_floor")]


def test_a_map_has_a_row_for_each_layer_and_a_place_for_each_client(written: Page, folder: Path) -> None:
    last = Run(folder).rounds[-1].subspace
    assert last is not None
    assert written.column("r0/layer/clients") == list(last.clients)
    assert written.column("r0/layer/names") == [f"{i}.self_attn.{name}_proj" for i in (0, 1, 10) for name in "qv"]
    for name, caption in (("overlap", "Basis overlap of toy"), ("cosine", "Cosine to the mean product of toy")):
        cells = [list(getattr(one, name)) for one in last.layers]
        assert written.column(f"r0/cell/{name}") == cells
        table = written.table(f"{caption} by layer and client, round 3", f"run=r0&cell={name}")
        assert table.texts("Layer") == LAYERS
        for i, client in enumerate(last.clients):
            assert table.column(client) == [row[i] for row in cells]


def test_a_spectrum_is_shares_of_energy_that_add_up_with_the_tail(written: Page, folder: Path) -> None:
    last = Run(folder).rounds[-1].subspace
    assert last is not None
    assert written.column("r0/spectrum/direction") == ["1", "2", "3", "beyond"]
    for row, one in zip(written.column("r0/spectrum/share"), last.layers, strict=True):
        assert sum(row) == pytest.approx(1.0)
        assert row[3] == one.tail == 0.25
        assert row[0] / row[1] == pytest.approx(9 / 4)
    table = written.table("Singular values of the mean product of toy, round 3")
    assert table.column("σ 3") == [one.spectrum[2] for one in last.layers]
    assert table.column("Aggregation gap") == [one.gap for one in last.layers]
    assert table.column("Energy beyond") == [0.25] * 6


def test_every_column_that_is_bound_is_there(written: Page) -> None:
    choices = {name: [option["value"] for option in options] for name, options in written.data["choices"].items()}
    for plot in PLOTS:
        for figure in written.data["plots"][plot]["figures"].values():
            for trace in figure["data"]:
                for key in trace["bind"].values():
                    for value in choices["cell"]:
                        assert key.replace("{cell}", value) in written.data["columns"], key


def test_a_round_without_layers_leaves_the_last_one_that_had_them(tmp_path: Path) -> None:
    def lost(one: RoundRecord) -> RoundRecord:
        return one if one.round == 3 else with_pairs(one)

    found = page(write_run(tmp_path / "toy", change=lost))
    assert found.column("r0/subspace/cancellation")[2] is None
    assert found.table("Singular values of the mean product of toy, round 2")


def test_rows_with_and_without_pairs_and_of_two_ranks_stand_side_by_side(folder: Path, tmp_path: Path) -> None:
    def bare(one: RoundRecord) -> RoundRecord:
        single = LayerSubspace(layer="w", overlap=(None,), cosine=(None,), spectrum=(0.0, 0.0))
        other = LayerSubspace(layer="v", overlap=(0.5,), cosine=(1.0,), spectrum=(1.0,), tail=0.0)
        return one.model_copy(update={"subspace": SubspaceRecord(clients=("a",), layers=(single, other))})

    plain, few = write_run(tmp_path / "plain", name="plain"), write_run(tmp_path / "few", name="few", change=bare)
    found = page(folder, plain, few)
    assert set(found.data["plots"]["spaces"]["figures"]) == {"r0", "r2"}
    assert found.column("r2/spectrum/share") == [[None, None, None], [1.0, None, 0.0]]
    assert found.column("r2/cell/overlap") == [[None], [0.5]]
    assert traces(found, "alignment", "r2") == []


def test_hostile_names_and_numbers_that_are_none_do_no_harm(tmp_path: Path) -> None:
    def odd(one: RoundRecord) -> RoundRecord:
        draw = random.Random(0)
        layers = tuple(layer(name, draw, len(HOSTILE)) for name in HOSTILE)
        told = {"basis_overlap": math.nan, "cancellation": math.inf}
        record = SubspaceRecord(clients=HOSTILE, layers=layers)
        return one.model_copy(update={"subspace": record, "diagnostics": told})

    found = page(write_run(tmp_path / "toy", change=odd))
    assert len(found.scripts) == 3
    assert not any(name == "img" or "onload" in attributes for name, attributes in found.tags)
    assert found.column("r0/subspace/basis_overlap") == [None] * 3
    assert len(set(found.column("r0/layer/names"))) == len(HOSTILE)


def test_real_runs_with_pairs_have_the_page(real: Path) -> None:
    made = subspace(shown(sorted(path.parent for path in real.glob("*/status.json"))))
    assert made is not None
    assert [block.id for block in made.blocks if not isinstance(block, str)] == list(PLOTS)
