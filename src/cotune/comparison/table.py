"""A comparison as text and as plain values; no row stands above another without a difference that was seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from cotune.comparison.measure import Figures, Measured, Pair
from cotune.core.record import SHARES
from cotune.diagnose.paired import RESAMPLES, direction
from cotune.store import Table

NOTHING = "no difference seen"
WEAK = "not after Holm's correction"


def text(measured: Measured) -> str:
    """The tables, what they show, and how to read them."""
    blocks = [_head(measured), str(_quality(measured))]
    if measured.strata:
        said = f"{measured.question.metric} and gain over {measured.question.reference}, by stratum of the test rows"
        blocks.append(f"{said}\n{_strata(measured)}")
    blocks.append(str(_cost(measured)))
    if measured.searches:
        blocks.append(f"{_search_head(measured)}\n{_search(measured)}")
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
        "verdicts": verdicts(measured),
        "notes": notes(measured),
    }
    return {name: _finite(value) for name, value in shown.items()}


def verdicts(measured: Measured) -> list[str]:
    """A sentence for every difference that was seen, and a line for all pairs without."""
    lines: list[str] = []
    weak: list[str] = []
    unseen: list[str] = []
    for pair in measured.pairs:
        if not pair.seen:
            (weak if pair.off_zero else unseen).append(f"{pair.ours} and {pair.theirs}")
            continue
        better = pair if pair.gain > 0 else pair.turned()
        agreeing = sum(gain > 0 for gain in better.by_seed)
        lines.append(
            f"{better.ours} above {better.theirs} by {_amount(measured, better.gain).lstrip('+')} "
            f"{_interval(measured, better)} · Holm p {better.holm:.2g} · in {agreeing} of {len(better.by_seed)} seeds"
        )
    for what, pairs in ((WEAK, weak), (NOTHING, unseen)):
        lines += [f"{what}: {'; '.join(pairs)}"] if pairs else []
    return lines


def notes(measured: Measured) -> list[str]:
    """How to read the tables."""
    question, pairs = measured.question, len(measured.pairs)
    unit = "percentage points" if question.metric in SHARES else f"units of {question.metric}, lower is better"
    sizes = {row.label: _size(measured, measured.pair(row.label, question.reference)) for row in measured.figures}
    smallest = ", ".join(f"{size} ({label})" for label, size in sizes.items() if size != "-")
    lines = [
        f"can see: the smallest true gain over {question.reference} that these rows and seeds show four times in five "
        f"(two-sided 5 %, before Holm): {smallest or 'unknown'}; half of it needs four times the rows.",
        f"gain: in {unit}; above zero is better.",
        f"brackets: 95 % of {RESAMPLES} bootstrap resamples of the test rows, the same for every row of the table.",
        f"seen: the interval is off zero and the sign-flip p-value is at most 5 % after Holm's correction for "
        f"{pairs} {'pair' if pairs == 1 else 'pairs'}. The order of the rows is the order given.",
        "intervals are about other test rows, not other seeds: by_seed in table.json has the gain under each seed.",
        "drop and worst client: on the clients' held-back rows. MB are 10^6 bytes of training messages. Cost and drop "
        "are means over seeds; peak MB is the process's, which carries out the runs one after another.",
    ]
    if not measured.matched:
        lines.append(
            "the task scores parts of rows: each is taken as independent, also of the same row or another seed."
        )
    lines += [f"{label}: {_alone(measured, label)}" for label in question.alone]
    lines += [f"{pair.ours} scores every test row as {pair.theirs} does." for pair in measured.pairs if pair.alike]
    lines += [
        f"{row.label}: its model does not take {row.untaken} of the test rows of all seeds together, which are too "
        "long for it; its score is over the others, and so is every gain over it."
        for row in measured.figures
        if row.untaken
    ]
    missing = ", ".join(f"{row.label} {row.missing}" for row in measured.figures if row.missing)
    return [*lines, *([f"replies that did not come or did not count: {missing}."] if missing else [])]


def _alone(measured: Measured, label: str) -> str:
    """What a row that never aggregates was given, beside the others."""
    steps = {row.label: row.client_steps for row in measured.figures}
    others = next((count for name, count in steps.items() if name not in measured.question.alone), None)
    said = f"one round of every client by itself, {steps[label]:g} client-steps"
    if others is None:
        return f"{said}."
    same = steps[label] == others
    told = "as the other rows" if same else f"rounded to whole steps from the {others:g} of the other rows"
    return f"{said}, {told}; its score is the mean over the clients' own models."


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
    return " · ".join([f"{question.metric}, {better} is better", counted, n, *chance])


def _quality(measured: Measured) -> Table:
    question = measured.question
    reference, local = question.reference, next(iter(question.alone), None)
    apart = local if local != reference else None
    columns = ["row", question.metric, "95 % interval", f"gain over {reference}", "seen", "can see"]
    rows = []
    for row in measured.figures:
        pair = measured.pair(row.label, reference)
        value, low, high = (_score(measured, x) for x in (row.value, row.low, row.high))
        cells = [row.label, value, f"[{low}, {high}]", _gain(measured, pair), _seen(pair)]
        cells.append(_size(measured, pair))
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
    columns = ("row", "learning rate", "client-steps", "up MB", "down MB", "GFLOP", "seconds", "peak MB")
    return Table(columns, [_cost_cells(row) for row in measured.figures])


def _cost_cells(row: Figures) -> list[str]:
    return [
        row.label,
        "-" if row.lr is None else f"{row.lr:g}",
        f"{row.client_steps:g}",
        f"{row.uplink_bytes / 1e6:.3f}",
        f"{row.downlink_bytes / 1e6:.3f}",
        f"{row.flops / 1e9:.4g}",
        f"{row.seconds:.1f}",
        f"{row.peak_bytes / 1e6:.0f}",
    ]


def _search_head(measured: Measured) -> str:
    question = measured.question
    where = f"{question.metric} on the clients' held-back rows, on seed {question.search_seed} alone"
    return f"search for the learning rate: {where}; what it cost is not in the table above"


def _search(measured: Measured) -> Table:
    rates = [f"{lr:g}" for lr in measured.question.sweep]
    rows = []
    for label, search in measured.searches.items():
        scores = [search.scores[lr] for lr in rates]
        cells = [label, *("diverged" if score is None else _score(measured, score) for score in scores)]
        sent = (search.uplink_bytes / 1e6, search.downlink_bytes / 1e6)
        cost = [f"{search.client_steps}", *(f"{megabytes:.3f}" for megabytes in sent), f"{search.seconds:.1f}"]
        rows.append([*cells, f"{search.chosen:g}", *cost])
    return Table(("row", *rates, "chosen", "client-steps", "up MB", "down MB", "seconds"), rows)


def _seen(pair: Pair | None) -> str:
    if pair is None:
        return "-"
    if not pair.seen:
        return WEAK if pair.off_zero else NOTHING
    return "better" if pair.gain > 0 else "worse"


def _gain(measured: Measured, pair: Pair | None) -> str:
    return "-" if pair is None else f"{_amount(measured, pair.gain)} {_interval(measured, pair)}"


def _interval(measured: Measured, pair: Pair) -> str:
    return f"[{_amount(measured, pair.low)}, {_amount(measured, pair.high)}]"


def _amount(measured: Measured, value: float) -> str:
    """A gain: in percentage points for a share, in its own unit otherwise."""
    value += 0.0  # no −0
    return f"{100 * value:+.1f}" if measured.question.metric in SHARES else f"{value:+.4f}"


def _size(measured: Measured, pair: Pair | None) -> str:
    """The detectable gain; rows that score everything alike say nothing about what could be seen."""
    known = pair is not None and math.isfinite(pair.detectable) and not pair.alike
    return _amount(measured, pair.detectable).lstrip("+") if pair and known else "-"


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
