"""Five domains of four-choice questions: FedNL's rows on real MMLU questions, and where a small model can tell rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from cotune import comparison, resolve
from cotune.backbone import Backbone
from cotune.comparison import Comparison, Question
from cotune.comparison.play import SEARCHED
from cotune.comparison.question import with_rate
from cotune.comparison.search import Search
from cotune.core.contracts import Task
from cotune.core.seeds import Seeds
from cotune.experiment import Experiment
from cotune.federation import Evaluation, Federation
from cotune.method import Method
from cotune.reproduce.domains import Domains
from cotune.reproduce.mmlu_page import page, published
from cotune.reproduce.mmlu_told import FEDAVG, FEDNL, LOCAL, PAPER, UNTRAINED, Answered
from cotune.reproduce.page import Page
from cotune.reproduce.rates import searched
from cotune.reproduce.reproduction import Found, Laptop, Reproduction
from cotune.store import Run
from cotune.task import MMLU

ROWS = (FEDAVG, "fedprox", "fedssi", "fedala", "ffa-lora", FEDNL, LOCAL)
TARGETS = ("q_proj", "k_proj", "v_proj")  # of every row, as the paper says of its own


class Size(BaseModel):
    """How large one of the two settings is.

    Attributes:
        name: of its folder.
        synthetic: whether the questions are drawn, and of the task `choice`; else they are MMLU's.
        data: the questions.
        max_tokens: the most tokens of a prompt; longer ones are dropped and counted.
        test: the share of the questions that no client gets, or how many.
        held: the share of its questions that a client holds back.
        rows: names of recipes.
        ref: the backbone.
        dtype: of its weights.
        rounds: of all clients.
        steps: of a client in a round.
        batch: rows of a step.
        sweep: learning rates to choose from on a spare seed.
        every_row: whether each row searches for its own; else `lora-fedavg` does, and all rows take its rate.
        own: row -> fields of its recipe that are not the recipe's.
        seeds: how many at most: runs of the larger model cost most of the time.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = "fednl-mmlu"
    synthetic: bool = False
    data: str = "pkg:mmlu-dev"
    max_tokens: int = 96
    test: float | int = 0.6
    held: float = 1 / 6
    rows: tuple[str, ...] = ROWS
    ref: str = "pkg:smollm2-135m"
    dtype: str = "bfloat16"
    rounds: int = 2
    steps: int = 1
    batch: int = 4
    sweep: tuple[float, ...] = (5e-5, 3e-4, 1e-3)
    every_row: bool = False
    own: Mapping[str, Mapping[str, Any]] = {"fedssi": {"surrogate_steps": 2}, "fedala": {"first": 4}}
    seeds: int = 1


TWIN = Size(
    name="fednl-mmlu-synthetic",
    synthetic=True,
    data="synth:choice?domains=5&things=4&rows=1000",
    max_tokens=96,
    test=300,
    held=0.2,
    rows=(*ROWS, PAPER),
    ref="builtin:tiny-llama",
    dtype="float32",
    rounds=4,
    steps=20,
    batch=4,
    sweep=(4e-3, 1e-2),
    every_row=True,
    own={},
    seeds=3,
)


def recipe(name: str, size: Size, lr: float) -> Method:
    """A recipe at this size, rank 8, on queries, keys and values; `untrained` is `lora-fedavg` at rate 0."""
    given = {"rank": 8, "alpha": 16, "targets": list(TARGETS), "steps": size.steps, "batch": size.batch}
    if name == UNTRAINED:
        return with_rate(resolve.recipe(FEDAVG, **given), 0.0)
    return resolve.recipe(name, **given, **size.own.get(name, {}), lr=lr)


def task(size: Size) -> Task:
    """The questions, each domain a client."""
    shared = {"data": size.data, "max_tokens": size.max_tokens, "test": size.test, "held": size.held}
    return Domains.model_validate(shared) if size.synthetic else MMLU.model_validate(shared)


def ground(size: Size) -> Experiment:
    """What all rows share; its method is that of `lora-fedavg`."""
    return Experiment(
        name=size.name,
        method=recipe(FEDAVG, size, size.sweep[0]),
        task=task(size),
        backbone=Backbone(ref=size.ref, dtype=size.dtype),
        federation=Federation(rounds=size.rounds),
        evaluation=Evaluation(every=size.rounds, which="all"),
        seeds=Seeds(seed=0),
    )


def question(size: Size, seeds: int, rates: Mapping[str, float]) -> Question:
    """Rows at their rates, with the untrained model as the last of them."""
    methods = {label: recipe(label, size, lr) for label, lr in rates.items()}
    return comparison.ask({**methods, UNTRAINED: recipe(UNTRAINED, size, 0.0)}, ground(size), seeds=seeds)


class FedNLMMLU(Reproduction):
    """FedNL and the rows it is compared with on five domains of questions: real MMLU, and a synthetic twin."""

    name: ClassVar[str] = "fednl-mmlu"
    source: ClassVar[str] = "fednl"
    files: ClassVar[tuple[str, ...]] = (
        "mmlu.toml",
        "mmlu-fedavg.toml",
        "mmlu-llama.toml",
        "mmlu-llama-fedavg.toml",
        "mmlu-mamba.toml",
    )
    seeds: ClassVar[int] = 3
    real: ClassVar[Size] = Size()
    twin: ClassVar[Size] = TWIN

    def laptop(self, setting: Laptop) -> Found:
        """Both settings: a search for learning rates, then every row under every seed; the page is beside the first."""
        real, twin = (self._answered(size, setting) for size in (self.real, self.twin))
        return page(self.name, real, twin).written(f"{self.name}-laptop")

    def _answered(self, size: Size, setting: Laptop) -> Answered:
        seeds = min(setting.seeds, size.seeds)
        first = question(size, seeds, dict.fromkeys(size.rows, size.sweep[0]))
        out = setting.out / f"{size.name}-{SEARCHED}"
        searching = size.rows if size.every_row else (FEDAVG,)
        search = searched(first, searching, size.sweep, out, jobs=setting.jobs, say=setting.say)
        asked = question(size, seeds, {label: _rate(search, label) for label in size.rows})
        found: Comparison = comparison.answer(asked, setting.out, watch=setting.watch, jobs=setting.jobs)
        return Answered(found, search, size.synthetic)

    def beside(self, runs: Mapping[str, Run]) -> Page:
        """The paper's table beside the published setting: its held-back rows, and what rows scored on the same say."""
        return published(runs)


def _rate(search: Mapping[str, Search], label: str) -> float:
    """What a row chose, or else what `lora-fedavg` did."""
    return search.get(label, search[FEDAVG]).chosen
