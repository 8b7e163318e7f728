"""Recall beyond the window: FedNL against factors alone, with the controls that its claims need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from cotune import comparison, resolve
from cotune.backbone import Backbone
from cotune.comparison import Comparison, Question
from cotune.core.seeds import Seeds
from cotune.experiment import Experiment
from cotune.federation import Evaluation, Federation
from cotune.method import Method
from cotune.reproduce import beside, paper, tables
from cotune.reproduce.page import Page, Titled
from cotune.reproduce.reproduction import Found, Laptop, Reproduction
from cotune.reproduce.shuffled import shuffled
from cotune.store import Run, Table
from cotune.task import Recall

FEDNL, PAPER, WINDOWED, FULL = "fednl", "fednl-paper", "lora window", "lora full attention"
SINKS, LOCAL, FROZEN = "lora sinks + window", "local rules", "frozen random rules"
BEYOND = 12  # tokens of the window; every question is farther from what was written
# The state is 2 heads · 32 · 32 numbers a layer, as many bytes as 16 keys and values of the softmax path.
WIDER, KEPT = 24, 4


class Size(BaseModel):
    """How large the synthetic setting is.

    Attributes:
        rounds: of all clients.
        steps: of a client in a round.
        rows: that a client trains on.
        held: rows that a client holds back.
        test_rows: of each gap.
        gap: fillers of training rows, the least and the most.
        gaps: fillers of test rows.
        sweep: learning rates to choose from on a spare seed; none to take `lr`.
        lr: of every row, where none is chosen.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rounds: int = 15
    steps: int = 20
    rows: int = 320
    held: int = 32
    test_rows: int = 48
    gap: tuple[int, int] = (16, 32)
    gaps: tuple[int, ...] = (24, 64, 200)
    sweep: tuple[float, ...] = (2e-3, 4e-3, 8e-3, 1.6e-2)
    lr: float = 8e-3


def ground(size: Size) -> Experiment:
    """What all rows share; its method is that of `fednl`."""
    return Experiment(
        name="fednl-needle",
        method=recipe("fednl", size),
        task=Recall(
            gap=size.gap, test_gaps=size.gaps, rows=size.rows, held=size.held, test_rows=size.test_rows, unseen=True
        ),
        backbone=Backbone(ref="builtin:tiny-recall", window=BEYOND),
        federation=Federation(rounds=size.rounds),
        evaluation=Evaluation(every=size.rounds, which="all"),
        seeds=Seeds(seed=0),
    )


def recipe(name: str, size: Size, **overrides: Any) -> Method:
    """A recipe at rank 8 and this size."""
    return resolve.recipe(name, rank=8, alpha=16, steps=size.steps, batch=16, lr=size.lr, **overrides)


def rows(size: Size) -> dict[str, Method]:
    """Label -> method."""
    return {
        FEDNL: recipe("fednl", size),
        PAPER: recipe("fednl-paper", size),
        WINDOWED: recipe("lora-fedavg", size),
        SINKS: recipe("lora-fedavg", size),
        FULL: recipe("lora-fedavg", size),
        LOCAL: recipe("fednl", size, share="none"),
        FROZEN: recipe("fednl", size, train_rules=False, **{"trainable.rules": {"start": "random"}}),
    }


def backbones() -> dict[str, Backbone]:
    """Label -> what a row sees of the model, where it is not the ground's window."""
    ref = "builtin:tiny-recall"
    return {SINKS: Backbone(ref=ref, window=WIDER, sinks=KEPT), FULL: Backbone(ref=ref)}


def question(size: Size, seeds: int, labels: tuple[str, ...] | None = None) -> Question:
    """The comparison of these rows, of all by default."""
    chosen = {label: method for label, method in rows(size).items() if labels is None or label in labels}
    own = {label: backbone for label, backbone in backbones().items() if label in chosen}
    return comparison.ask(chosen, ground(size), seeds=seeds, sweep=size.sweep, backbones=own)


