"""Clients in other processes: the same bits, and what becomes of a process costs its client and nobody else."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from tiny import Wrapped, experiment, play, theta
from troubled import KIND, SECRET
from typed import BACKBONE, typing

import cotune as ct
from cotune.core.contracts import Engine, OnReply, Outcome, Penalty
from cotune.core.errors import Code, CotuneError
from cotune.engine import PoolEngine
from cotune.engine.crew import Crew
from cotune.engine.pool import Turns
from cotune.setup import Setup
from cotune.store import Lines, Run

TWO_LAYERS = "random:bert?layers=2&hidden=16&heads=2"  # something to cut
PATIENT = 600.0  # seconds: with a deadline, every process is there before the first client is asked
ROWS: Mapping[str, Mapping[str, Any]] = {
    "scaffold": {},  # private state, on disk between rounds
    "fedspzo": {"backbone__ref": TWO_LAYERS},  # scalars
}
Make = Callable[[Setup, Path], Engine]


def row(recipe: str, **sets: Any) -> ct.Experiment:
    federation = {"rounds": 3, "cohort": 3, "deadline": PATIENT}
    return experiment(recipe, **{"federation": federation, **ROWS[recipe], **sets})


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    """Processes for all tests here: each costs three seconds to start."""
    crew = Crew()
    yield crew
    crew.close()


class Backwards(PoolEngine):
    """Delivers replies in the order opposite to that of the clients."""

    def exchange(self, downs: Mapping[str, bytes], deadline: float | None, min_ok: int, on_reply: OnReply) -> Outcome:
        kept: dict[str, bytes | CotuneError] = {}
        outcome = super().exchange(downs, deadline, min_ok, kept.__setitem__)
        for client in sorted(kept, reverse=True):
            on_reply(client, kept[client])
        return outcome


def pool(crew: Crew, workers: int, kind: type[PoolEngine] = PoolEngine) -> Make:
    return lambda setup, folder: kind(setup, folder, workers, crew=crew)


def timeless(run: Run) -> list[dict[str, Any]]:
    """The records without what differs between any two runs."""
    lines = Lines(run.folder / "rounds.jsonl").read()
    return [{name: value for name, value in line.items() if name not in ("seconds", "peak_bytes")} for line in lines]


def gone(pid: int, seconds: float = 10.0) -> bool:
    """Whether a process has ended by then; who ended and was not asked after has ended."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize(
    ("recipe", "engine"),
    [
        ("scaffold", (2, PoolEngine)),
        ("scaffold", (1, PoolEngine)),
        ("scaffold", (2, Backwards)),
        ("fedspzo", (2, Backwards)),
    ],
)
def test_theta_and_every_record_are_those_of_one_process_whatever_the_workers_and_the_order(
    engine: tuple[int, type[PoolEngine]], recipe: str, crew: Crew, alone: Callable[[str], Run], tmp_path: Path
) -> None:
    run, other = play(row(recipe), tmp_path, make_engine=pool(crew, *engine)), alone(recipe)
    assert run.theta_sha256 == other.theta_sha256
    assert timeless(run) == timeless(other)
    assert messages(run) == messages(other)


def messages(run: Run) -> list[tuple[int, str, str, str, int]]:
    """Every message, in no order of arrival."""
    return sorted((line.round, line.client, line.direction, line.purpose, line.total_bytes) for line in run.ledger)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """A row's run in this process, made once."""
    return functools.cache(lambda recipe: play(row(recipe), tmp_path_factory.mktemp(recipe)))


def harmed(folder: Path, harm: Mapping[str, tuple[int, str]], **federation: Any) -> ct.Experiment:
    folder.mkdir(exist_ok=True)
    return experiment(
        "scaffold",
        method__penalties=[{"kind": KIND, "folder": str(folder), "harm": dict(harm)}],
        federation={"rounds": 3, **federation},
        evaluation={"which": "none"},
    )


def without(harm: Mapping[str, tuple[int, str]]) -> type[Wrapped]:
    """An engine in which the clients of a round do not take part, one exchange a round."""

    class Without(Wrapped):
        rounds = 0

        def exchange(
            self, downs: Mapping[str, bytes], deadline: float | None, min_ok: int, on_reply: OnReply
        ) -> Outcome:
            self.rounds += 1
            missing = {client for client, (round_, _) in harm.items() if round_ == self.rounds}
            for client in missing:
                on_reply(client, CotuneError(Code.ENGINE, "gone"))
            left = {client: message for client, message in downs.items() if client not in missing}
            return super().exchange(left, deadline, min_ok, on_reply)

    return Without


