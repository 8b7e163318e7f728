"""What the runs of a comparison say: a figure for every row, and for every pair a gain with its interval."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from cotune.comparison.lengths import Lengthened, length
from cotune.comparison.play import Outcome
from cotune.comparison.played import Crowd, Played, rate
from cotune.comparison.question import Question
from cotune.comparison.search import Search
from cotune.core.errors import Code, CotuneError
from cotune.core.seeds import derive, numpy_generator
from cotune.core.stays import stays
from cotune.diagnose.paired import (
    RESAMPLES,
    Array,
    detectable,
    direction,
    holm,
    mcnemar,
    paired_bootstrap,
    sign_flip,
)

ALPHA = 0.05
EARLY = 0.01  # a loss that falls by a larger share over a quarter of the rounds has not come to rest


@dataclass(frozen=True)
class Discordant:
    """Test rows that one row has right under more seeds than the other, each once, and McNemar's p-value of those.

    Attributes:
        ours: how many the first has.
        theirs: how many the other.
        p: of no difference.
    """

    ours: int
    theirs: int
    p: float


@dataclass(frozen=True)
class Pair:
    """What one row gains over another on the rows that both were scored on; above zero is better.

    Attributes:
        ours: a row.
        theirs: the other.
        gain: the mean over seeds of the mean over test rows.
        low: of its 95 % interval.
        high: of its 95 % interval.
        p: of no difference, by turning rows.
        holm: the same, corrected for every pair of the comparison.
        detectable: the smallest gain that these rows would show four times in five.
        by_seed: the gain under each seed.
        discordant: where both are right or wrong on every test row; None elsewhere.
    """

    ours: str
    theirs: str
    gain: float
    low: float
    high: float
    p: float
    holm: float
    detectable: float
    by_seed: tuple[float, ...]
    discordant: Discordant | None = None

    @property
    def off_zero(self) -> bool:
        """Whether the interval excludes zero."""
        return not self.low <= 0 <= self.high

    @property
    def seen(self) -> bool:
        """Whether there is a difference: the interval is off zero, and Holm's corrected p-value at most 5 %."""
        return self.off_zero and self.holm <= ALPHA

    @property
    def alike(self) -> bool:
        """Whether no test row is scored differently."""
        return self.detectable == 0 and self.gain == 0

    def turned(self) -> Pair:
        """What the other row gains."""
        turned = tuple(-gain for gain in self.by_seed)
        apart = self.discordant and replace(self.discordant, ours=self.discordant.theirs, theirs=self.discordant.ours)
        ends = {"gain": -self.gain, "low": -self.high, "high": -self.low, "by_seed": turned, "discordant": apart}
        return replace(self, ours=self.theirs, theirs=self.ours, **ends)  # type: ignore[arg-type]


def _between(pairs: Sequence[Pair], ours: str, theirs: str) -> Pair | None:
    for pair in pairs:
        if (pair.ours, pair.theirs) == (ours, theirs):
            return pair
        if (pair.theirs, pair.ours) == (ours, theirs):
            return pair.turned()
    return None


@dataclass(frozen=True)
class Figures:
    """A row: its score on test rows, and means over seeds of the rest.

    Attributes:
        label: of the row.
        value: the mean over seeds of the mean over test rows.
        low: of its 95 % interval.
        high: of its 95 % interval.
        by_seed: the value under each seed.
        drop: the mean over clients; None where nothing is aggregated.
        stays: what makes the drop small by construction, in words; empty where nothing does.
        worst_client: on its own held-back rows; None where nobody was asked.
        lr: the learning rate; None where the optimizer has none.
        client_steps: of all clients in all rounds.
        uplink_bytes: of training, all rounds.
        downlink_bytes: of training, all rounds.
        flops: of training, all rounds.
        seconds: of all rounds.
        peak_bytes: the largest of all rounds.
        missing: replies that did not come or did not count, of all seeds together.
        untaken: test rows of all seeds together that its model does not take; its score is over the others.
        rounds: under each seed.
        spent: of the budget of each seed's run, as a share; empty where there is none.
        fall: of the loss on held-back rows over the last quarter of the rounds, as a share; None where not known.
        length: of the update, where rows were brought to one; None elsewhere, and for rows that have none.
        evaluated: which model its scores are of, in words.
    """

    label: str
    value: float
    low: float
    high: float
    by_seed: tuple[float, ...]
    drop: float | None
    stays: str
    worst_client: float | None
    lr: float | None
    client_steps: float
    uplink_bytes: float
    downlink_bytes: float
    flops: float
    seconds: float
    peak_bytes: float
    missing: int
    untaken: int = 0
    rounds: tuple[int, ...] = ()
    spent: tuple[float, ...] = ()
    fall: float | None = None
    length: float | None = None
    evaluated: str = ""


@dataclass(frozen=True)
class Score:
    """The mean over seeds of the mean over some test rows, its 95 % interval, and the mean under each seed."""

    value: float
    low: float
    high: float
    by_seed: tuple[float, ...]


