"""How a row's factors lie to each other and how far they went, from the records of its runs and their adapters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cotune.comparison.lengths import length
from cotune.reproduce.page import Titled
from cotune.store import Run, Table

LENGTH, LOSS = "length", "loss"
# What diagnose/subspace.py tells of a round -> its heading; the floor of the same stands behind it.
FORMS: Mapping[str, str] = {
    "basis_overlap": "overlap, code's form",
    "basis_overlap_squared": "overlap, paper's squared form",
    "client_global_cosine": "client-global cosine",
    "pairwise_cosine": "pairwise cosine",
    "cancellation": "cancellation, absolute",
    "cancellation_increments": "cancellation of increments",
}
LOST: Mapping[str, str] = {"aggregation_gap": "aggregation gap", "truncation_tail": "tail energy"}
NORMS: Mapping[str, str] = {"norm_a": "‖A‖", "norm_b": "‖B‖", "norm_effective": "moved in the last round"}
Geometry = Mapping[str, Sequence[float | None]]


def measured(runs: Sequence[Run]) -> dict[str, list[float | None]]:
    """Name -> by seed: the numbers of the last round, its test loss, and the length of the whole update."""
    found: dict[str, list[float | None]] = {LENGTH: [length(run) for run in runs], LOSS: []}
    last = [run.rounds[-1] for run in runs]
    found[LOSS] = [record.global_metrics["loss"].value for record in last]
    floors = [f"{name}_floor" for name in FORMS if name != "pairwise_cosine"]  # its floor is 0
    for name in (*FORMS, *floors, *LOST, *NORMS):
        found[name] = [record.diagnostics.get(name) for record in last]
    return found


def mean(values: Sequence[float | None]) -> float | None:
    """Of what is there; None of nothing."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def forms(found: Mapping[str, Geometry], caption: str) -> Titled:
    """Row by measure, each above the floor that it has where nothing agrees."""
    rows = []
    for label, one in found.items():
        cells = [_floored(mean(one[name]), mean(one.get(f"{name}_floor", (0.0,)))) for name in FORMS]
        rows.append([label, *cells, *(_cell(mean(one.get(name, ()))) for name in LOST)])
    return Titled(caption, Table(("row", *FORMS.values(), *LOST.values()), rows))


def lengths(found: Mapping[str, Geometry], rates: Mapping[str, float], steps: int) -> Titled:
    """Row by learning rate, how far one entry can go in a round, and how long factors and updates are."""
    rows = [
        [label, f"{rates[label]:g}", f"{rates[label] * steps:g}"]
        + [_cell(mean(one[name])) for name in (*NORMS, LENGTH)]
        for label, one in found.items()
    ]
    columns = ("row", "learning rate", "rate × steps of a round", *NORMS.values(), "‖s B A‖ after training")
    caption = (
        "Lengths over all layers, mean over seeds; moved is ‖s B A − s B_0 A_0‖ of the round, and ‖s B A‖ is how far "
        "the weights ended from their start"
    )
    return Titled(caption, Table(columns, rows))


def _cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}" if abs(value) < 1 else f"{value:.3f}"


def _floored(value: float | None, floor: float | None) -> str:
    shown = "–" if value is None else f"{value:.5f}" if value > 0.9995 else f"{value:.4f}"
    return shown if floor is None else f"{shown} ({floor:.2f})"
