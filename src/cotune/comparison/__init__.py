"""Rows held against each other: the same data, cohorts, batches, start and client-steps, and what may be said of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cotune import resolve
from cotune.backbone import Backbone
from cotune.comparison.measure import measure
from cotune.comparison.play import DESCRIPTION, Player
from cotune.comparison.question import LOCAL, Question, ask, load, unnamed
from cotune.comparison.table import plain, text
from cotune.core.contracts import Task
from cotune.core.events import Watch, quiet
from cotune.core.seeds import Seeds
from cotune.engine import InlineEngine
from cotune.experiment import Experiment, MakeEngine
from cotune.federation import Evaluation, Federation
from cotune.method import Method
from cotune.store import Run, lock, read_json, write_atomic, write_json

__all__ = ["Comparison", "Question", "answer", "ask", "compare", "load", "unnamed"]

TABLE, TEXT = "table.json", "table.txt"


class Comparison:
    """What a comparison left in its folder; reads files only, and prints as its table."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.about: dict[str, Any] = read_json(self.folder / DESCRIPTION)
        self.table: dict[str, Any] = read_json(self.folder / TABLE)

    @property
    def runs(self) -> dict[str, list[Run]]:
        """Row -> its runs, one a seed."""
        rows = self.about["rows"]
        return {label: [Run(self.folder / run["folder"]) for run in row["runs"]] for label, row in rows.items()}

    def __str__(self) -> str:
        return (self.folder / TEXT).read_text("utf-8").rstrip("\n")


def compare(
    rows: Sequence[str] | Mapping[str, Method | str],
    *,
    task: Task,
    backbone: Backbone | str,
    rounds: int = 10,
    cohort: int | None = None,
    federation: Federation | None = None,
    evaluation: Evaluation | None = None,
    seed: int = 0,
    seeds: int = 3,
    sweep: Iterable[float | str] = (),
    metric: str | None = None,
    reference: str | None = None,
    local: bool = True,
    name: str = "compare",
    out: Path | str = "runs",
    fresh: bool = False,
    watch: Watch = quiet,
    make_engine: MakeEngine = InlineEngine,
    backbones: Mapping[str, Backbone] | None = None,
    jobs: int = 1,
    budget: str | None = None,
    match_norm: bool = False,
) -> Comparison:
    """Run every row on the same data, cohorts, batches, start and client-steps, and return what that shows.

    Args:
        rows: names of recipes, or label -> a method or a recipe's name.
        task: data and scoring.
        backbone: a reference, or one with its settings.
        rounds: how many, when no federation is given.
        cohort: clients a round, when no federation is given; None for all.
        federation: rounds and cohorts in full.
        evaluation: when and on what to score; by default four rounds with the last, or every one where there is a
            budget, on test rows and every client's own.
        seed: the first seed.
        seeds: how many; each decides data, cohorts, batches and initialisation together.
        sweep: learning rates, of which every row is given its best on one more seed; "x3" is three times the row's own.
        metric: to compare by; accuracy where the task has it, else the loss.
        reference: the row that the others are held against; by default the first that aggregates.
        local: add the recipe `local` where no row stays unaggregated.
        name: the first part of the folder's name.
        out: the folder of the comparison's folder.
        fresh: throw away earlier runs; otherwise finished ones are reused and unfinished ones continued.
        watch: told about every moment of every run.
        make_engine: where clients run; in this process by default.
        backbones: label -> the backbone of a row that sees the same weights in another way, through a window say.
        jobs: runs at once, each in a process of its own.
        budget: `bytes=2e6` or `flops=1e12`: what all clients of a run may spend together, in at most all its rounds.
        match_norm: bring rows of factors to one length of update first, by their learning rates, on one more seed.

    Raises:
        CotuneError: E_CONFIG or E_CONFLICT for rows that cannot be compared, and whatever a run raises.
    """
    named = rows if isinstance(rows, Mapping) else {row: row for row in rows}
    methods = {label: resolve.recipe(row) if isinstance(row, str) else row for label, row in named.items()}
    if local and not any(method.share == "none" for method in methods.values()):
        methods[LOCAL] = resolve.recipe(LOCAL)
    ground = Experiment(
        name=name,
        method=next(iter(methods.values())),
        task=task,
        backbone=Backbone(ref=backbone) if isinstance(backbone, str) else backbone,
        federation=federation or Federation(rounds=rounds, cohort=cohort),
        evaluation=evaluation or Evaluation(),
        seeds=Seeds(seed=seed),
    )
    question = ask(
        methods,
        ground,
        seeds=seeds,
        sweep=sweep,
        metric=metric,
        reference=reference,
        backbones=backbones,
        budget=budget,
        match_norm=match_norm,
    )
    return answer(question, out, fresh=fresh, watch=watch, make_engine=make_engine, jobs=jobs)


def answer(
    question: Question,
    out: Path | str = "runs",
    *,
    fresh: bool = False,
    watch: Watch = quiet,
    make_engine: MakeEngine = InlineEngine,
    jobs: int = 1,
) -> Comparison:
    """Carry a question out in `out/NAME-HASH8`, named after its ground and its first row, and write the table there.

    More rows, seeds or learning rates on the same ground continue in the same folder; comparison.json and the table are
    those of the last question. With several jobs, runs are carried out by as many processes at once.

    Raises:
        CotuneError: E_LOCK when another process answers it, and whatever a run raises.
    """
    folder = question.ground.folder(Path(out))
    with lock(folder):
        measured = measure(question, Player(question, folder, fresh, watch, make_engine, jobs).play())
        write_json(folder / TABLE, plain(measured))
        write_atomic(folder / TEXT, f"{text(measured)}\n".encode())
    return Comparison(folder)
