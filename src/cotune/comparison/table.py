"""A comparison as text and as plain values; no row stands above another without a difference that was seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from cotune.comparison.lengths import Lengthened
from cotune.comparison.measure import Figures, Measured, Pair
from cotune.comparison.said import NOTHING, WEAK, amount, discordant, interval, notes, size, spread, verdicts
from cotune.core.record import SHARES
from cotune.diagnose.paired import RESAMPLES, direction
from cotune.federation import Federation
from cotune.store import Table


def text(measured: Measured) -> str:
    """The tables, what they show, and how to read them."""
    blocks = [f"{_head(measured)}\n{_ground(measured)}", str(_quality(measured))]
    if measured.strata:
        said = f"{measured.question.metric} and gain over {measured.question.reference}, by stratum of the test rows"
        blocks.append(f"{said}\n{_strata(measured)}")
    blocks.append(str(_cost(measured)))
    if measured.searches:
        blocks.append(f"{_search_head(measured)}\n{_search(measured)}")
    if measured.lengths:
        blocks.append(f"{_lengths_head(measured)}\n{_lengths(measured)}")
    return "\n\n".join([*blocks, "\n".join(verdicts(measured)), "\n".join(notes(measured))])


def plain(measured: Measured) -> dict[str, Any]:
    """Everything that is printed, as JSON can say it."""
    question = measured.question
    reference, alone = question.reference, question.alone

    def gain(label: str, other: str | None) -> dict[str, Any] | None:
        pair = measured.pair(label, other) if other else None
        return None if pair is None else _plain(pair)

    shown = {
        "metric": question.metric,
        "higher_is_better": direction(question.metric) > 0,
        "seeds": question.numbers,
        "n": list(measured.n),
        "different_rows": measured.different,
        "matched_rows": measured.matched,
        "chance": measured.chance,
        "budget": None if question.allowance is None else asdict(question.allowance),
        "early": measured.early,
        "unsettled": measured.unsettled,
        "resamples": RESAMPLES,
        "reference": reference,
        "local": alone[0] if alone else None,
        "rows": [
            asdict(row)
            | {"gain": gain(row.label, reference), "gain_over_local": gain(row.label, alone[0] if alone else None)}
            for row in measured.figures
        ],
        "pairs": [_plain(pair) for pair in measured.pairs],
        "strata": [
            {**asdict(stratum), "pairs": [_plain(pair) for pair in stratum.pairs]} for stratum in measured.strata
        ],
        "search": {label: asdict(search) for label, search in measured.searches.items()},
        "lengths": {label: _lengthened(one) for label, one in measured.lengths.items()},
        "verdicts": verdicts(measured),
        "notes": notes(measured),
    }
    return {name: _finite(value) for name, value in shown.items()}


def _head(measured: Measured) -> str:
    question = measured.question
    seeds = ", ".join(map(str, question.numbers))
    n = (
        f"{measured.n[0]} test rows"
        if len(set(measured.n)) == 1
        else f"{min(measured.n)} to {max(measured.n)} test rows"
    )
    if question.seeds > 1:
        n = f"{n} a seed, {measured.different} {'different ones' if measured.matched else 'in all'}"
    better = "higher" if direction(question.metric) > 0 else "lower"
    chance = [f"chance {measured.chance:.3f}"] if measured.chance is not None else []
    counted = f"{question.seeds} {'seed' if question.seeds == 1 else 'seeds'}: {seeds}"
    budget = [f"budget {question.allowance} a run"] if question.allowance else []
    early = ["early"] if measured.early else ["not known whether early"] if measured.unsettled else []
    return " · ".join([f"{question.metric}, {better} is better", counted, n, *chance, *budget, *early])


def _ground(measured: Measured) -> str:
    """What all rows share."""
    ground = measured.question.ground
    task = [ground.task.kind, *([f"on {data}"] if (data := getattr(ground.task, "data", None)) else [])]
    synthetic = " (synthetic)" if measured.synthetic else ""
    cohort = ground.federation.cohort
    return " · ".join(
        [
            f"task {' '.join(task)}{synthetic}",
            f"backbone {ground.backbone.ref}",
            f"at most {ground.federation.rounds} rounds" if measured.question.allowance else _rounds(ground.federation),
            f"{cohort} clients a round" if cohort else "all clients in every round",
        ]
    )


def _rounds(federation: Federation) -> str:
    return f"{federation.rounds} {'round' if federation.rounds == 1 else 'rounds'}"


def _quality(measured: Measured) -> Table:
    question = measured.question
    reference, local = question.reference, next(iter(question.alone), None)
    apart = local if local != reference else None
    told = any(pair.discordant for pair in measured.pairs if reference in (pair.ours, pair.theirs))
    columns = ["row", question.metric, "95 % interval", f"gain over {reference}", *(["McNemar"] if told else [])]
    columns += ["seen", "can see"]
    rows = []
    for row in measured.figures:
        pair = measured.pair(row.label, reference)
        value, low, high = (_score(measured, x) for x in (row.value, row.low, row.high))
        cells = [row.label, value, f"[{low}, {high}]", _gain(measured, pair), *([discordant(pair)] if told else [])]
        cells += [_seen(pair), size(measured, pair)]
        if apart:
            cells.append(_gain(measured, measured.pair(row.label, apart)))
        drop = "-" if row.drop is None else f"{row.drop:+.1f}" if question.metric in SHARES else f"{row.drop:+.4f}"
        cells += [drop, "-" if row.worst_client is None else _score(measured, row.worst_client)]
        rows.append(cells)
    return Table([*columns, *([f"gain over {apart}"] if apart else []), "drop", "worst client"], rows)


def _strata(measured: Measured) -> Table:
    reference = measured.question.reference
    rows = []
    for row in measured.figures:
        cells = [row.label]
        for stratum in measured.strata:
            score = stratum.scores.get(row.label)
            cells.append("-" if score is None else _score(measured, score.value))
            cells.append(_gain(measured, stratum.pair(row.label, reference)))
        rows.append(cells)
    heads = [text for stratum in measured.strata for text in (f"{stratum.cell} (n {stratum.n})", "gain")]
    return Table(("row", *heads), rows)


def _cost(measured: Measured) -> Table:
    columns = ["row", "learning rate", "client-steps", "rounds", "up MB", "down MB", "GFLOP", "seconds", "peak MB"]
    rows = [_cost_cells(row) for row in measured.figures]
    if measured.lengths:
        columns.append("length")
        for cells, row in zip(rows, measured.figures, strict=True):
            cells.append("-" if row.length is None else f"{row.length:.3g}")
    return Table(columns, rows)


def _cost_cells(row: Figures) -> list[str]:
    return [
        row.label,
        "-" if row.lr is None else f"{row.lr:g}",
        f"{row.client_steps:g}",
        spread(row.rounds),
        f"{row.uplink_bytes / 1e6:.3f}",
        f"{row.downlink_bytes / 1e6:.3f}",
        f"{row.flops / 1e9:.4g}",
        f"{row.seconds:.1f}",
        f"{row.peak_bytes / 1e6:.0f}",
    ]


def _search_head(measured: Measured) -> str:
    question = measured.question
    where = f"{question.metric} on the clients' held-back rows, on seed {question.search_seed} alone"
    same = f"the budget {question.allowance}" if question.allowance else "the rounds and client-steps of the comparison"
    which = f"{len(question.sweep)} factors of its own rate" if question.relative else f"{len(question.sweep)} rates"
    equal = f"every row tries the same {which}, each with {same}"
    return f"search for the learning rate: {where}; {equal}; what it cost is not in the table above"


def _search(measured: Measured) -> Table:
    mark = "x" if measured.question.relative else ""
    rates = [f"{mark}{lr:g}" for lr in measured.question.sweep]
    rows = []
    for label, search in measured.searches.items():
        scores = [search.scores[f"{lr:g}"] for lr in measured.question.rates(label)]
        cells = [label, *("diverged" if score is None else _score(measured, score) for score in scores)]
        sent = (search.uplink_bytes / 1e6, search.downlink_bytes / 1e6)
        cost = [f"{search.client_steps}", *(f"{megabytes:.3f}" for megabytes in sent)]
        cost += [f"{search.flops / 1e9:.4g}", f"{search.seconds:.1f}", f"{len(search.scores)}"]
        rows.append([*cells, f"{search.chosen:g}", *cost])
    return Table(("row", *rates, "chosen", "client-steps", "up MB", "down MB", "GFLOP", "seconds", "tried"), rows)


def _lengths_head(measured: Measured) -> str:
    target = next(iter(measured.lengths.values())).matched.target
    rates = "best" if measured.searches else "own"
    return (
        f"learning rates for one length of update, {target:.3g}: the shortest of the rows at their {rates} rates, on "
        f"seed {measured.question.search_seed} alone; what the search cost is not in the tables above"
    )


def _lengths(measured: Measured) -> Table:
    rows = []
    for label, one in measured.lengths.items():
        tried = sorted(one.matched.tried.items())
        told = "; ".join(f"{lr:g}: {'diverged' if length is None else f'{length:.3g}'}" for lr, length in tried)
        ends = ["yes" if one.matched.reached else "no", f"{one.client_steps:g}", f"{one.seconds:.1f}"]
        rows.append([label, told, f"{one.matched.lr:g}", *ends])
    return Table(("row", "rate: length", "taken", "within 10 %", "client-steps", "seconds"), rows)


def _lengthened(one: Lengthened) -> dict[str, Any]:
    found, tried = one.matched, {f"{lr:g}": length for lr, length in one.matched.tried.items()}
    cost = {"seed": one.seed, "client_steps": one.client_steps, "seconds": one.seconds}
    return {"target": found.target, "lr": found.lr, "reached": found.reached, "tried": tried, **cost}


def _seen(pair: Pair | None) -> str:
    if pair is None:
        return "-"
    if not pair.seen:
        return WEAK if pair.off_zero else NOTHING
    return "better" if pair.gain > 0 else "worse"


def _gain(measured: Measured, pair: Pair | None) -> str:
    return "-" if pair is None else f"{amount(measured, pair.gain)} {interval(measured, pair)}"


def _score(measured: Measured, value: float) -> str:
    return f"{value:.3f}" if measured.question.metric in SHARES else f"{value:.4f}"


def _plain(pair: Pair) -> dict[str, Any]:
    return {**asdict(pair), "seen": pair.seen}


def _finite(value: Any) -> Any:
    """The value with what is no number as null, which JSON has."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(inner) for inner in value]
    return value