@dataclass(frozen=True)
class Stratum:
    """The same comparison over some of the test rows.

    Attributes:
        cell: their stratum, as the task names it.
        n: how many there are, of all seeds together.
        scores: label -> its score; a row whose model takes none of them is left out.
        pairs: every two rows that are there, corrected among themselves.
    """

    cell: str
    n: int
    scores: Mapping[str, Score]
    pairs: tuple[Pair, ...]

    def pair(self, ours: str, theirs: str) -> Pair | None:
        """What one row gains over another there; None for a row and itself, or where one of them is left out."""
        return _between(self.pairs, ours, theirs)


@dataclass(frozen=True)
class Measured:
    """All that a table is made of.

    Attributes:
        question: what was compared.
        figures: one a row, in the order that was given.
        pairs: every two rows, the one that was given first first.
        searches: label -> how its learning rate was chosen.
        n: test rows under each seed.
        different: test rows, each counted once however many seeds test on it.
        matched: whether a row that two seeds test on is known to be one; not so where a task scores parts of rows.
        chance: what guessing scores, mean over seeds; None where the metric has no such thing.
        strata: one a stratum of the test rows, where the task has them.
        lengths: label -> how it was brought to one length of update.
        synthetic: whether the data are.
    """

    question: Question
    figures: tuple[Figures, ...]
    pairs: tuple[Pair, ...]
    searches: Mapping[str, Search]
    n: tuple[int, ...]
    different: int
    matched: bool
    chance: float | None
    strata: tuple[Stratum, ...] = ()
    lengths: Mapping[str, Lengthened] = field(default_factory=dict)
    synthetic: bool = False

    @property
    def early(self) -> list[str]:
        """The rows whose loss on held-back rows was still falling."""
        return [row.label for row in self.figures if row.fall is not None and row.fall > EARLY]

    @property
    def unsettled(self) -> list[str]:
        """The rows that aggregate of which it is not known whether the loss had come to rest."""
        return [row.label for row in self.figures if row.fall is None and row.label not in self.question.alone]

    def pair(self, ours: str, theirs: str) -> Pair | None:
        """What one row gains over another; None for a row and itself."""
        return _between(self.pairs, ours, theirs)


def measure(question: Question, outcome: Outcome) -> Measured:
    """Every figure of a comparison; every resample is of a derived seed.

    Raises:
        CotuneError: E_NONFINITE for a row whose scores are no numbers.
    """
    metric = question.metric
    scores, cells = _tables(outcome, metric)
    draw = derive(question.ground.seeds.seed, "compare", "resamples")
    first = outcome.runs[question.reference]
    chances = [played.last.global_metrics[metric].chance for played in first]
    return Measured(
        question=question,
        figures=tuple(_figures(label, outcome, scores[label], question, draw) for label in scores),
        pairs=_pairs(scores, metric, draw),
        searches=outcome.searches,
        n=tuple(len(played.scores[metric]) for played in first),
        different=len(cells),
        matched=all(p.tested(metric, len(c.tests)) is not None for p, c in zip(first, outcome.crowds, strict=True)),
        chance=None if None in chances else _mean([chance for chance in chances if chance is not None]),
        strata=tuple(
            _stratum(cell, scores, np.array([cell in of for of in cells]), metric, draw)
            for cell in dict.fromkeys(itertools.chain.from_iterable(cells))
        ),
        lengths=outcome.lengths,
        synthetic=bool(first[0].about["data"].get("synthetic")),
    )


def _pairs(scores: Mapping[str, Array], metric: str, draw: int) -> tuple[Pair, ...]:
    """Every two rows on the test rows that both were scored on; none for two without such a row."""
    pairs = []
    # As many that the smallest p-value there can be is still below 5 % after the correction for every pair.
    turns = max(RESAMPLES, 100 * math.comb(len(scores), 2))
    for ours, theirs in itertools.combinations(scores, 2):
        gains = direction(metric) * (scores[ours] - scores[theirs])
        gains = gains[~np.isnan(gains).all(1)]
        if not len(gains):
            continue
        gain, low, high = paired_bootstrap(gains, numpy_generator(draw))
        p, by_seed = sign_flip(gains, numpy_generator(draw), turns), tuple(np.nanmean(gains, axis=0).tolist())
        apart = _discordant(scores[ours], scores[theirs])
        pairs.append(Pair(ours, theirs, gain, low, high, p, 1.0, detectable(gains), by_seed, apart))
    corrected = holm([pair.p for pair in pairs])
    return tuple(replace(pair, holm=p) for pair, p in zip(pairs, corrected, strict=True))


def _discordant(ours: Array, theirs: Array) -> Discordant | None:
    """Of scores (rows, seeds) that are 0 or 1, and NaN where a seed did not score a row; None of any others.

    A row that several seeds test on counts once, for whoever has it right more often: under each seed it is as hard.
    """
    there = ~np.isnan(ours) & ~np.isnan(theirs)
    if not np.isin(np.concatenate([ours[there], theirs[there]]), (0.0, 1.0)).all():
        return None
    net = np.where(there, ours - theirs, 0.0).sum(1)
    more, fewer = int((net > 0).sum()), int((net < 0).sum())
    return Discordant(more, fewer, mcnemar(more, fewer))


