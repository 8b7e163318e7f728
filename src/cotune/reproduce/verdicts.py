"""The three verdicts on Subspace-Reg, in words that the numbers choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cotune.reproduce import tables
from cotune.reproduce.quadratic import FITTED
from cotune.reproduce.ranks import Correlation

Interval = tuple[float, float]
NEAR = 0.1  # a slope this near to −2 is that of 1/mu²


def penalty(pairs: Sequence[tables.Json], labels: Sequence[str], none: str) -> list[str]:
    """Does the penalty add anything beyond an orthonormal B? A sentence a strength, and one for all of them."""
    found = {label: tables.between(pairs, label, none) for label in labels}
    said = [tables.verdict(f"Accuracy with {label} is above that with {none}", pair) for label, pair in found.items()]
    seen = {f"{label}{_on(pair)}": pair["gain"] for label, pair in found.items() if pair is not None and pair["seen"]}
    above, below = ([where for where, gain in seen.items() if sign * gain > 0] for sign in (1, -1))
    parts = [
        f"it is seen to {what} at {', '.join(where)}" for what, where in (("add", above), ("cost", below)) if where
    ]
    whole = " and ".join(parts) if parts else f"no strength is told apart from {none} on these rows and seeds"
    return [f"Verdict 1, does the penalty add anything beyond an orthonormal B: {whole}.", *said]


def _on(pair: tables.Json) -> str:
    """That other seeds might say otherwise, where they might."""
    ends = tables.over_seeds(pair["by_seed"])
    return "" if ends is not None and not ends[0] <= 0 <= ends[1] else " (on these seeds)"


def overlap(none: Sequence[float], strongest: Sequence[float], nothing: float, averaged: float, label: str) -> str:
    """What overlap owes to data and to the penalty: without a penalty, with the strongest, and without data.

    Args:
        none: by seed, with mu = 0.
        strongest: by seed, with the largest mu.
        nothing: without data.
        averaged: of the row that averages factors.
        label: of the strongest.
    """
    plain = sum(none) / len(none)
    apart = tables.over_seeds([theirs - ours for ours, theirs in zip(none, strongest, strict=True)])
    least = min(plain, nothing)
    data = (
        "Random updates leave as much of it as training does: it needs no data"
        if nothing >= plain
        else f"Training leaves {plain - nothing:.5f} more of it than random updates do"
    )
    rest = (
        ""
        if least <= averaged
        else f", and either is above what averaging factors has at its best rate, {averaged:.5f}"
    )
    pull = "the penalty's share of it was not measured"
    if apart is not None:
        word = "raises it" if apart[0] > 0 else "lowers it" if apart[1] < 0 else "is not seen to change it"
        pull = f"{label} {word}, by [{apart[0]:+.5f}, {apart[1]:+.5f}] over seeds"
    return (
        f"Overlap is {plain:.5f} with mu = 0, and {nothing:.5f} in a simulation without data, of updates as long. "
        f"{data}{rest}; {pull}."
    )


def predictors(found: Mapping[str, Correlation], ahead: Mapping[str, Correlation], which: str) -> str:
    """Does overlap predict accuracy better than the others do?"""
    told = "; ".join(f"{name} {shown(one)}" for name, one in found.items())
    words = {1: "better", -1: "worse", 0: "not told apart"}
    compared = "; ".join(f"{words[one.side]} against {name}, {shown(one)}" for name, one in ahead.items())
    any_ = [name for name, one in found.items() if one.side]
    alone = "" if any_ else " No measure is seen to go with accuracy at all."
    return f"{which}: rank correlation with accuracy: {told}. Overlap: {compared}.{alone}"


def predicting(aheads: Sequence[Mapping[str, Correlation]], cosines: Sequence[str]) -> str:
    """The same in one line, over all tables."""
    sides = [found[name].side for found in aheads for name in cosines]
    if all(side > 0 for side in sides):
        said = "yes, in both tables"
    elif all(side < 0 for side in sides):
        said = "no, it predicts worse in both tables"
    elif any(side > 0 for side in sides) and not any(side < 0 for side in sides):
        said = "in part: better than some cosines, and not told apart from the others"
    elif any(side < 0 for side in sides) and not any(side > 0 for side in sides):
        said = "no: worse than some cosines, and not told apart from the others"
    else:
        said = "not seen" if not any(sides) else "not settled: better in one place and worse in another"
    return f"Verdict 2, does overlap predict accuracy better than the cosines: {said}."


def falls(slope: float, interval: Interval | None) -> str:
    """What a slope of log ‖∇L‖² against log mu means."""
    if interval is None:
        return "one draw tells no interval"
    low, high = interval
    if low <= -2 <= high or abs(slope + 2) <= NEAR:
        return "as 1/mu²"
    if high < 0:
        return "it falls, but slower than 1/mu²" if slope > -2 else "it falls faster than 1/mu²"
    return "it rises" if low > 0 else "no trend"


def bound(said: Mapping[str, str]) -> str:
    """Does the bound's term show? In one line, from what each case came to."""
    as_told = [case for case, words in said.items() if words == "as 1/mu²"]
    others = "; ".join(f"{case}: {words}" for case, words in said.items() if case not in as_told)
    if len(as_told) == len(said):
        whole = "yes, in every case"
    elif as_told:
        whole = f"yes for {', '.join(as_told)}; otherwise not ({others})"
    else:
        whole = f"no ({others})"
    return f"Verdict 3, does the bound's 1/mu² term show on a quadratic, from mu = {FITTED:g} on: {whole}."


def shown(one: Correlation) -> str:
    """A correlation with its interval."""
    if one.value is None:
        return "– (it does not vary)"
    ends = "" if one.low is None or one.high is None else f" [{one.low:+.2f}, {one.high:+.2f}]"
    return f"{one.value:+.2f}{ends}"
