"""Zeroth-order: loss for FLOPs and bytes, the gradient's energy by half, and what became of the scalars."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from cotune.core.errors import Code
from cotune.report import series
from cotune.report.html import Html, table
from cotune.report.pages.convergence import line
from cotune.report.pages.memory import layout
from cotune.report.pages.memory import line as by_round
from cotune.report.plot import Choice, Columns, Option, Page, Plot, when
from cotune.report.shown import Shown

KINDS = ("zo", "split-zo")
LOSSES = {"loss": "Loss on test rows", "train_loss": "Mean training loss"}
RATIO, SUGGESTED, CUT = "energy_ratio", "suggested_again", "cut_slopes"
PARTS = {RATIO: "Energy behind over in front", SUGGESTED: "Suggested P_s"}
REFUSED = (Code.SCALAR, Code.SEED, Code.NONFINITE, Code.SHAPE, Code.DTYPE, Code.KEYS)


def zeroth_order(runs: Sequence[Shown]) -> Page | None:
    """Nothing where no client looks along directions; the other runs of a report are drawn beside those that do."""
    ours = [run for run in runs if run.rounds and _optimizers(run)]
    if not ours:
        return None
    columns, which = Columns(), series.which(runs)
    blocks: list[Html | Plot] = [*_losses(runs, columns), *_energies(ours, which, columns)]
    blocks += [_scalars(ours), _checks(ours)]
    return Page("zeroth-order", "Zeroth-order", blocks, columns, (which,))


def _optimizers(run: Shown) -> list[tuple[str, Mapping[str, Any]]]:
    """(whose, fields) of every zeroth-order optimizer: the method's, and those of groups."""
    method, federation = (run.experiment.get(name, {}) for name in ("method", "federation"))
    found = [("all clients", method.get("optimizer") or {})]
    found += [(group.get("match", ""), group.get("optimizer") or {}) for group in federation.get("groups", ())]
    return [(whose, dict(fields)) for whose, fields in found if fields.get("kind") in KINDS]


def _losses(runs: Sequence[Shown], columns: Columns) -> list[Plot]:
    """A line for each run that has the loss, over what it had spent."""
    every = series.by_round(runs)
    values = {name: every[name] for name in LOSSES if name in every}
    if not values:
        return []
    for run in runs:
        columns |= series.columns(run, values)
    axes = [option for option in series.axes(runs) if option.value in ("flops", "bytes")]
    shown = Choice("spent_loss", "Show", [Option(name, LOSSES[name]) for name in values])
    over = Choice("spent", "Over", axes)
    traces = [line(run, f"{run.key}/x/{{spent}}", f"{run.key}/{{spent_loss}}") for run in runs]
    rows = []
    for run in runs:
        spent = series.spent(run)
        for i, record in enumerate(run.rounds):
            used = [spent[axis.value][i] for axis in axes]
            rows.append([run.label, record.round, *used, *(value(record) for value in values.values())])
    heads = ("Run", "Round", *(f"{axis.label} so far" for axis in axes), *(LOSSES[name] for name in values))
    return [
        Plot(
            id="spent",
            title="Loss for what was spent",
            says="FLOPs are the matrix products of all clients' training; drawing directions is not among them. Bytes "
            "are training messages both ways. A run that sends scalars is far to the left over bytes, and far to the "
            "right over FLOPs, of one that has gradients.",
            figures={"": {"data": traces, "layout": {"height": 420, "yaxis": {"title": {"text": "Loss"}}}}},
            choices=(shown, over),
            tables=(table("Loss for what was spent", heads, rows),),
        )
    ]


def _energies(runs: Sequence[Shown], which: Choice, columns: Columns) -> list[Plot]:
    """R and the suggested P_s by round; nothing where no run is in halves."""
    told = [run for run in runs if RATIO in series.diagnostics([run])]
    if not told:
        return []
    figures, tables = {}, []
    for run in told:
        columns[f"{run.key}/rounds"] = [record.round for record in run.rounds]
        for name in PARTS:
            found = series.finite(record.diagnostics.get(name) for record in run.rounds)
            columns[f"{run.key}/zeroth/{name}"] = found
        data = [
            {**by_round(run, text, slot, f"{run.key}/zeroth/{name}"), "when": {"energy": name}}
            for slot, (name, text) in enumerate(PARTS.items())
        ]
        figures[run.key] = {"data": data, "layout": layout(run, "", "tozero")}
        rows = [[r.round, *(r.diagnostics.get(name) for name in PARTS)] for r in run.rounds]
        tables.append(table(f"Energies of {run.label}", ("Round", *PARTS.values()), rows, data_when=when(run=run.key)))
    options = [Option(name, text, {"yaxis.title.text": text}) for name, text in PARTS.items()]
    return [
        Plot(
            id="energies",
            title="Where the gradient is",
            says="R, estimated from the scalars themselves: the mean square of the back half's slopes over that of the "
            "front half's. P_s is how many directions behind for each side of one in front would cost least, were "
            "passes as costly as their half is large. Few scalars a round make both rough.",
            figures=figures,
            by="run",
            choices=(Choice("energy", "Show", options),),
            follows=(which,),
            tables=tables,
        )
    ]


def _scalars(runs: Sequence[Shown]) -> Html:
    """How many slopes each block has, and what a client's message of them carries."""
    rows: list[list[object]] = []
    for run in runs:
        sent = [line.payload_bytes["scalars"] for line in run.ledger if "scalars" in line.payload_bytes]
        each = " to ".join(f"{size:,}" for size in sorted({min(sent), max(sent)})) if sent else None
        for whose, fields in _optimizers(run):
            for block, count in blocks(fields).items():
                rows.append([run.label, whose, block, count, fields.get("direction"), each])
    heads = ("Run", "Whose", "Block", "Slopes a step", "Along", "Scalars of a message, bytes")
    return table("Scalars by block", heads, rows)


def blocks(fields: Mapping[str, Any]) -> dict[str, int]:
    """Block -> how many slopes a step sees of it: P, or P₁ and P₂ = 2 P₁ P_s (P₁ P_s where z₂ is shared)."""
    directions = int(fields.get("directions", 1))
    if fields.get("kind") != "split-zo":
        return {"all": directions}
    again = int(fields.get("again", 1)) * (1 if fields.get("share_z2") else 2)
    return {"front": directions, "back": directions * again}


def _checks(runs: Sequence[Shown]) -> Html:
    """What was refused, and whether every client held the theta that the server did."""
    rows: list[list[object]] = []
    for run in runs:
        dropped = Counter[str]()
        for record in run.rounds:
            for code, clients in record.cohort.dropped.items():
                dropped[code] += len(clients)
        replies = sum(len(record.cohort.selected) for record in run.rounds)
        refused = sum(dropped[code.value] for code in REFUSED)
        cut = [record.diagnostics[CUT] for record in run.rounds if CUT in record.diagnostics]
        other, last = dropped[Code.BASE.value], run.rounds[-1].theta_sha256
        same = f"every time, in {replies} messages" if not other else f"not in {other} of {replies} messages"
        rows.append([run.label, refused, int(sum(cut)) if cut else None, same, last[:16]])
    heads = ["Run", "Replies refused for their scalars", "Slopes cut at the limit"]
    heads += ["Clients' theta has the server's hash", "Hash of the last theta"]
    return table("Checks of scalars and replay", heads, rows)
