"""A run as it happens: plain lines anywhere, and a bar below them on a terminal. Nothing here can stop a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from cotune.core.errors import one_line
from cotune.core.record import Metric, RoundRecord, doubt


class Lines(AbstractContextManager["Lines"]):
    """Watches a run and says what is worth a line.

    Args:
        say: is told each line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.rounds = 0

    def __call__(self, name: str, about: Mapping[str, Any]) -> None:
        """One moment; whatever goes wrong in telling about it is not the run's problem."""
        with suppress(Exception):
            self.notice(name, about)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Nothing to put away."""

    def notice(self, name: str, about: Mapping[str, Any]) -> None:
        """Say the lines of one moment."""
        if name == "round":
            self.rounds = about["rounds"]
        for line in self.lines(name, about):
            self.say(one_line(line, 1000))

    def lines(self, name: str, about: Mapping[str, Any]) -> list[str]:
        """What a moment is told as; most have no line."""
        lines: list[str] = []
        match name:
            case "loading":
                lines = [f"loading {about['backbone']} · {about['folder']}"]
            case "fetching":
                lines = [about["line"]]
            case "loaded":
                lines = data_lines(about["facts"], about["clients"])
            case "resumed":
                lines = [f"resumed after round {about['round']}"]
            case "reused":
                lines = ["finished already, and reused · --fresh repeats it"]
            case "checkpoint-damaged":
                lines = [f"checkpoint of round {about['round']} is passed over · {about['error']}"]
            case "exported" if about["why_not"]:
                lines = [f"no adapter was written · {about['why_not']}"]
            case "recorded":
                lines = round_lines(about["record"], self.rounds)
        return lines


class Bar(Lines):
    """The same lines, and a bar: round, clients done, loss, accuracy, bytes, time."""

    def __init__(self, console: Console) -> None:
        super().__init__(lambda line: console.print(Text(line), soft_wrap=True))
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            refresh_per_second=4,
        )
        self.task = self.progress.add_task("loading", total=None, figures="")
        self.round, self.cohort, self.done, self.bytes = 0, 0, 0, 0

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.progress.stop()

    def notice(self, name: str, about: Mapping[str, Any]) -> None:
        """Say the lines, then move the bar."""
        super().notice(name, about)
        match name:
            case "round":
                self.round, self.done = about["round"], 0
                self._show("")
            case "selected":
                self.cohort = len(about["cohort"])
                self._show(f"0 of {self.cohort} clients")
            case "reply":
                self.done += 1
                self._show(f"{min(self.done, self.cohort)} of {self.cohort} clients")
            case "scoring":
                self._show("scoring")
            case "recorded":
                record: RoundRecord = about["record"]
                self.bytes += record.uplink_bytes + record.downlink_bytes + record.evaluation_bytes
                figures = " · ".join([*_figures(record), decimal(self.bytes)])
                self.progress.update(self.task, completed=record.round, figures=figures)

    def _show(self, phase: str) -> None:
        share = min(self.done / self.cohort, 1.0) if self.cohort else 0.0
        self.progress.update(
            self.task,
            description=f"round {self.round}/{self.rounds} {phase}".rstrip(),
            completed=self.round - 1 + share,
            total=self.rounds,
        )


def watcher(console: Console, quiet: bool) -> Lines:
    """What watches a run: nothing said when quiet, a bar on a terminal, lines elsewhere."""
    if quiet:
        return Lines(lambda _line: None)
    if console.is_terminal and not console.is_dumb_terminal:
        return Bar(console)
    return Lines(lambda line: print(line, flush=True))


def data_lines(facts: Mapping[str, Any], clients: int) -> list[str]:
    """What was read, and what was left out of it."""
    parts = [f"data {facts.get('data', '')}".rstrip(), f"{clients} clients"]
    if "used" in facts:
        parts.append(f"{facts['used']} rows")
    if "test" in facts:
        parts.append(f"{facts['test']['rows']} of them for testing")
    lines = [" · ".join(parts)]
    encoded = facts.get("encoded", {})
    if dropped := Counter(encoded.get("dropped", {})):
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(dropped.items()))
        lines.append(f"dropped {dropped.total()} rows · {reasons}")
    if encoded.get("cut"):
        lines.append(f"{encoded['cut']} rows were cut to the most tokens")
    if general := facts.get("general"):
        what = f"{general['examples']} windows, to measure forgetting"
        lines.append(f"general text {general['data']} · {general.get('skipped', what)}")
    if skipped := Counter(facts.get("skipped", {})):
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items()))
        lines.append(f"skipped {skipped.total()} rows · {reasons}")
    if empty := facts.get("empty_clients"):
        lines.append(f"{len(empty)} clients have no rows and are never asked · {_some(empty)}")
    if both := facts.get("duplicates", {}).get("test"):
        lines.append(f"{both} test rows have a text that a client trains on")
    return lines


def round_lines(record: RoundRecord, rounds: int) -> list[str]:
    """A round's figures, why it was abandoned if it was, and one line for each client that did not count."""
    cohort = record.cohort
    counted = f"{len(cohort.accepted)} of {len(cohort.selected)} clients"
    cost = f"up {decimal(record.uplink_bytes)} · down {decimal(record.downlink_bytes)} · {record.seconds:.1f} s"
    lines = [" · ".join([f"round {record.round}/{rounds}", *_figures(record), counted, cost])]
    if doubtful := doubt(record.global_metrics):
        lines.append(doubtful)
    if record.abandoned:
        lines.append(f"abandoned, theta stays · {record.abandoned}")
    lines += [f"dropped {one_line(client, 80)} · {reason}" for client, reason in sorted(cohort.reasons.items())]
    return lines


def _figures(record: RoundRecord) -> list[str]:
    train = [f"train loss {record.train_loss:.4f}"] if record.train_loss is not None else []
    return [*train, *(f"{name} {metric.value:.4f}" for name, metric in told(record.global_metrics).items())]


def told(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """The metrics that are worth a line: not the two sums whose ratio a perplexity is."""
    sums = {"nll", "tokens"} if "perplexity" in metrics else set()
    return {name: metric for name, metric in metrics.items() if name not in sums}


def _some(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(one_line(name, 80) for name in names[:most]) + (", …" if len(names) > most else "")
