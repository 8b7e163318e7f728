"""What the runs of a comparison say: a figure for every row, and for every pair a gain with its interval."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cotune.comparison.play import Outcome
from cotune.comparison.played import Crowd, Played, rate
from cotune.comparison.question import Question
from cotune.comparison.search import Search
from cotune.core.errors import Code, CotuneError
from cotune.core.seeds import derive, numpy_generator
from cotune.diagnose.paired import Array, detectable, direction, holm, paired_bootstrap, sign_flip

ALPHA = 0.05


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
        ends = {"gain": -self.gain, "low": -self.high, "high": -self.low, "by_seed": turned}
        return replace(self, ours=self.theirs, theirs=self.ours, **ends)  # type: ignore[arg-type]


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
        worst_client: on its own held-back rows; None where nobody was asked.
        lr: the learning rate; None where the optimizer has none.
        client_steps: of all clients in all rounds.
        uplink_bytes: of training, all rounds.
        downlink_bytes: of training, all rounds.
        flops: of training, all rounds.
        seconds: of all rounds.
        peak_bytes: the largest of all rounds.
        missing: replies that did not come or did not count, of all seeds together.
    """

    label: str
    value: float
    low: float
    high: float
    by_seed: tuple[float, ...]
    drop: float | None
    worst_client: float | None
    lr: float | None
    client_steps: float
    uplink_bytes: float
    downlink_bytes: float
    flops: float
    seconds: float
    peak_bytes: float
    missing: int


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
    """

    question: Question
    figures: tuple[Figures, ...]
    pairs: tuple[Pair, ...]
    searches: Mapping[str, Search]
    n: tuple[int, ...]
    different: int
    matched: bool
    chance: float | None

    def pair(self, ours: str, theirs: str) -> Pair | None:
        """What one row gains over another; None for a row and itself."""
        for pair in self.pairs:
            if (pair.ours, pair.theirs) == (ours, theirs):
                return pair
            if (pair.theirs, pair.ours) == (ours, theirs):
                return pair.turned()
        return None


def measure(question: Question, outcome: Outcome) -> Measured:
    """Every figure of a comparison; every resample is of a derived seed.

    Raises:
        CotuneError: E_NONFINITE for a row whose scores are no numbers.
    """
    metric = question.metric
    scores = {label: _scores(label, runs, outcome.crowds, metric) for label, runs in outcome.runs.items()}
    draw = derive(question.ground.seeds.seed, "compare", "resamples")
    pairs = []
    for ours, theirs in itertools.combinations(scores, 2):
        gains = direction(metric) * (scores[ours] - scores[theirs])
        gain, low, high = paired_bootstrap(gains, numpy_generator(draw))
        p, by_seed = sign_flip(gains, numpy_generator(draw)), tuple(np.nanmean(gains, axis=0).tolist())
        pairs.append(Pair(ours, theirs, gain, low, high, p, 1.0, detectable(gains), by_seed))
    corrected = holm([pair.p for pair in pairs])
    first = outcome.runs[question.reference]
    chances = [played.last.global_metrics[metric].chance for played in first]
    return Measured(
        question=question,
        figures=tuple(_figures(label, outcome.runs[label], scores[label], question, draw) for label in scores),
        pairs=tuple(replace(pair, holm=p) for pair, p in zip(pairs, corrected, strict=True)),
        searches=outcome.searches,
        n=tuple(len(played.scores[metric]) for played in first),
        different=len(scores[question.reference]),
        matched=all(map(_matched, first, outcome.crowds, itertools.repeat(metric))),
        chance=None if None in chances else _mean([chance for chance in chances if chance is not None]),
    )


def _scores(label: str, runs: Sequence[Played], crowds: Sequence[Crowd], metric: str) -> Array:
    """(different test rows, seeds): the score of each row under each seed, NaN where the seed does not test on it."""
    by_seed: list[dict[str, float]] = []
    for played, crowd in zip(runs, crowds, strict=True):
        values = played.scores.get(metric, [])
        if not values or not all(map(math.isfinite, values)):
            what = f"row '{label}' has scores that are no numbers" if values else f"row '{label}' was not scored"
            fix = "leave it out, or lower its learning rate: finished runs are kept"
            raise CotuneError(Code.NONFINITE, what, where=f"{metric}, seed {played.experiment.seeds.seed}", fix=fix)
        split = played.about["data"].get("test_manifest", played.experiment.seeds.seed)
        named = crowd.tests if _matched(played, crowd, metric) else [f"{split}/{i}" for i in range(len(values))]
        by_seed.append(dict(zip(named, values, strict=True)))
    places = {name: i for i, name in enumerate(dict.fromkeys(name for scores in by_seed for name in scores))}
    table = np.full((len(places), len(by_seed)), np.nan)
    for seed, scores in enumerate(by_seed):
        table[[places[name] for name in scores], seed] = list(scores.values())
    return table


def _matched(played: Played, crowd: Crowd, metric: str) -> bool:
    return len(played.scores[metric]) == len(crowd.tests)


def _figures(label: str, runs: Sequence[Played], scores: Array, question: Question, draw: int) -> Figures:
    metric = question.metric
    value, low, high = paired_bootstrap(scores, numpy_generator(draw))
    worst: Callable[[Sequence[float]], float] = min if direction(metric) > 0 else max
    together = label not in question.alone
    drops = [_mean(drop) for drop in (played.drops(metric) for played in runs) if drop] if together else []
    clients = [worst(found) for found in (played.federated(metric) for played in runs) if found]
    costs = ("uplink_bytes", "downlink_bytes", "flops", "seconds")
    return Figures(
        label=label,
        value=value,
        low=low,
        high=high,
        by_seed=tuple(np.nanmean(scores, axis=0).tolist()),
        drop=_mean(drops) if drops else None,
        worst_client=_mean(clients) if clients else None,
        lr=rate(runs[0].experiment.method),
        client_steps=_mean([played.client_steps for played in runs]),
        peak_bytes=max(record.peak_bytes for played in runs for record in played.records),
        missing=sum(played.missing for played in runs),
        **{cost: _mean([played.total(cost) for played in runs]) for cost in costs},
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
