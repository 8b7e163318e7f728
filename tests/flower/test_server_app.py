"""The two apps of a project, from its files alone: what `flwr run` starts, in this process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from grid import Fault, LocalGrid
from tiny import experiment

import cotune as ct
from cotune import experiment as experiments
from cotune.cli.toml import dump
from cotune.core.errors import Code, CotuneError
from cotune.flower import make_client_app
from cotune.flower.records import STEP
from cotune.flower.server_app import serve
from cotune.store import lock

PARTS = [{"partition-id": place, "num-partitions": 2} for place in range(2)]


def project(one: ct.Experiment, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "experiment.toml").write_text(dump(one.resolved()), "utf-8")
    return folder


def grid(folder: Path, config: Mapping[str, Any], state: Path) -> LocalGrid:
    nodes = [{**part, "state": str(state / str(place))} for place, part in enumerate(PARTS)]
    return LocalGrid(make_client_app(folder), nodes, config)


def test_a_project_without_workers_comes_to_the_theta_of_one_process(tmp_path: Path) -> None:
    one = experiment("scaffold")
    folder = project(one, tmp_path / "project")
    config = {"experiment": "experiment.toml", "nodes": 2, "wait": 30, "out": str(tmp_path / "there")}
    run = serve(grid(folder, config, tmp_path / "state"), folder, config)
    assert run.theta_sha256 == experiments.run(one, tmp_path / "here").theta_sha256
    assert (run.folder / "report.html").exists()
    assert (run.folder / "adapter").is_dir()


def test_what_the_run_config_says_is_on_top_on_both_sides(tmp_path: Path) -> None:
    folder = project(experiment(), tmp_path / "project")
    config = {
        "nodes": 2,
        "wait": 30,
        "out": str(tmp_path / "runs"),
        "num-server-rounds": 1,
        "method.optimizer.lr": 0.01,
    }
    run = serve(grid(folder, config, tmp_path / "state"), folder, config)
    assert len(run.rounds) == 1
    assert run.about["experiment"]["method"]["optimizer"]["lr"] == 0.01


def test_a_run_that_was_cut_off_goes_on_to_the_same_bits_with_its_clients_state(tmp_path: Path) -> None:
    one = experiment("scaffold", federation={"rounds": 3, "patience": 1}, evaluation__which="none")
    folder = project(one, tmp_path / "project")
    config = {"nodes": 2, "wait": 30, "out": str(tmp_path / "there")}
    first = grid(folder, config, tmp_path / "state")
    for node in first.ids:  # every node is gone in round 2
        first.faults[node] = Fault(
            error=5,
            on=lambda m: m.metadata.message_type == STEP and m.content.config_records["about"]["round"] == 2,
        )
    with pytest.raises(CotuneError) as caught:
        serve(first, folder, config)
    assert caught.value.code is Code.QUORUM
    again = grid(folder, config, tmp_path / "state")  # another run of Flower's, on nodes that were started anew
    run = serve(again, folder, config)
    asked = {m.content.config_records["about"]["round"] for m in again.pushed if m.metadata.message_type == STEP}
    assert asked == {3}  # round 2 was played: nobody counted in it
    assert run.status == "finished"
    assert [record.round for record in run.rounds] == [1, 2, 3]


def test_a_server_waits_for_the_one_before_it_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cotune.flower.server_app.PATIENCE", 0.2)
    one = experiment(federation={"rounds": 1})
    folder = project(one, tmp_path / "project")
    config = {"nodes": 2, "out": str(tmp_path / "runs")}
    with lock(one.folder(tmp_path / "runs")), pytest.raises(CotuneError) as caught:
        serve(grid(folder, config, tmp_path / "state"), folder, config)
    assert caught.value.code is Code.LOCK
    assert "error[E_LOCK]" in capsys.readouterr().out


def test_a_node_that_does_not_say_whose_rows_it_has_does_not_take_part(tmp_path: Path) -> None:
    folder = project(experiment(), tmp_path / "project")
    config = {"nodes": 2, "wait": 0.5, "out": str(tmp_path / "runs")}
    half = LocalGrid(make_client_app(folder), [{**PARTS[0], "state": str(tmp_path / "s")}, {}], config)
    with pytest.raises(CotuneError, match="whose rows it has") as caught:
        serve(half, folder, config)
    assert "got 1, expected 2" in str(caught.value)


def test_sites_with_rows_of_their_own_come_to_the_theta_of_all_rows_in_one_place(tmp_path: Path) -> None:
    """Neither the server nor another site has them; the server scores on rows of its own."""
    places = {name: tmp_path / "all" / f"{name}.jsonl" for name in ("bern", "chur")} | {"server": tmp_path / "s.jsonl"}
    (tmp_path / "all").mkdir()
    for name, path in places.items():
        lines = [{"text": f"oak {i % 4} of {name}", "label": i % 2} for i in range(16)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    one = experiment(
        task__data=str(tmp_path / "all"), task__test=0, task__classes=2, federation={"rounds": 2}, evaluation__rows=None
    )
    folder = project(one, tmp_path / "project")
    config = {"nodes": 2, "wait": 30, "out": str(tmp_path / "there"), "data": str(places["server"])}
    state = str(tmp_path / "state")
    nodes = [{"client": name, "data": str(places[name]), "state": state} for name in ("chur", "bern")]
    there = serve(LocalGrid(make_client_app(folder), nodes, config), folder, config)
    here = experiments.run(one, tmp_path / "here")
    assert there.theta_sha256 == here.theta_sha256
    assert there.rounds[-1].global_metrics["accuracy"].n == 16
    assert set(there.about["clients"]) == {"bern", "chur"}
    assert here.rounds[-1].client_metrics == there.rounds[-1].client_metrics
