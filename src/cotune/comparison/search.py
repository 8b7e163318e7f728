"""The learning rate of a row, chosen on rows that are neither trained nor tested on, and what choosing it cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cotune.comparison.played import Played, rate
from cotune.core.errors import Code, CotuneError
from cotune.diagnose.paired import direction


@dataclass(frozen=True)
class Search:
    """How a row's learning rate was chosen, and what that cost.

    Attributes:
        seed: of the runs, which is none of the comparison's.
        scores: learning rate -> mean over clients of the metric on their held-back rows; None where training diverged.
        chosen: the best; of equal ones that of the lower loss, then the first.
        client_steps: of all runs together.
        seconds: of all runs together.
        uplink_bytes: of all runs together.
        downlink_bytes: of all runs together.
        flops: of training, all runs together.
    """

    seed: int
    scores: Mapping[str, float | None]
    chosen: float
    client_steps: int
    seconds: float
    uplink_bytes: int
    downlink_bytes: int
    flops: float


def choose(label: str, tried: Sequence[Played], metric: str) -> Search:
    """The learning rate that the clients' held-back rows like best.

    Args:
        label: of the row.
        tried: its runs, one a learning rate; one whose training fell apart has no score, and costs what it cost.
        metric: to choose by.

    Raises:
        CotuneError: E_CONFLICT when none has a score.
    """
    scores = [_held_back(one, metric) for one in tried]
    losses = [_held_back(one, "loss") for one in tried]
    known = [i for i, score in enumerate(scores) if not math.isnan(score)]
    if not known:
        what = f"row '{label}' has no score at any learning rate of the sweep"
        raise CotuneError(Code.CONFLICT, what, where="--sweep", fix="try smaller ones, and let clients hold rows back")
    best = max(known, key=lambda i: (direction(metric) * scores[i], -losses[i]))
    rates = [rate(one.experiment.method) or 0.0 for one in tried]
    return Search(
        seed=tried[best].experiment.seeds.seed,
        scores={f"{lr:g}": None if math.isnan(score) else score for lr, score in zip(rates, scores, strict=True)},
        chosen=rates[best],
        client_steps=sum(one.client_steps for one in tried),
        seconds=sum(one.total("seconds") for one in tried),
        uplink_bytes=int(sum(one.total("uplink_bytes") for one in tried)),
        downlink_bytes=int(sum(one.total("downlink_bytes") for one in tried)),
        flops=sum(one.total("flops") for one in tried),
    )


def _held_back(one: Played, metric: str) -> float:
    """The mean over clients on their held-back rows; NaN where training diverged or nothing is held back."""
    whole = one.ended and bool(one.records) and not any(record.abandoned for record in one.records)
    values = one.federated(metric) if whole else []
    return math.fsum(values) / len(values) if values else math.nan