class FedNLNeedle(Reproduction):
    """FedNL's recall beyond the window: against factors, wider windows, local, frozen and shuffled rules."""

    name: ClassVar[str] = "fednl-needle"
    source: ClassVar[str] = "fednl"
    files: ClassVar[tuple[str, ...]] = ("needle.toml", "needle-memory.toml")
    size: ClassVar[Size] = Size()

    def laptop(self, setting: Laptop) -> Found:
        """Every row under every seed, the controls, and the paper's table beside them."""
        asked = question(self.size, setting.seeds)
        found = comparison.answer(asked, setting.out, watch=setting.watch, jobs=setting.jobs)
        setting.say("shuffling the clients' local models")
        matrix = shuffled(found.runs[LOCAL])
        return page(self.name, found, matrix).written(f"{self.name}-laptop")

    def beside(self, runs: Mapping[str, Run]) -> Page:
        """The paper's table beside the published setting."""
        numbers = paper.expected(self.source)
        ours = {file: run.rounds[-1].global_metrics["accuracy"] for file, run in runs.items()}
        measured = [(file, f"{100 * m.value:.1f}", _percent(m.low, m.high), m.n, m.chance) for file, m in ours.items()]
        title = "FedNL, needles in haystacks: the paper's numbers and ours"
        return Page(title, [beside.needle(numbers), Titled("Ours", Table(beside.OURS, measured))])


def page(name: str, found: Comparison, matrix: Mapping[str, Any]) -> Found:
    """Tables, verdicts and every setting that differs from the paper's."""
    numbers = paper.expected(FedNLNeedle.source)
    strata = found.table["strata"]
    chance = found.table["chance"]
    blocks: list[str | Titled] = [
        "Synthetic associative recall in the words of builtin:tiny-recall: keys are written and overwritten, and asked "
        f"for after a gap of fillers. Softmax attention sees {BEYOND} tokens, so that no question sees what it asks "
        "for; 4 clients train on disjoint pools of keys, and test rows are of a pool that no client has. "
        f"Seeds {', '.join(map(str, found.table['seeds']))}; chance {chance:.3f}; accuracy is the share of told values "
        "that are the likeliest of all words. In tests a question stands 27 tokens or more from what it asks for; two "
        f"layers of a window of {BEYOND} reach 22 tokens back, two of {WIDER} reach 46, and so to the first gap. "
        "Learning rates are chosen row by row on a spare seed, on rows that the clients hold back.",
        tables.scores(found.table),
        tables.gains(found.table, FEDNL),
        *_verdicts(found),
        tables.shuffle(matrix),
        tables.conflict(found.runs, (FEDNL, PAPER)),
        tables.costs(found.table),
        tables.search(found.table),
        beside.needle(numbers),
        beside.differing(paper.experiment(FedNLNeedle.source, "needle.toml"), found.runs[FEDNL][0]),
        tables.hashes(found.about),
        "Transfer to a template that no client trains on (task.leave_out of the needle task) needs a model that reads "
        "text; it is part of the published setting and not of this one.",
    ]
    results = {
        "name": name,
        "scale": "laptop",
        "strata": strata,
        **tables.portable(found.table),
        "shuffled": matrix,
        "conflict": tables.agreement(found.runs, (FEDNL, PAPER)),
        "hashes": tables.hashed(found.about),
    }
    return Found(Page("FedNL: recall beyond the window, synthetic", blocks), results, found.folder)


def _verdicts(found: Comparison) -> list[str]:
    """The two claims, either way: memory beats a window beyond it, and a federated rule beats a local one."""
    said = []
    beyond = tables.between(found.table["pairs"], FEDNL, WINDOWED)
    said.append(tables.verdict("A memory beats factors alone beyond the window", beyond))
    for stratum in found.table["strata"]:
        pair = tables.between(stratum["pairs"], FEDNL, LOCAL)
        said.append(
            tables.verdict(
                f"A federated rule beats a local one on keys that nobody trained on, {stratum['cell']}", pair
            )
        )
    learned = tables.between(found.table["pairs"], FEDNL, FROZEN)
    return [*said, tables.verdict("A trained rule beats a random one that stays as it is", learned)]


def _percent(low: float | None, high: float | None) -> str:
    return "–" if low is None or high is None else f"[{100 * low:.1f}, {100 * high:.1f}]"
