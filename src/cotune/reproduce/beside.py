"""The paper's tables as it printed them, with what it left out: questions, chance and intervals."""

from __future__ import annotations

from typing import Any

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
