"""The paper's tables as it printed them, with what it left out: questions, chance and intervals."""

from __future__ import annotations

import math
from typing import Any

from cotune.diagnose.interval import Z
from cotune.experiment import Experiment, differences
from cotune.reproduce.page import Titled
from cotune.reproduce.paper import wilson
from cotune.store import Run, Table

OURS = ("experiment", "accuracy %", "95 % interval", "n", "chance")
_BORING = frozenset({"name", "seeds"})


def needle(numbers: dict[str, Any]) -> Titled:
    """Table 2 of FedNL."""
    told = numbers["needle"]
    rows = []
    for name, row in told["rows"].items():
        low, high = wilson(row["average"], row["n"])
        clients = (f"{value:g}" for value in row["clients"])
        rows.append([name, *clients, f"{row['average']:g}", row["n"], f"[{low:.1f}, {high:.1f}]"])
    columns = ("paper", *told["clients"], "average", "n", "95 % interval")
    caption = (
        f"The paper's needles ({told['where']}), accuracy in %; chance {told['chance']:g}; n and intervals are ours: "
        "its columns are multiples of 1/25, or of 1/15 where the long split is missing"
    )
    return Titled(caption, Table(columns, rows))


def stream(numbers: dict[str, Any]) -> Titled:
    """Figure 5 of FedNL."""
    told = numbers["stream"]
    rows = [[name, f"{told[name]:+g}"] for name in ("FedAvg", "FedNL")]
    return Titled(f"The paper's streams ({told['where']}): {told['unit']}", Table(("paper", "%"), rows))


def mmlu(numbers: dict[str, Any]) -> list[str | Titled]:
    """The accuracies on MMLU, and what can be said of their differences."""
    told = numbers["mmlu"]
    rows = []
    for model, found in told["rows"].items():
        for name, (*clients, average) in found.items():
            cells = [_printed(share, n) for share, n in zip(clients, told["tests"], strict=True)]
            rows.append([model, name, *cells, _printed(average, told["n"])])
    heads = [f"{client} (n {n})" for client, n in zip(told["clients"], told["tests"], strict=True)]
    caption = (
        f"The paper's MMLU ({told['where']}), accuracy in %; chance {told['chance']:g}; intervals are ours: Wilson's, "
        f"95 %, of so many questions as printed, {told['n']} in all; the average is over domains"
    )
    return [Titled(caption, Table(("model", "paper", *heads, "average"), rows)), ahead(numbers)]


def ahead(numbers: dict[str, Any]) -> str:
    """By how much the paper's FedNL is ahead of its FedAvg, with the interval of two shares of different questions.

    d ± 1.96 √(p (1 − p) / n + q (1 − q) / n): unpaired, since the paper has no scores of single questions.
    """
    told = numbers["mmlu"]
    n, words = told["n"], []
    for model, found in told["rows"].items():
        if not {"FedNL", "FedAvg"} <= found.keys():
            continue
        ours, theirs = found["FedNL"][-1], found["FedAvg"][-1]
        half = Z * math.sqrt((ours * (100 - ours) + theirs * (100 - theirs)) / n)
        gap = ours - theirs
        words.append(f"{gap:+.1f} [{gap - half:+.1f}, {gap + half:+.1f}] on {model}")
    return f"In the paper FedNL is ahead of FedAvg by {' and '.join(words)} (points, unpaired 95 % interval, n {n})."


def hellaswag(numbers: dict[str, Any]) -> Titled:
    """The two tables of Subspace-Reg."""
    told = numbers["hellaswag"]
    names = ("best", "final", "loss", "cancellation", "client_global", "pairwise", "overlap")
    rows = []
    for model, found in told["rows"].items():
        for name, row in found.items():
            low, high = wilson(100 * row["final"], told["n"])
            rows.append([model, name, *(f"{row[one]:g}" for one in names), f"[{low:.1f}, {high:.1f}]"])
    caption = (
        f"The paper's tables, means of three seeds; chance {told['chance']:g}; the interval, in %, is ours: of the "
        f"last round and {told['n']} rows; best is the best round on the rows that are scored"
    )
    return Titled(caption, Table(("model", "paper", *names, "95 % interval"), rows))


def differing(published: Experiment, ours: Run) -> Titled:
    """Every setting in which a run of ours differs from the published experiment."""
    rows = []
    for line in differences(published.resolved(), ours.about["experiment"]):
        name, _, change = line.partition(": ")
        if name.partition(".")[0] not in _BORING:
            before, _, after = change.partition(" -> ")
            rows.append([name, before, after])
    return Titled("Every setting that differs", Table(("setting", "published", "here"), rows))


def _printed(percent: float, n: int) -> str:
    low, high = wilson(percent, n)
    return f"{percent:g} [{low:.1f}, {high:.1f}]"
