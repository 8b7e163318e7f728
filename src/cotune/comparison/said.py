"""What a comparison comes to in sentences, how to read its tables, and how numbers stand in both."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cotune.comparison.allowance import WORDS
from cotune.comparison.measure import EARLY, Measured, Pair
from cotune.core.record import SHARES
from cotune.diagnose.paired import RESAMPLES

NOTHING = "no difference seen"
WEAK = "not after Holm's correction"
_GLOBAL = "global theta"  # as records call the one model of all


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
            f"{better.ours} above {better.theirs} by {amount(measured, better.gain).lstrip('+')} "
            f"{interval(measured, better)} · Holm p {better.holm:.2g} · in {agreeing} of {len(better.by_seed)} seeds"
            f"{f' · McNemar {discordant(better)}' if better.discordant else ''}"
        )
    for what, pairs in ((WEAK, weak), (NOTHING, unseen)):
        lines += [f"{what}: {'; '.join(pairs)}"] if pairs else []
    return lines


def notes(measured: Measured) -> list[str]:
    """How to read the tables."""
    question, pairs = measured.question, len(measured.pairs)
    unit = "percentage points" if question.metric in SHARES else f"units of {question.metric}, lower is better"
    sizes = {row.label: size(measured, measured.pair(row.label, question.reference)) for row in measured.figures}
    smallest = ", ".join(f"{seen} ({label})" for label, seen in sizes.items() if seen != "-")
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
    if any(pair.discordant for pair in measured.pairs):
        lines.append(
            f"McNemar: the test rows that a row alone has right, those that {question.reference} alone has right, and "
            "the p-value, not corrected. A test row of several seeds counts once, for whoever has it right under more."
        )
    if not measured.searches and not measured.lengths:
        lines.append(
            "search: none, for any row. Learning rates are as they were given, and may suit a row or not (--sweep)."
        )
    lines += [*_spending(measured), *_settling(measured), *_lengths(measured)]
    if not measured.matched:
        lines.append(
            "the task scores parts of rows: each is taken as independent, also of the same row or another seed."
        )
    lines += [f"{label}: {_alone(measured, label)}" for label in question.alone]
    own = [row for row in measured.figures if row.label not in question.alone and row.evaluated not in ("", _GLOBAL)]
    lines += [f"{row.label}: its score is the {row.evaluated}." for row in own]
    lines += [f"{row.label}, drop: {row.stays}." for row in measured.figures if row.drop is not None and row.stays]
    lines += _alike(measured)
    lines += [
        f"{row.label}: its model does not take {row.untaken} of the test rows of all seeds together, which are too "
        "long for it; its score is over the others, and so is every gain over it."
        for row in measured.figures
        if row.untaken
    ]
    missing = ", ".join(f"{row.label} {row.missing}" for row in measured.figures if row.missing)
    return [*lines, *([f"replies that did not come or did not count: {missing}."] if missing else [])]


def _alike(measured: Measured) -> list[str]:
    """The rows that score every test row as another does, each such crowd once."""
    crowds: list[list[str]] = []
    for pair in measured.pairs:
        if pair.alike:
            crowd = next((crowd for crowd in crowds if pair.ours in crowd or pair.theirs in crowd), None)
            if crowd is None:
                crowds.append([pair.ours, pair.theirs])
            else:
                crowd += [label for label in (pair.ours, pair.theirs) if label not in crowd]
    told = [f"{first} scores every test row as {others[0]} does." for first, *others in crowds if len(others) == 1]
    return [*told, *(f"{', '.join(crowd)} score every test row alike." for crowd in crowds if len(crowd) > 2)]


def _spending(measured: Measured) -> list[str]:
    """What the budget is, who stopped at it, and who ran out of rounds before."""
    question = measured.question
    if question.allowance is None:
        return []
    most = question.ground.federation.rounds
    told = ", ".join(f"{row.label} {spread([100 * share for share in row.spent])} %" for row in measured.figures)
    lines = [
        "budget: a run stops before a round as dear as its dearest one would spend more than "
        f"{question.allowance.amount:.15g} {WORDS[question.allowance.what]}; a round that comes out dearer, and is too "
        "much, is left out. Rounds differ by row; every row is scored, and every pair tested, at the last round that "
        f"was paid for. Spent: {told}."
    ]
    short = [row.label for row in measured.figures if row.label not in question.alone and max(row.rounds) == most]
    if short:
        lines.append(f"all {most} rounds were within the budget, and more might have been: {', '.join(short)}.")
    if question.alone and question.allowance.what == "bytes":
        lines.append(f"{', '.join(question.alone)}: steps cost no bytes; they are those of all {most} rounds.")
    return lines


def _lengths(measured: Measured) -> list[str]:
    """What one length is, and who is not at it."""
    if not measured.lengths:
        return []
    apart = [row.label for row in measured.figures if row.label not in measured.lengths]
    missed = [label for label, one in measured.lengths.items() if not one.matched.reached]
    own = f" {', '.join(apart)}: no such length, and the learning rate stays." if apart else ""
    told = f" Not within 10 % of it: {', '.join(missed)}." if missed else ""
    return [
        "length: of the update, √Σ ‖s B A‖² over all layers, from the start to the last round, mean over seeds. Rows "
        f"are compared at learning rates at which they are equally long on the search's seed.{told}{own}"
    ]


def _settling(measured: Measured) -> list[str]:
    """Who was still getting better, and by which rule."""
    rule = f"the loss on held-back rows fell by more than {100 * EARLY:g} % over the last quarter of the rounds"
    falls = {row.label: row.fall for row in measured.figures}
    lines = []
    if measured.early:
        told = ", ".join(f"{label} {100 * (falls[label] or 0):.1f} %" for label in measured.early)
        lines.append(f"early: {rule}: {told}. More rounds may change the table.")
    if measured.unsettled:
        who = ", ".join(measured.unsettled)
        lines.append(f"early is not known, as no earlier round was scored on clients' held-back rows: {who}.")
    return lines


def _alone(measured: Measured, label: str) -> str:
    """What a row that never aggregates was given, beside the others."""
    steps = {row.label: row.client_steps for row in measured.figures}
    others = next((count for name, count in steps.items() if name not in measured.question.alone), None)
    said = f"one round of every client by itself, {steps[label]:g} client-steps"
    if others is None:
        return f"{said}."
    same = steps[label] == others
    told = "as the other rows" if same else f"rounded to whole steps from the {others:g} of the other rows"
    if measured.question.allowance is not None:
        told = "within the budget, and at most those of all rounds"
    return f"{said}, {told}; its score is the mean over the clients' own models."


def amount(measured: Measured, value: float) -> str:
    """A gain: in percentage points for a share, in its own unit otherwise."""
    value += 0.0  # no −0
    return f"{100 * value:+.1f}" if measured.question.metric in SHARES else f"{value:+.4f}"


def interval(measured: Measured, pair: Pair) -> str:
    """`[low, high]` of a gain."""
    return f"[{amount(measured, pair.low)}, {amount(measured, pair.high)}]"


def size(measured: Measured, pair: Pair | None) -> str:
    """The detectable gain; rows that score everything alike say nothing about what could be seen."""
    known = pair is not None and math.isfinite(pair.detectable) and not pair.alike
    return amount(measured, pair.detectable).lstrip("+") if pair and known else "-"


def discordant(pair: Pair | None) -> str:
    """`12:3, p 0.035`: the rows that one alone, and the other alone, has right."""
    apart = pair and pair.discordant
    return f"{apart.ours}:{apart.theirs}, p {apart.p:.2g}" if apart else "-"


def spread(values: Sequence[float]) -> str:
    """`7`, or `5 to 7` where seeds differ."""
    ends = dict.fromkeys(f"{value:.0f}" for value in (min(values), max(values))) if values else {"-": None}
    return " to ".join(ends)
