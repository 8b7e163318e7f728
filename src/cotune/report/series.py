"""What the records hold as numbers by round, under the names that a reader chooses from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from cotune.core.record import HEAD, SHARES, TAIL, ClientMetric, Metric, RoundRecord
from cotune.report.html import number, titled
from cotune.report.plot import Choice, Columns, Json, Option
from cotune.report.shown import Shown, counted

# Words in the names of metrics of which less is better; of any other, more is.
_LESS = ("loss", "perplexity", "cross_entropy", "nll", "error", "forgetting", "bits", "tied", "cut_short")
DROP, WORST = "drop in {}", "worst client's {}"
APART = {f"{{}} of the {stratum}": stratum for stratum in (HEAD, TAIL)}  # rows of common and of rare classes
GATE = "gate/"  # what a memory trainable tells of each layer; drawn on a page of its own
FLOOR = "_floor"  # ends the name of a level that another number is read against; drawn beside it

Value = Callable[[RoundRecord], float | None]


def less_is_better(metric: str) -> bool:
    """Whether a lower value of a metric is the better one."""
    return any(word in metric.lower() for word in _LESS)


def global_metrics(runs: Iterable[Shown]) -> list[str]:
    """The metrics of the test rows: first those that have a chance level."""
    found: dict[str, bool] = {}
    for run in runs:
        for record in run.rounds:
            for name, metric in record.global_metrics.items():
                found[name] = found.get(name, False) or metric.chance is not None
    return sorted(found, key=lambda name: not found[name])


def tested(record: RoundRecord) -> dict[str, Metric]:
    """Name -> what the test rows say: each metric over all of them, and its share of the head and of the tail alone."""
    apart = {
        form.format(name): cells[stratum]
        for name, cells in record.cells.items()
        for form, stratum in APART.items()
        if stratum in cells
    }
    return {**record.global_metrics, **apart}


def client_metrics(runs: Iterable[Shown]) -> list[str]:
    """The metrics of the clients' held-back rows, in the order of `global_metrics` where they are there too."""
    runs = list(runs)
    found = {
        name: None for run in runs for record in run.rounds for one in record.client_metrics.values() for name in one
    }
    order = global_metrics(runs)
    return sorted(found, key=lambda name: order.index(name) if name in order else len(order))


def which(runs: Sequence[Shown]) -> Choice:
    """One run of all."""
    return Choice("run", "Run", [Option(run.key, run.label) for run in runs])


def by_round(runs: Sequence[Shown]) -> dict[str, Value]:
    """Name -> its value in a record, for everything that can be drawn by round."""
    found: dict[str, Value] = {name: _tested(name) for name in global_metrics(runs)}
    found |= {name: _tested(name) for run in runs for record in run.rounds for name in tested(record)}
    if any(record.train_loss is not None for run in runs for record in run.rounds):
        found["train_loss"] = lambda record: record.train_loss
    for name in client_metrics(runs):
        found[DROP.format(name)] = _drop(name)
        found[WORST.format(name)] = _worst(name)
    for name in diagnostics(runs):
        if not name.startswith(GATE) and not name.endswith(FLOOR):
            found.setdefault(name, _diagnostic(name))
    return found


def diagnostics(runs: Iterable[Shown]) -> list[str]:
    """Every name under diagnostics, in the order in which the records bring them."""
    return list(dict.fromkeys(name for run in runs for record in run.rounds for name in record.diagnostics))


def _tested(name: str) -> Value:
    return lambda record: found[name].value if name in (found := tested(record)) else None


def _diagnostic(name: str) -> Value:
    return lambda record: record.diagnostics.get(name)


def _drop(name: str) -> Value:
    def mean(record: RoundRecord) -> float | None:
        drops = [one.drop for one in scored(record, name).values() if one.drop is not None]
        return sum(drops) / len(drops) if drops else None

    return mean


def _worst(name: str) -> Value:
    def worst(record: RoundRecord) -> float | None:
        values = [one.federated for one in scored(record, name).values() if one.federated is not None]
        return (max if less_is_better(name) else min)(values, default=None)

    return worst


def scored(record: RoundRecord, metric: str) -> dict[str, ClientMetric]:
    """Client -> its metric in a record, for clients with rows to score it on."""
    return {client: one[metric] for client, one in record.client_metrics.items() if metric in one and one[metric].n}


