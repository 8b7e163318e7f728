"""What one run of a comparison is: its experiment, its folder, its cost, and the rows that it was scored on."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cotune.comparison.allowance import Allowance, stopped
from cotune.core.contracts import ClientInfo, Row
from cotune.core.errors import Code, CotuneError
from cotune.core.record import RoundRecord
from cotune.experiment import Experiment
from cotune.method import Method
from cotune.store import Run


@dataclass(frozen=True)
class Crowd:
    """What a seed decides about the data.

    Attributes:
        clients: everyone, with how many rows each has.
        tests: a name for each test row, the same under every seed that tests on it.
        cells: the strata of each test row, any number.
    """

    clients: Sequence[ClientInfo]
    tests: Sequence[str]
    cells: Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class Played:
    """One run of a row, and what it may spend."""

    experiment: Experiment
    run: Run
    allowance: Allowance | None = None

    @cached_property
    def records(self) -> list[RoundRecord]:
        """Its rounds; of what it may spend, those up to the last scored one within that."""
        rounds = self.run.rounds
        return rounds if self.allowance is None else self.allowance.within(rounds)

    @property
    def ended(self) -> bool:
        """Whether it came to its end: its last round, or the last that it could pay for."""
        return self.run.status == "finished" or (
            self.allowance is not None and stopped(self.run.folder, self.allowance)
        )

    @property
    def fall(self) -> float | None:
        """How much the loss on the clients' held-back rows fell over the last quarter of the rounds, as a share of it.

        From the last round that was scored before that quarter, scaled to a quarter; None where there is none.
        """
        losses = {record.round: _held_back(record, "loss") for record in self.records}
        scored = {round_: sum(found) / len(found) for round_, found in losses.items() if found}
        end = max(scored, default=0)
        start = max((round_ for round_ in scored if round_ <= 0.75 * end), default=0)
        if not start or not scored[start] > 0:
            return None
        return (1 - scored[end] / scored[start]) * (end / 4) / (end - start)

    @cached_property
    def about(self) -> dict[str, Any]:
        """What it ran on."""
        return self.run.about

    @property
    def last(self) -> RoundRecord:
        """The round that is scored."""
        return self.records[-1]

    @property
    def scores(self) -> dict[str, list[float]]:
        """Metric -> the score of every test row."""
        return self.run.scores(self.last.round)

    def tested(self, metric: str, rows: int) -> Sequence[int] | None:
        """The number of the test row behind each score; None where a task scores parts of rows.

        Args:
            metric: of the scores.
            rows: how many test rows there are; a run whose model does not take all of them says which it took.
        """
        scored, taken = len(self.scores[metric]), self.about["test"].get("sources")
        if taken is None:
            return range(rows) if scored == rows else None
        return taken if len(taken) == scored else None

    @property
    def client_steps(self) -> int:
        """The steps of every client whose reply counted."""
        rows = {client: info["rows"] for client, info in self.about["clients"].items()}
        method, federation = self.experiment.method, self.experiment.federation
        counted = (client for record in self.records for client in record.cohort.accepted)
        return sum(federation.method_of(client, method).budget.count(rows[client]) for client in counted)

    @property
    def missing(self) -> int:
        """How many replies did not come or did not count."""
        return sum(len(record.cohort.selected) - len(record.cohort.accepted) for record in self.records)

    def total(self, field: str) -> float:
        """The sum of a field over all rounds."""
        return float(sum(getattr(record, field) for record in self.records))

    def federated(self, metric: str) -> list[float]:
        """A metric of the aggregated model, as each client would use it, on the rows that the client holds back."""
        return _held_back(self.last, metric)

    def drops(self, metric: str) -> list[float]:
        """The drops of the clients of the last cohort."""
        clients = [metrics[metric] for metrics in self.last.client_metrics.values() if metric in metrics]
        return [client.drop for client in clients if client.drop is not None]


def _held_back(record: RoundRecord, metric: str) -> list[float]:
    """A metric of a round's aggregated model on the rows of each client that holds some back; NaN for no number."""
    clients = [metrics[metric] for metrics in record.client_metrics.values() if metric in metrics]
    scores = [client.federated for client in clients if client.n]
    return [float("nan") if score is None else score for score in scores]


def rate(method: Method) -> float | None:
    """The learning rate of a method, where it has one."""
    lr = getattr(method.optimizer, "lr", None)
    return float(lr) if isinstance(lr, int | float) else None


def names(rows: Iterable[Row]) -> list[str]:
    """A name for each row: its content, and how many equal ones came before it."""
    before: Counter[str] = Counter()
    named = []
    for row in rows:
        text = json.dumps(row, sort_keys=True, default=str).encode("utf-8", "surrogatepass")
        content = hashlib.sha256(text).hexdigest()
        named.append(f"{content}/{before[content]}")
        before[content] += 1
    return named


def check_same(seed: int, runs: Mapping[str, Played]) -> None:
    """Refuse runs under one seed that were not given the same rows and the same frozen model.

    Raises:
        CotuneError: E_CONFLICT with two rows and what differs.
    """
    first = next(iter(runs))
    expected = _ground(runs[first])
    for label, played in runs.items():
        differing = [what for what, value in _ground(played).items() if value != expected[what]]
        if differing:
            raise CotuneError(
                Code.CONFLICT,
                f"rows '{first}' and '{label}' did not run on the same ground",
                where=f"seed {seed}",
                got=f"another {', another '.join(differing)}",
                fix="something changed between the runs: repeat them with --fresh",
            )


def _ground(played: Played) -> dict[str, Any]:
    about = played.about
    there, rows = about["data"].get("test", {}).get("rows", 0), about["experiment"]["evaluation"]["rows"]
    some = "sources" in about["test"]  # a model that does not take every row says which it took
    return {
        "number of test rows": min(there, rows or there) if some else about["test"]["rows"],
        "test split": about["data"].get("test_manifest"),
        "division among the clients": about["data"].get("manifest"),
        "frozen model": about["backbone_sha256"],
    }
