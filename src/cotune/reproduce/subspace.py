"""Subspace-Reg and its rivals on one synthetic ground: at their best rates, at one length, and by its penalty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from cotune import comparison, resolve
from cotune.backbone import Backbone
from cotune.comparison import Comparison, Question
from cotune.comparison.play import SEARCHED
from cotune.core.seeds import Seeds
from cotune.experiment import Experiment
from cotune.federation import Evaluation, Federation
from cotune.method import Method
from cotune.reproduce import beside, paper
from cotune.reproduce.aligned import FEDAVG, ORTHONORMAL, SOURCE, SUBSPACE, Aligned, page
from cotune.reproduce.matched import matched
from cotune.reproduce.nodata import simulated
from cotune.reproduce.page import Page, Titled
from cotune.reproduce.quadratic import swept
from cotune.reproduce.reproduction import Found, Laptop, Reproduction
from cotune.store import Run, Table
from cotune.task import Classify, Dirichlet

ROWS = (FEDAVG, "svd-redistribution", "fedsvd", "fedrot-lora", ORTHONORMAL, SUBSPACE)


class Size(BaseModel):
    """How large the synthetic setting is.

    Attributes:
        ref: the backbone.
        targets: the layers that are adapted.
        rounds: of some clients.
        steps: of a client in a round.
        clients: in all.
        cohort: clients a round.
        rows: of all clients and the test together.
        test: rows of the test.
        sweep: learning rates to choose from on a spare seed.
        tries: guesses a row, at most, of the rate that matches lengths.
        mus: strengths of the penalty, the first of them 0.
        draws: of the quadratic.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    ref: str = "pkg:minilm-l6"
    targets: tuple[str, ...] = ("query", "value")
    rounds: int = 6
    steps: int = 5
    clients: int = 10
    cohort: int = 3
    rows: int = 2000
    test: int = 300
    sweep: tuple[float, ...] = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
    tries: int = 4
    mus: tuple[float, ...] = (0.0, 0.05, 0.5, 5.0)
    draws: int = 6


def recipe(name: str, size: Size, **overrides: Any) -> Method:
    """A recipe at this size; rank 8 and alpha 16 are its own."""
    given = {"targets": list(size.targets), "steps": size.steps, "batch": 8, "lr": size.sweep[0]}
    return resolve.recipe(name, **{**given, **overrides})


def ground(size: Size, name: str) -> Experiment:
    """What all rows share; its method is that of `lora-fedavg`."""
    return Experiment(
        name=name,
        method=recipe(FEDAVG, size),
        task=Classify(
            data=f"synth:sentiment?clients=20&rows={size.rows}",
            max_tokens=24,
            test=size.test,
            partition=Dirichlet(clients=size.clients, alpha=0.3, by="domain", minimum=8),
        ),
        backbone=Backbone(ref=size.ref),
        federation=Federation(rounds=size.rounds, cohort=size.cohort),
        evaluation=Evaluation(every=size.rounds, which="global"),
        seeds=Seeds(seed=0),
    )


def question(size: Size, seeds: int, labels: tuple[str, ...] = ROWS) -> Question:
    """The rows, each at the best of the sweep."""
    rows = {label: recipe(label, size) for label in labels}
    return comparison.ask(rows, ground(size, "subspace-hellaswag"), seeds=seeds, sweep=size.sweep)


def at_one_length(size: Size, seeds: int, rates: Mapping[str, float]) -> Question:
    """The rows, each at its own rate."""
    rows = {label: recipe(label, size, lr=lr) for label, lr in rates.items()}
    return comparison.ask(rows, ground(size, "subspace-matched"), seeds=seeds)


def pulls(size: Size, seeds: int, lr: float) -> Question:
    """Subspace-Reg at one rate by the strength of its penalty; 0 keeps ridge and basis, `orthonormal-b` has neither."""
    rows = {f"mu = {mu:g}": recipe(SUBSPACE, size, lr=lr, mu=mu) for mu in size.mus}
    rows[ORTHONORMAL] = recipe(ORTHONORMAL, size, lr=lr)
    return comparison.ask(rows, ground(size, "subspace-mu"), seeds=seeds)


class SubspaceHellaSwag(Reproduction):
    """Subspace-Reg against five ways to add factors: at best rates, at one length, by its penalty; three verdicts."""

    name: ClassVar[str] = "subspace-hellaswag"
    source: ClassVar[str] = SOURCE
    files: ClassVar[tuple[str, ...]] = (
        "roberta-paper-code.toml",
        "roberta-paper-text.toml",
        "smollm-paper-code.toml",
        "smollm-paper-text.toml",
    )
    texts: ClassVar[int] = 4
    seeds: ClassVar[int] = 3
    size: ClassVar[Size] = Size()
    labels: ClassVar[tuple[str, ...]] = ROWS

    def laptop(self, setting: Laptop) -> Found:
        """Synthetic sentiment: three comparisons, the simulation without data, the quadratic, and what they say."""
        size, seeds = self.size, setting.seeds

        def answered(asked: Question) -> Comparison:
            return comparison.answer(asked, setting.out, watch=setting.watch, jobs=setting.jobs)

        asked = question(size, seeds, self.labels)
        best = answered(asked)
        rates = {row["label"]: row["lr"] for row in best.table["rows"]}
        setting.say("searching the rates at which all rows end as far from their start")
        found = matched(
            asked,
            best.folder / SEARCHED,
            rates,
            tries=size.tries,
            jobs=setting.jobs,
            say=setting.say,
        )
        equal = answered(at_one_length(size, seeds, {label: one.lr for label, one in found.items()}))
        pulled = answered(pulls(size, seeds, rates[SUBSPACE]))
        setting.say("the same rounds without data, and the quadratic")
        none = [simulated(run)[-1] for run in pulled.runs[f"mu = {size.mus[0]:g}"]]
        told = Aligned(size.steps, best, equal, pulled, found, none, swept(size.draws))
        return page(self.name, told).written(f"{self.name}-laptop")

    def beside(self, runs: Mapping[str, Run]) -> Page:
        """The paper's table beside the published setting, at its last round and at its best."""
        ours = []
        for file, run in runs.items():
            rounds = [record.global_metrics["accuracy"] for record in run.rounds if record.global_metrics]
            last = rounds[-1]
            ours.append([file, max(one.value for one in rounds), last.value, f"[{last.low}, {last.high}]", last.n])
        columns = ("experiment", "best of all rounds", "last round", "95 % interval", "n")
        blocks = [beside.hellaswag(paper.expected(self.source)), Titled("Ours", Table(columns, ours))]
        return Page("Subspace-Reg on HellaSwag: the paper's numbers and ours", blocks)
