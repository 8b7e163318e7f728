"""The simulation of many clients: what it says, and that what it times is a run as any other."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cotune import wire
from cotune.bench import Simulate
from cotune.bench.benchmark import measured
from cotune.bench.crowd import ANY, Prepared, Shape, cost, crowd
from cotune.core.contracts import OnReply, Outcome
from cotune.core.message import Envelope
from cotune.engine import InlineEngine
from cotune.experiment import run
from cotune.setup import Setup

TINY = Shape(backbone="random:llama?layers=2&hidden=16&heads=2", rank=4)


@pytest.fixture(scope="module")
def figures() -> Mapping[str, Mapping[str, Any]]:
    return {figure["name"]: figure for figure in measured("simulate", quick=True)["figures"]}


def test_every_row_has_its_time_and_what_it_sends_and_keeps(figures: Mapping[str, Mapping[str, Any]]) -> None:
    said = ("time a client", "messages a client", "a round in ledger.jsonl a client", "a round in checkpoints a client")
    for row in ("lora-fedavg", "fedspzo", "subspace-reg", "flora"):
        for what in said:
            figure = figures[f"{row}, 5 clients, {what} · against 2"]
            assert figure["ours"] > 0
            assert figure["rival"] > 0
    assert all(figure["met"] is None for figure in figures.values())
    goals = {name.partition(",")[0] for name, figure in figures.items() if figure["goal"] == 0.5}
    assert goals == {"lora-fedavg", "fedspzo", "subspace-reg"}, "whose replies are not sent to everyone"
    assert Simulate().clients == (10, 100, 1000, 10_000)


def test_only_the_row_that_sends_all_factors_to_everyone_sends_a_client_more(
    figures: Mapping[str, Mapping[str, Any]],
) -> None:
    for row in ("lora-fedavg", "fedspzo", "subspace-reg"):
        figure = figures[f"{row}, 5 clients, messages a client · against 2"]
        assert figure["ours"] == figure["rival"]
    assert figures["flora, 5 clients, messages a client · against 2"]["ratio"] < 0.8


@pytest.mark.parametrize("row", ["lora-fedavg", "fedspzo"])
def test_prepared_replies_are_such_as_clients_send_and_all_of_them_count(row: str, tmp_path: Path) -> None:
    crossed: dict[str, list[Envelope]] = {"prepared": [], "trained": []}

    class Heard(InlineEngine):
        def exchange(
            self, downs: Mapping[str, bytes], deadline: float | None, min_ok: int, on_reply: OnReply
        ) -> Outcome:
            def heard(client: str, reply: Any) -> None:
                crossed["trained"].append(wire.decode(reply, ANY))
                on_reply(client, reply)

            return super().exchange(downs, deadline, min_ok, heard)

    class Ready(Prepared):
        def _reply(self, client: str, message: bytes) -> bytes:
            reply = super()._reply(client, message)
            crossed["prepared"].append(wire.decode(reply, ANY))
            return reply

    experiment = crowd(row, TINY, 4, 2)
    run(experiment, tmp_path / "trained", make_engine=Heard)
    left = run(experiment, tmp_path / "prepared", make_engine=lambda setup, folder: Ready(setup, folder, {}))
    for record in left.rounds:
        assert len(record.cohort.accepted) == len(record.weights) == 4
        assert record.cohort.dropped == {}
    mine, theirs = (
        [(reply.header.client, reply.header.rows, wire.layouts(reply)) for reply in replies[:4]]
        for replies in (crossed["prepared"], crossed["trained"])
    )
    assert mine == theirs
    values = [[t for part in reply.parts.values() for t in part.values()] for reply in crossed["prepared"][:4]]
    assert all(not values[0][i].equal(values[1][i]) for i in range(len(values[0]))), "no two clients send the same"


def test_the_time_of_replies_is_not_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Prepared._reply

    def slow(self: Prepared, client: str, message: bytes) -> bytes:
        until = time.process_time() + 0.2
        while time.process_time() < until:
            pass
        return true(self, client, message)

    monkeypatch.setattr(Prepared, "_reply", slow)
    one = cost("lora-fedavg", TINY, 3, 2)
    assert len(one.seconds) == 1
    assert 0 < one.seconds[0] < 0.5 < 3 * 0.2


def test_no_client_scores_and_all_have_as_many_rows() -> None:
    setup: Setup = crowd("lora-fedavg", TINY, 7, 2).blueprint().build()
    assert {info.rows for info in setup.clients} == {2}
    assert len(setup.clients) == 7
    assert setup.evaluation.which == "none"