def test_who_is_killed_fails_or_is_late_costs_its_client_is_replaced_and_the_rest_commit(
    crew: Crew, tmp_path: Path
) -> None:
    harm = {"domain-2": (1, "raise"), "domain-3": (2, "sleep"), "domain-1": (3, "kill")}
    whole, pids = harmed(tmp_path / "marks", harm, deadline=5.0), []

    class Seen(PoolEngine):
        def exchange(
            self, downs: Mapping[str, bytes], deadline: float | None, min_ok: int, on_reply: OnReply
        ) -> Outcome:
            outcome = super().exchange(downs, deadline, min_ok, on_reply)
            pids.append({*self.pids})
            return outcome

    run = play(whole, tmp_path / "pool", make_engine=pool(crew, 2, Seen))
    dropped = [record.cohort.dropped for record in run.rounds]
    assert dropped == [{"E_CLIENT": ("domain-2",)}, {"E_LATE": ("domain-3",)}, {"E_ENGINE": ("domain-1",)}]
    assert [len(record.cohort.accepted) for record in run.rounds] == [3, 3, 3]
    reasons = [next(iter(record.cohort.reasons.values())) for record in run.rounds]
    assert "ValueError at troubled.py:" in reasons[0]
    assert "SIGKILL" in reasons[2]
    assert not any(SECRET.encode() in path.read_bytes() for path in run.folder.rglob("*") if path.is_file())

    # Who was late or killed is gone, and another is there in its place.
    first, second, third = pids
    for mark, there in (("domain-3-sleep", second), ("domain-1-kill", third)):
        ended = int((tmp_path / "marks" / mark).read_text())
        assert gone(ended)
        assert ended not in there
    assert len(first) == len(second) == len(third)
    assert first != second != third

    # To the bit as if that client had not been there in that round.
    assert run.theta_sha256 == theta(whole, tmp_path / "inline", make_engine=without(harm))


def test_a_killed_command_leaves_no_process_and_goes_on_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The server is killed while its worker is in the middle of a step that would take ten minutes."""
    monkeypatch.chdir(tmp_path)
    type_, mark, before = typing(capfd), tmp_path / "domain-1-sleep", children()
    part = f'[{{kind="{KIND}", folder="{tmp_path}", harm={{domain-1=[2, "sleep"]}}}}]'
    words = ["run", "fedprox", "--backbone", BACKBONE, "--task", "synth:sentiment?clients=4&rows=96", "--rounds", "3"]
    for one in (f"method.penalties={part}", "method.budget={steps=2,batch=4}", "evaluation.rows=8"):
        words += ["--set", one]
    pooled = ["--engine", "pool", "--workers", "1"]
    child = os.fork()
    if child == 0:
        threading.Thread(target=send_when, args=(mark, signal.SIGKILL), daemon=True).start()
        type_(*words, *pooled)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the run ended before it was killed"
    assert gone(int(mark.read_text()))

    resumed, fresh = type_(*words, *pooled, "--resume"), type_(*words, "--out", "elsewhere")
    assert resumed.status == fresh.status == 0
    digest = [[line for line in one.out.splitlines() if line.startswith("theta_sha256")] for one in (resumed, fresh)]
    assert digest[0] == digest[1] != []
    assert children() == before


def children() -> set[int]:
    """The workers that this process has."""
    return {child.pid for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline())}


def send_when(path: Path, number: signal.Signals) -> None:
    """Send this process a signal once the file has a word in it."""
    while not (path.exists() and path.read_text()):
        time.sleep(0.01)
    os.kill(os.getpid(), number)


def test_a_worker_that_loads_other_data_or_none_ends_the_run_with_the_reason(crew: Crew, tmp_path: Path) -> None:
    def rows(word: str) -> str:
        return "".join(f'{{"text": "{word} {i}", "label": {i % 2}}}\n' for i in range(40))

    data = tmp_path / "rows.jsonl"
    whole = experiment(task={"kind": "classify", "data": str(data)})
    for change, what in ((lambda: data.write_text(rows("other")), "something else"), (data.unlink, str(data))):
        data.write_text(rows("row"))

        def make(setup: Setup, folder: Path, change: Callable[[], object] = change) -> PoolEngine:
            change()
            return PoolEngine(setup, folder, 1, crew=crew)

        with pytest.raises(CotuneError, match=what) as caught:
            play(whole, tmp_path / "runs", fresh=True, make_engine=make)
        assert caught.value.code is Code.DATA
        assert Run(whole.folder(tmp_path / "runs")).status == "failed"


def test_a_part_that_no_other_process_can_find_is_refused_in_words(crew: Crew, tmp_path: Path) -> None:
    class Here(Penalty):
        kind = "here"

        def __call__(self, tensors: Any, view: Any) -> Any:
            return next(iter(tensors.values())).sum() * 0

    whole = experiment()
    whole = whole.model_copy(update={"method": whole.method.model_copy(update={"penalties": (Here(),)})})
    with pytest.raises(CotuneError, match="cannot go to another process") as caught:
        play(whole, tmp_path, make_engine=pool(crew, 1))
    assert caught.value.code is Code.CONFIG


def test_a_client_goes_where_it_was_and_an_idle_process_takes_anybody() -> None:
    turns = Turns(["a", "b", "c", "d", "e"], {"a": 1, "c": 0, "d": 1})
    assert [turns.take(0), turns.take(1), turns.take(0)] == ["b", "a", "c"]
    assert [turns.take(1), turns.take(0), turns.waiting] == ["d", "e", False]
    others = Turns(["a", "b", "c"], dict.fromkeys("abc", 1))
    assert [others.take(0), others.rest(), others.take(0), others.take(1)] == ["a", ["b", "c"], None, None]


def test_an_interrupted_run_ends_who_is_at_work_at_once(crew: Crew, tmp_path: Path) -> None:
    mark, whole = tmp_path / "domain-2-sleep", harmed(tmp_path, {"domain-2": (2, "sleep")})
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs tests in the background ignores it
    try:
        threading.Thread(target=send_when, args=(mark, signal.SIGINT), daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            play(whole, tmp_path / "pool", make_engine=pool(crew, 1))
    finally:
        signal.signal(signal.SIGINT, before)
    assert int(mark.read_text()) not in children()
    assert Run(whole.folder(tmp_path / "pool")).status == "interrupted"
    assert play(whole, tmp_path / "pool", resume=True).theta_sha256 == theta(whole, tmp_path / "inline")
