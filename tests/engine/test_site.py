"""A federation whose rows are on several machines: each process has its own, and theta is what it would be with all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tiny import build, load_tree

import cotune as ct
from cotune import experiment as experiments
from cotune.core.contracts import ClientInfo, OnReply, Outcome
from cotune.core.errors import Code, CotuneError
from cotune.engine.seat import Seat, differing, facts
from cotune.engine.service import seated
from cotune.engine.site import Site, scored
from cotune.link import Roster
from cotune.resolve import load
from cotune.setup import Setup

CLIENTS = ("bern", "chur", "genf")


def rows(folder: Path) -> Path:
    """Three files of rows, one a client, and one more for the server."""
    (folder / "all").mkdir(parents=True)
    words = ("salt", "rain", "tin", "oak", "moss")
    for place, name in enumerate((*CLIENTS, "server")):
        lines = [
            {"text": f"{words[(i + place) % 5]} {words[i % 3]} number {i} of {name}", "label": (i + place) % 2}
            for i in range(14 + 3 * place)
        ]
        parent = folder if name == "server" else folder / "all"
        (parent / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return folder


def experiment(folder: Path, recipe: str = "lora-fedavg", **sets: object) -> ct.Experiment:
    flat = {
        "task.kind": "classify",
        "task.data": str(folder / "all"),
        "task.test": 0,
        "task.classes": 2,
        "method.budget": {"steps": 2, "batch": 4},
        "federation": {"rounds": 3},
        "evaluation.which": "cohort",
    }
    return build(load_tree(recipe, {**flat, **{name.replace("__", "."): value for name, value in sets.items()}}))


class Apart:
    """Every client in a seat of its own, which has its rows and no others."""

    def __init__(self, experiment: ct.Experiment, folder: Path, state: Path) -> None:
        task, blueprint = experiment.task, experiment.blueprint()
        assert isinstance(task, ct.task.Classify)
        self.seats: dict[str, Seat] = {}
        for name in CLIENTS:
            site = Site(client=name, data=str(folder / "all" / f"{name}.jsonl"))
            self.seats[name] = seated(blueprint, site, state)
        self.infos = [ClientInfo(n, *seat.who()["clients"][n]) for n, seat in self.seats.items()]

    def __call__(self, setup: Setup, folder: Path) -> Apart:
        del folder
        for seat in self.seats.values():
            assert differing(facts(setup) | {"data": ""}, facts(seat.setup) | {"data": ""}, "a seat") is None
        return self

    def clients(self) -> Sequence[ClientInfo]:
        return self.infos

    def exchange(self, downs: Mapping[str, bytes], deadline: float | None, min_ok: int, on_reply: OnReply) -> Outcome:
        del deadline, min_ok
        most = max(info.rows for info in self.infos)
        for name, message in downs.items():
            on_reply(name, self.seats[name].step(name, message, Roster(len(self.infos), most)))
        return Outcome(tuple(downs))

    def close(self) -> None:
        pass


@pytest.mark.parametrize("recipe", ["lora-fedavg", "scaffold", "fedkseed", "flora"])
def test_theta_is_the_same_when_every_machine_has_its_own_rows_alone(recipe: str, tmp_path: Path) -> None:
    folder = rows(tmp_path / "rows")
    together = experiment(folder, recipe)
    if recipe == "fedkseed":  # its replies come down again, so that clients must know how many they were
        together = experiment(folder, recipe, backbone__ref="random:bert?layers=2&hidden=16&heads=2")
    here = experiments.run(together, tmp_path / "here")
    corpus = scored(together.task, str(folder / "server.jsonl"), together.seeds)
    apart = Apart(together, folder, tmp_path / "state")
    there = experiments.run(together, tmp_path / "there", make_engine=apart, corpus=corpus)
    assert there.theta_sha256 == here.theta_sha256
    assert [r.uplink_bytes for r in there.rounds] == [r.uplink_bytes for r in here.rounds]
    assert there.rounds[-1].global_metrics["accuracy"].n == 23  # every row of the server's, where the other has none
    assert {name: cell["rows"] for name, cell in there.about["clients"].items()} == {
        name: cell["rows"] for name, cell in here.about["clients"].items()
    }


def test_a_server_never_sees_a_row_of_a_client(tmp_path: Path) -> None:
    folder = rows(tmp_path / "rows")
    one = experiment(folder)
    corpus = scored(one.task, str(folder / "server.jsonl"), one.seeds)
    setup = one.blueprint().build(corpus=corpus).told([ClientInfo("bern", 9, 2), ClientInfo("chur", 4)])
    assert [(info.id, info.rows, info.held) for info in setup.clients] == [("bern", 9, 2), ("chur", 4, 0)]
    assert len(setup.corpus.clients["bern"].train[2:5]) == 3
    assert len(setup.encoded("chur")[0].examples) == 4
    with pytest.raises(CotuneError, match="elsewhere") as caught:
        setup.corpus.clients["bern"].train[0]
    assert caught.value.code is Code.DATA
    assert "labels" not in setup.corpus.facts
    assert "manifest" not in setup.corpus.facts


def test_what_an_engine_tells_changes_nothing_where_all_rows_are_here(tmp_path: Path) -> None:
    setup = experiment(rows(tmp_path / "rows")).blueprint().build()
    assert setup.told(setup.clients) is setup


def test_the_clients_of_one_folder_are_divided_among_places() -> None:
    names = ["d", "a", "c", "b", "e"]
    parts = [Site(place=place, places=2).own(names) for place in range(2)]
    assert parts == [("a", "c", "e"), ("b", "d")]


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"data": "./x.jsonl"}, "need the name"),
        ({"place": 2, "places": 2}, "no such place"),
    ],
)
def test_a_site_that_is_none_is_refused(fields: Mapping[str, object], what: str) -> None:
    with pytest.raises(CotuneError, match=what) as caught:
        Site(**fields)  # type: ignore[arg-type]  # given as a user would
    assert caught.value.code is Code.CONFIG


def test_a_site_without_a_client_of_the_federation_is_refused() -> None:
    with pytest.raises(CotuneError, match="no client for this site") as caught:
        Site(client="nobody").own(CLIENTS)
    assert caught.value.code is Code.CONFIG
    assert "bern, chur, genf" in str(caught.value)


def test_a_task_that_draws_its_rows_takes_none_of_a_site() -> None:
    with pytest.raises(CotuneError, match="cannot bring its own rows") as caught:
        Site(client="bern", data="./x.jsonl").corpus(ct.task.Needle(), ct.Seeds())
    assert caught.value.code is Code.CONFIG


def test_other_classes_at_a_site_are_found_before_training(tmp_path: Path) -> None:
    folder = rows(tmp_path / "rows")
    lines = [{"text": f"moss {i}", "label": ("no", "yes")[i % 2]} for i in range(8)]
    (folder / "named.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    one = experiment(folder)
    setup = one.blueprint().build()
    seat = seated(one.blueprint(), Site(client="bern", data=str(folder / "named.jsonl")), tmp_path / "state")
    wrong = differing(facts(setup) | {"data": ""}, facts(seat.setup) | {"data": ""}, "bern")
    assert wrong is not None
    assert wrong.code is Code.LABEL
    assert "task.classes" in str(wrong)


def test_a_seat_answers_for_its_own_clients_alone(tmp_path: Path) -> None:
    seat = seated(experiment(rows(tmp_path / "rows")).blueprint(), Site(place=1, places=3), tmp_path / "state")
    assert list(seat.who()["clients"]) == ["chur"]
    answer = seat.step("bern", b"", Roster())
    assert isinstance(answer, CotuneError)
    assert answer.code is Code.RUN


def test_a_seat_encodes_the_rows_of_the_clients_it_is_asked_about_and_of_nobody_else(tmp_path: Path) -> None:
    model, data = "random:llama?layers=1&hidden=16&heads=2", "text:synth:prose?clients=3&rows=24"
    one = load("lora-fedavg", backbone=model, task=data)  # where what a row comes to is known once it is encoded
    setup = one.blueprint().build()
    seat = Seat(setup, tmp_path)
    assert setup._known == {}
    seat.step("nobody", b"", Roster())
    assert setup._known == {}
    assert set(Seat(setup, tmp_path, {min(setup.corpus.clients)}).who()["clients"]) == {*setup._known}
