"""What a run says while it runs; on a terminal with a bar; and nothing of it can stop the run."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from cotune.cli.progress import Bar, Lines, data_lines, round_lines, watcher
from cotune.core.record import Cohort, Metric, RoundRecord

EVIL = "bo\n\x1b[31m../x"
RECORD = RoundRecord(
    round=2,
    cohort=Cohort(
        selected=("ada", EVIL),
        accepted=("ada",),
        dropped={"E_LATE": (EVIL,)},
        reasons={EVIL: "error[E_LATE] no reply in time"},
    ),
    global_metrics={"accuracy": Metric(value=0.75, n=4, low=0.3, high=0.95, chance=0.5)},
    train_loss=0.5,
    uplink_bytes=2000,
    downlink_bytes=1000,
)
MOMENTS: list[tuple[str, Mapping[str, Any]]] = [
    ("loading", {"backbone": "random:bert", "folder": "runs/x"}),
    ("round", {"round": 2, "rounds": 4}),
    ("selected", {"round": 2, "cohort": ["ada", EVIL]}),
    ("sent", {"kind": "train", "clients": ["ada", EVIL]}),
    ("reply", {"client": "ada", "error": None}),
    ("reply", {"client": EVIL, "error": "error[E_LATE] no reply in time"}),
    ("scoring", {"round": 2, "rows": 4}),
    ("recorded", {"record": RECORD}),
]


def test_a_round_is_one_line_and_a_dropped_client_one_more() -> None:
    first, dropped = round_lines(RECORD, 4)
    assert first.startswith(
        "round 2/4 · train loss 0.5000 · accuracy 0.7500 · 1 of 2 clients · up 2.0 kB · down 1.0 kB"
    )
    assert dropped.endswith("· error[E_LATE] no reply in time")


def test_letters_that_the_model_would_hardly_write_are_doubted() -> None:
    def lines(mass: float) -> list[str]:
        metrics = {**RECORD.global_metrics, "letter_mass": Metric(value=mass, n=9, low=None, high=None)}
        return round_lines(RECORD.model_copy(update={"global_metrics": metrics}), 4)

    assert "the letters have 2 % of the probability: the model would mostly write something else" in lines(0.02)
    assert not any("probability" in line for line in lines(0.1))


def test_an_abandoned_round_says_why() -> None:
    record = RECORD.model_copy(update={"abandoned": "1 of 2 replies, 2 needed"})
    assert "abandoned, theta stays · 1 of 2 replies, 2 needed" in round_lines(record, 4)


def test_what_was_left_out_of_the_data_is_said() -> None:
    facts = {
        "data": "./a.csv",
        "used": 9,
        "test": {"rows": 2},
        "skipped": {"empty": 1, "missing": 2},
        "empty_clients": [f"client-{i}\n" for i in range(7)],
        "duplicates": {"test": 1},
    }
    lines = data_lines(facts, 8)
    assert lines[0] == "data ./a.csv · 8 clients · 9 rows · 2 of them for testing"
    assert lines[1] == "skipped 3 rows · 1 empty, 2 missing"
    assert lines[2].startswith("7 clients have no rows")
    assert lines[2].endswith("client-4, …")
    assert lines[3] == "1 test rows have a text that a client trains on"
    assert data_lines({}, 1) == ["data · 1 clients"]


def test_names_of_clients_cannot_write_on_the_terminal() -> None:
    said: list[str] = []
    watch = Lines(said.append)
    for name, about in MOMENTS:
        watch(name, about)
    assert said[0] == "loading random:bert · runs/x"
    assert "dropped bo" in said[-1]
    assert all(line.isprintable() for line in said)


def test_a_bar_shows_the_round_the_clients_and_the_figures() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=160, highlight=False)
    with watcher(console, quiet=False) as watch:
        assert isinstance(watch, Bar)
        for name, about in MOMENTS:
            watch(name, about)
        watch.progress.refresh()
        assert watch.progress.tasks[0].completed == 2
        assert watch.progress.tasks[0].total == 4
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    for text in ("round 2/4", "accuracy 0.7500 · 3.0 kB", "dropped bo"):
        assert text in shown
    assert "\x1b[31m../x" not in shown


def test_a_share_of_a_round_is_a_share_of_the_bar() -> None:
    bar = Bar(Console(file=io.StringIO(), force_terminal=True))
    for name, about in MOMENTS[:5]:
        bar(name, about)
    assert bar.progress.tasks[0].completed == 1.5
    assert bar.progress.tasks[0].description == "round 2/4 1 of 2 clients"


def test_no_color_means_no_colour() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=160, _environ={"NO_COLOR": "1"})
    with watcher(console, quiet=False) as watch:
        for name, about in MOMENTS:
            watch(name, about)
    assert isinstance(console.file, io.StringIO)
    assert not re.search(r"\x1b\[[0-9;]*[349][0-9]m", console.file.getvalue())


def test_quiet_says_nothing_and_no_terminal_means_plain_lines(capsys: Any) -> None:
    for quiet in (True, False):
        watch = watcher(Console(file=io.StringIO()), quiet=quiet)
        watch(*MOMENTS[0])
        assert capsys.readouterr().out == ("" if quiet else "loading random:bert · runs/x\n")


def test_watching_never_raises_into_the_run() -> None:
    def broken(_line: str) -> None:
        raise BrokenPipeError

    for watch in (Lines(broken), Bar(Console(file=io.StringIO(), force_terminal=True))):
        for name in ("loading", "loaded", "round", "selected", "reply", "recorded", "resumed", "unheard of"):
            watch(name, {})
    Lines(broken)(*MOMENTS[0])