def _stratum(cell: str, scores: Mapping[str, Array], there: NDArray[np.bool_], metric: str, draw: int) -> Stratum:
    inside = {label: table[there] for label, table in scores.items()}
    found = {label: table for label, table in inside.items() if not np.isnan(table).all(0).any()}
    values = {}
    for label, table in found.items():
        scored = table[~np.isnan(table).all(1)]
        by_seed = tuple(np.nanmean(scored, axis=0).tolist())
        values[label] = Score(*paired_bootstrap(scored, numpy_generator(draw)), by_seed)
    return Stratum(cell, int(there.sum()), values, _pairs(found, metric, draw))


def _tables(outcome: Outcome, metric: str) -> tuple[dict[str, Array], list[tuple[str, ...]]]:
    """Label -> (different test rows, seeds), NaN where a seed did not score a row; and the strata of each test row.

    A row that is of the tail under one seed and of the head under another is of neither.
    """
    cells: dict[str, tuple[str, ...]] = {}
    found: dict[str, list[dict[str, float]]] = {}
    for label, runs in outcome.runs.items():
        found[label] = []
        for played, crowd in zip(runs, outcome.crowds, strict=True):
            values = played.scores.get(metric, [])
            if not values or not all(map(math.isfinite, values)):
                what = f"row '{label}' has scores that are no numbers" if values else f"row '{label}' was not scored"
                fix = "leave it out, or lower its learning rate: finished runs are kept"
                raise CotuneError(Code.NONFINITE, what, where=f"{metric}, seed {played.experiment.seeds.seed}", fix=fix)
            named = _named(played, crowd, metric)
            cells |= {name: tuple(cell for cell in of if cell in cells.get(name, of)) for name, of in named}
            found[label].append(dict(zip((name for name, _ in named), values, strict=True)))
    places = {name: i for i, name in enumerate(cells)}
    tables = {}
    for label, by_seed in found.items():
        tables[label] = np.full((len(places), len(by_seed)), np.nan)
        for seed, scores in enumerate(by_seed):
            tables[label][[places[name] for name in scores], seed] = list(scores.values())
    return tables, list(cells.values())


def _named(played: Played, crowd: Crowd, metric: str) -> list[tuple[str, tuple[str, ...]]]:
    """(name, strata) of the test row behind each score; a name of its own for each where the task scores parts."""
    tested = played.tested(metric, len(crowd.tests))
    if tested is not None:
        return [(crowd.tests[i], crowd.cells[i]) for i in tested]
    split = played.about["data"].get("test_manifest", played.experiment.seeds.seed)
    return [(f"{split}/{i}", ()) for i in range(len(played.scores[metric]))]


def _figures(label: str, outcome: Outcome, scores: Array, question: Question, draw: int) -> Figures:
    metric, runs = question.metric, outcome.runs[label]
    sizes = [len(crowd.tests) for crowd in outcome.crowds]
    taken = [(size, played.tested(metric, size)) for played, size in zip(runs, sizes, strict=True)]
    untaken = sum(size - len(numbers) for size, numbers in taken if numbers is not None)
    scores = scores[~np.isnan(scores).all(1)]
    value, low, high = paired_bootstrap(scores, numpy_generator(draw))
    worst: Callable[[Sequence[float]], float] = min if direction(metric) > 0 else max
    together = label not in question.alone
    drops = [_mean(drop) for drop in (played.drops(metric) for played in runs) if drop] if together else []
    clients = [worst(found) for found in (played.federated(metric) for played in runs) if found]
    costs = ("uplink_bytes", "downlink_bytes", "flops", "seconds")
    falls = [played.fall for played in runs]
    known, allowance = [fall for fall in falls if fall is not None], question.allowance
    moved = [length(played.run) or 0.0 for played in runs] if label in outcome.lengths else []
    return Figures(
        label=label,
        value=value,
        low=low,
        high=high,
        by_seed=tuple(np.nanmean(scores, axis=0).tolist()),
        drop=_mean(drops) if drops else None,
        stays=stays(runs[0].about),
        worst_client=_mean(clients) if clients else None,
        lr=rate(runs[0].experiment.method),
        client_steps=_mean([played.client_steps for played in runs]),
        peak_bytes=max(record.peak_bytes for played in runs for record in played.records),
        missing=sum(played.missing for played in runs),
        untaken=untaken,
        rounds=tuple(len(played.records) for played in runs),
        spent=tuple(allowance.of(played.records) / allowance.amount for played in runs) if allowance else (),
        fall=_mean(known) if known and len(known) == len(falls) and together else None,
        length=_mean(moved) if moved else None,
        evaluated=runs[0].last.evaluated or "",
        **{cost: _mean([played.total(cost) for played in runs]) for cost in costs},
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
