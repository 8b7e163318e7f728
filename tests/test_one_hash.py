"""One experiment, one hash: whatever the order, the company, and however often it was killed."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import Wrapped, experiment, play, theta

import cotune as ct
from cotune.core.contracts import OnReply, Outcome
from cotune.core.errors import Code, CotuneError
from cotune.store import Checkpoints, Lines, Run

# What a row needs beside its recipe.
ROWS: Mapping[str, Mapping[str, Any]] = {
    "lora-fedavg": {},
    "scaffold": {},
    "fednl": {"backbone__ref": "random:llama?layers=1&hidden=16&heads=2", "method__share": "memory"},
}

# (moment, its how-manieth occurrence): from before the selection of a round to after its record, in rounds 1 to 3.
KILLS = (
    ("round", 1),
    ("selected", 2),
    ("sent", 3),
    ("reply", 1),
    ("reply", 4),
    ("aggregated", 2),
    ("checkpoint-writing", 5),
    ("checkpoint-written", 2),
    ("checkpoint-renamed", 2),
    ("recorded", 2),
)


class Reordered(Wrapped):
    """Clients run in another order, and their replies arrive in a third."""

    def exchange(self, downs: Mapping[str, bytes], deadline: float | None, min_ok: int, on_reply: OnReply) -> Outcome:
        arrived: list[tuple[str, bytes | CotuneError]] = []
        for client in sorted(downs, reverse=True):
            self.inner.exchange(
                {client: downs[client]}, deadline, min_ok, lambda name, reply: arrived.append((name, reply))
            )
        random.Random(len(downs)).shuffle(arrived)
        for client, reply in arrived:
            on_reply(client, reply)
        return Outcome(tuple(name for name, _ in arrived))


def seeds(recipe: str) -> ct.Experiment:
    return experiment(recipe, federation={"rounds": 3, "cohort": 3}, **ROWS[recipe])


@pytest.mark.parametrize("recipe", ROWS)
def test_the_same_experiment_gives_the_same_hash_whatever_the_order_and_the_company(
    recipe: str, tmp_path: Path
) -> None:
    whole = seeds(recipe)
    first = theta(whole, tmp_path / "first")
    play(experiment("fedavg", seeds__seed=9), tmp_path / "unrelated")
    torch.manual_seed(123)
    torch.rand(7)
    assert theta(whole, tmp_path / "again") == first
    assert theta(whole, tmp_path / "reordered", make_engine=Reordered) == first
    assert theta(seeds(recipe).model_copy(update={"seeds": ct.Seeds(seed=1)}), tmp_path / "other seed") != first


@pytest.mark.parametrize("recipe", ROWS)
@pytest.mark.parametrize(("moment", "time"), KILLS)
def test_a_killed_run_resumes_to_the_same_bits_and_records(
    recipe: str, moment: str, time: int, tmp_path: Path, uninterrupted: Mapping[str, Run]
) -> None:
    whole = seeds(recipe)
    child = os.fork()
    if child == 0:
        left = time

        def kill(name: str, about: Mapping[str, Any]) -> None:
            nonlocal left
            del about
            left -= name == moment
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        play(whole, tmp_path, watch=kill)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the run ended before it was killed"
    assert os.WTERMSIG(status) == signal.SIGKILL

    if Checkpoints(whole.folder(tmp_path) / "checkpoints").rounds():
        with pytest.raises(CotuneError, match="add --resume") as caught:
            play(whole, tmp_path)
        assert caught.value.code is Code.CHECKPOINT
    run, expected = play(whole, tmp_path, resume=True), uninterrupted[recipe]
    assert run.theta_sha256 == expected.theta_sha256
    assert timeless(run) == timeless(expected)
    assert run.ledger == expected.ledger
    assert not list(run.folder.glob(".reply-*"))


def test_a_run_killed_in_every_round_still_arrives(tmp_path: Path, uninterrupted: Mapping[str, Run]) -> None:
    whole = seeds("scaffold")
    for round_ in (1, 2, 3):

        def stop(name: str, about: Mapping[str, Any], at: int = round_) -> None:
            if name == "aggregated" and about["round"] == at:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            play(whole, tmp_path, watch=stop, resume=True)
        assert Run(whole.folder(tmp_path)).status == "interrupted"
    assert play(whole, tmp_path, resume=True).theta_sha256 == uninterrupted["scaffold"].theta_sha256


def test_a_finished_run_is_reused_and_says_so_and_fresh_repeats_it(tmp_path: Path) -> None:
    whole, moments = seeds("lora-fedavg"), []
    first = play(whole, tmp_path)
    before = (first.folder / "rounds.jsonl").stat().st_mtime_ns
    again = play(whole, tmp_path, watch=lambda name, about: moments.append(name))
    assert moments == ["reused"]
    assert (again.folder / "rounds.jsonl").stat().st_mtime_ns == before
    fresh = play(whole, tmp_path, fresh=True)
    assert fresh.theta_sha256 == again.theta_sha256
    assert (fresh.folder / "rounds.jsonl").stat().st_mtime_ns != before


def test_changed_data_is_refused_on_resume(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"text": "row {i}", "label": {i % 2}}}\n' for i in range(40)))
    whole = experiment(task={"kind": "classify", "data": str(rows)})

    def stop(name: str, about: Mapping[str, Any]) -> None:
        if name == "recorded":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(whole, tmp_path, watch=stop)
    rows.write_text("".join(f'{{"text": "another row {i}", "label": {i % 2}}}\n' for i in range(40)))
    with pytest.raises(CotuneError, match="changed since the checkpoint"):
        play(whole, tmp_path, resume=True)


def test_a_damaged_checkpoint_is_passed_over_and_the_run_still_arrives(
    tmp_path: Path, uninterrupted: Mapping[str, Run]
) -> None:
    whole, damaged = seeds("scaffold"), []

    def stop(name: str, about: Mapping[str, Any]) -> None:
        if name == "aggregated" and about["round"] == 3:  # the clients have moved on from round 2 by now
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(whole, tmp_path, watch=stop)
    path = whole.folder(tmp_path) / "checkpoints" / "round-00002" / "theta.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    run = play(whole, tmp_path, resume=True, watch=lambda name, about: damaged.append((name, dict(about))))
    assert [about["round"] for name, about in damaged if name == "checkpoint-damaged"] == [2]
    assert run.theta_sha256 == uninterrupted["scaffold"].theta_sha256


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Run]:
    folder = tmp_path_factory.mktemp("uninterrupted")
    return {recipe: play(seeds(recipe), folder) for recipe in ROWS}


def timeless(run: Run) -> list[dict[str, Any]]:
    """The records without what differs between any two runs."""
    lines = Lines(run.folder / "rounds.jsonl").read()
    return [{name: value for name, value in line.items() if name not in ("seconds", "peak_bytes")} for line in lines]