def last_scored(run: Shown, metric: str) -> tuple[RoundRecord, Metric] | None:
    """The last record with a metric of the test rows, or None."""
    found = (
        (record, record.global_metrics[metric]) for record in reversed(run.rounds) if metric in record.global_metrics
    )
    return next(found, None)


def finite(values: Iterable[float | None]) -> list[float | None]:
    """The values, with None for what JSON has no number for."""
    return [value if value is not None and math.isfinite(value) else None for value in values]


def spent(run: Shown) -> dict[str, list[float | None]]:
    """Axis -> what a run had used by the end of each round, of what its records count."""
    traffic = [record.uplink_bytes + record.downlink_bytes for record in run.rounds]
    flops = [counted(record, "flops") for record in run.rounds]
    axes: dict[str, list[float | None]] = {
        "round": [record.round for record in run.rounds],
        "bytes": list(accumulate(traffic)),
        "flops": list(accumulate(flops)) if any(flops) else [None] * len(flops),
        "seconds": finite(accumulate(record.seconds for record in run.rounds)),
    }
    return axes


def axes(runs: Sequence[Shown]) -> list[Option]:
    """What a curve can be drawn over."""
    axis = rounds_axis(runs)
    whole = {
        "xaxis.title.text": "Round",
        **{f"xaxis.{name}": axis[name] for name in ("tickformat", "dtick", "ticksuffix")},
    }
    plain = {"xaxis.tickformat": "~s", "xaxis.dtick": None, "hovermode": "closest", "hoverdistance": 20}
    options = [
        Option("round", "Round", {**whole, "hovermode": "x unified", "hoverdistance": -1}),
        Option(
            "bytes",
            "Bytes",
            {**plain, "xaxis.title.text": "Training bytes so far, up and down", "xaxis.ticksuffix": "B"},
        ),
    ]
    if any(counted(record, "flops") for run in runs for record in run.rounds):
        options.append(Option("flops", "FLOPs", {**plain, "xaxis.title.text": "FLOPs so far"}))
    seconds = {**plain, "xaxis.title.text": "Seconds so far", "xaxis.tickformat": ""}
    return [*options, Option("seconds", "Seconds", seconds)]


def rounds_axis(runs: Sequence[Shown]) -> Json:
    """An axis of whole rounds."""
    most = max((record.round for run in runs for record in run.rounds), default=1)
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, most) if most / step <= 12)
    return {"title": {"text": "Round"}, "tickformat": "d", "dtick": step, "ticksuffix": ""}


def is_share(name: str) -> bool:
    """Whether a metric is a share of rows, whose drop is in percentage points."""
    return name in SHARES


def options(names: Iterable[str]) -> list[Option]:
    """An option for each name."""
    return [Option(name, title(name)) for name in names]


def title(name: str) -> str:
    """A name for people, with its unit where that is not obvious."""
    points = any(name == DROP.format(share) for share in SHARES)
    return f"{titled(name)} (points)" if points else titled(name)


def columns(run: Shown, values: Mapping[str, Value]) -> Columns:
    """What curves of a run bind: axes, values, interval ends, chance, and a note for each point."""
    found: dict[str, Sequence[Any]] = {f"{run.key}/x/{axis}": spent_ for axis, spent_ in spent(run).items()}
    found[f"{run.key}/symbol"] = ["x" if record.abandoned else run.symbol for record in run.rounds]
    for name, value in values.items():
        found[f"{run.key}/{name}"] = finite(value(record) for record in run.rounds)
        metrics = [tested(record).get(name) for record in run.rounds]
        if any(metrics):
            for end in ("low", "high", "chance"):
                found[f"{run.key}/{name}/{end}"] = finite(getattr(metric, end, None) for metric in metrics)
        found[f"{run.key}/{name}/note"] = [
            note(metric, record) for metric, record in zip(metrics, run.rounds, strict=True)
        ]
    return found


def note(metric: Metric | None, record: RoundRecord) -> str:
    """What belongs to a point beside its value."""
    said = [f"{interval(metric)}, n = {metric.n:,}"] if metric else []
    return " · ".join([*said, *(["round abandoned"] if record.abandoned else [])])


def interval(metric: Metric) -> str:
    """The 95 % interval in words."""
    if metric.low is None or metric.high is None:
        return "one row tells no interval"
    return f"{number(metric.low)} to {number(metric.high)}"
