"""The page of `spzo-prompted`: what was predicted, what it took to reach one loss, and the paper's numbers beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cotune.core.record import Metric
from cotune.cuts import PEER
from cotune.reproduce.device import Device, Spent, order
from cotune.reproduce.page import Page, Titled
from cotune.reproduce.race import Curve, Ratio, goals, ratio, spent, verdict
from cotune.reproduce.spzo_rows import DECOMFL, FEDZO, LAYERS, LONGER, LORA, MEZO, POOR, SPZO, UNIFORM, ZEROTH
from cotune.reproduce.tables import over_seeds
from cotune.store import Table

Json = Mapping[str, Any]
PAPER_LEAST = 2.1  # times fewer FLOPs than the peers, the paper's lower end
PAPER_GAP = 4.0  # points below LoRA on RTE; on SST-2 it is less than one
ORDER = (LORA, SPZO, DECOMFL, FEDZO)


def curves(row: Json) -> list[Curve]:
    """One a seed."""
    return [Curve(tuple(f), tuple(v)) for f, v in zip(row["round_flops"], row["losses"], strict=True)]


def target(rows: Mapping[str, Json]) -> list[float]:
    """Under each seed, the lowest loss that every zeroth-order method reaches."""
    return goals([curves(rows[label]) for label in ZEROTH])


def page(told: Json, numbers: Json) -> Page:
    """All tables and verdicts, from the results alone."""
    rows, goal = told["rows"], target(told["rows"])
    size, seeds = told["size"], told["seeds"]
    blocks: list[str | Titled] = [
        "Real text and labels: passages of the King James Bible, whether from its poetry or from Kings and Chronicles "
        f"(chance {told['chance']:.3f}); {size['rows']:,} passages cut at {size['tokens']} tokens, {size['test']} of "
        f"them for tests, the rest dealt evenly to {size['clients']} clients, {size['cohort']} a round. The model is "
        "builtin:tiny-llama, 0.87 million parameters in four layers, pretrained on the same book without labels; all "
        "of it trains, with a new head.",
        f"Every row is given as many rounds as {size['passes']:g} passes of a batch of {size['batch']} through the "
        "model pay for (a first-order step counts as three), and chose among six settings by the loss on what clients "
        f"hold back, on a seed of its own; then ran under seeds {', '.join(map(str, seeds))}. FedZO takes DeComFL's "
        "rate, and the rows with one thing changed FedSPZO's: they have no search of their own; 'longer' has four "
        "times as many rounds. Learning rates fall linearly. The goal is, under each seed, the lowest loss that all "
        "four zeroth-order methods reach: "
        f"{', '.join(f'{loss:.3f}' for loss in goal)}.",
        _predicted(told, goal),
        *_claims(told, goal),
        _race(rows, goal, told["n"]),
        _ablations(rows, goal),
        *_device(told, goal),
        _search(rows),
        _published(numbers),
        Titled(
            "Experiments, one a seed", Table(("row", "hashes"), [[k, " ".join(v)] for k, v in told["hashes"].items()])
        ),
    ]
    return Page("FedSPZO: compute to the same loss", blocks)


def _ratio(rows: Mapping[str, Json], ours: str, theirs: str, goal: Sequence[float]) -> Ratio:
    return ratio(curves(rows[ours]), curves(rows[theirs]), goal)


def _predicted(told: Json, goal: Sequence[float]) -> Titled:
    rows, table = told["rows"], []
    for cut in told["cuts"]["cuts"]:
        label = {3: SPZO, 2: "cut 2", 1: POOR}.get(cut["layer"], "")
        measured = _ratio(rows, label, DECOMFL, goal) if label in rows else None
        cells = [cut["layer"], cut["energy_ratio"], cut["saving"], cut["again"], cut["saving_there"]]
        table.append([*cells, cut["saving_over_forward"], _figure(measured)])
    heads = ("cut", "R", "saving, P_s = 1", "P_s", "saving there", f"over forward, P = {PEER}", "measured over DeComFL")
    caption = (
        f"Predicted from exact gradients on {told['cuts']['batches']} batches before anything ran (saving: FLOPs of "
        "one precision over central differences of the whole model), and measured: FLOPs to the goal at P_s = 2"
    )
    return Titled(caption, Table(heads, table))


def _claims(told: Json, goal: Sequence[float]) -> list[str]:
    rows = told["rows"]
    predicted = {cut["layer"]: cut for cut in told["cuts"]["cuts"]}
    more = f"{PAPER_LEAST} times fewer FLOPs than"
    said = [
        verdict(f"FedSPZO needs {more} {peer}", _ratio(rows, SPZO, peer, goal), PAPER_LEAST)
        for peer in (DECOMFL, FEDZO, MEZO)
    ]
    poor, rich = (predicted[layer]["saving_over_forward"] for layer in (1, 3))
    claim = f"At cut 1, where {poor:.1f} is predicted against {rich:.1f} at cut 3, it needs {more} {DECOMFL}"
    said.append(verdict(claim, _ratio(rows, POOR, DECOMFL, goal), PAPER_LEAST))
    claim = "Cut 3 is at the goal for a tenth less than cut 1, or better"
    said.append(verdict(claim, _ratio(rows, SPZO, POOR, goal), 1.1))
    claim = "One learning rate for both halves costs a tenth more than one for each, or worse"
    said.append(verdict(claim, _ratio(rows, SPZO, UNIFORM, goal), 1.1))
    for label in (SPZO, LONGER):
        gap, low, high = rows[label]["behind_lora"]
        near = "within the paper's 4 points" if high <= PAPER_GAP else "farther than the paper's 4 points"
        said.append(f"{label}: {gap:.1f} points of accuracy below LoRA's [{low:.1f}, {high:.1f}], {near}.")
    return said


def _race(rows: Mapping[str, Json], goal: Sequence[float], n: int) -> Titled:
    table = []
    least = spent(curves(rows[LORA]), goal)
    for label in (SPZO, DECOMFL, FEDZO, MEZO, LORA, LONGER, POOR, UNIFORM):
        row, cost = rows[label], spent(curves(rows[label]), goal)
        value, low, high = row["accuracy"]
        gap, under, over = row["behind_lora"]
        cells = [label, row["setting"] or "–", row["rounds"], row["client_steps"], f"{row['flops'] / 1e9:.0f}"]
        cells += [f"{_last(row):.3f}", f"{value:.3f} [{low:.3f}, {high:.3f}]"]
        cells += ["–" if label == LORA else f"{gap:+.1f} [{under:+.1f}, {over:+.1f}]"]
        cells += ["never" if cost is None else f"{cost / 1e9:.1f}"]
        table.append([*cells, "–" if cost is None or not least else f"{cost / least:.1f}"])
    heads = ("row", "lr", "rounds", "client-steps", "GFLOP", "loss", "accuracy", "LoRA is ahead, points")
    caption = (
        "Every row after its last round, and what it took to the goal, mean over seeds; accuracy with the 95 % "
        f"interval over {n} test rows of all seeds. A row that is at the goal within its first round is there for as "
        "many GFLOP at most"
    )
    return Titled(caption, Table((*heads, "GFLOP to goal", "over LoRA's"), table))


def _ablations(rows: Mapping[str, Json], goal: Sequence[float]) -> Titled:
    table = []
    for label, row in rows.items():
        if label in (SPZO, LONGER, DECOMFL, FEDZO, MEZO, LORA):
            continue
        found = _ratio(rows, SPZO, label, goal)
        seeds = " ".join("–" if value is None else f"{value:.2f}" for value in found.by_seed)
        apart = [theirs[-1] - ours[-1] for theirs, ours in zip(row["losses"], rows[SPZO]["losses"], strict=True)]
        ends = over_seeds(apart)
        between = "–" if ends is None else f"[{ends[0]:+.3f}, {ends[1]:+.3f}]"
        table.append([label, _figure(found), seeds, f"{_last(row) - _last(rows[SPZO]):+.3f}", between])
    heads = ("row", "its FLOPs over FedSPZO's", "by seed", "final loss above FedSPZO's", "over seeds")
    return Titled("FedSPZO with one thing changed: FLOPs to the goal, and the loss at equal FLOPs", Table(heads, table))


def _last(row: Json) -> float:
    """The loss after the last round, mean over seeds."""
    return float(sum(losses[-1] for losses in row["losses"]) / len(row["losses"]))


def _device(told: Json, goal: Sequence[float]) -> list[str | Titled]:
    """Time of one client to the goal, with the published model's passes and bytes."""
    rows, size, device = told["rows"], told["size"], Device.model_validate(told["device"])
    table, hours = [], dict[str, float | None]()
    for label in ORDER:
        row, cost = rows[label], spent(curves(rows[label]), goal)
        hours[label] = None
        if cost is None:
            table.append([label, "never", "–", "–", "–"])
            continue
        steps = row["client_steps"] * cost / row["flops"] / size["cohort"]
        up, down = _bytes(label, row, told)
        each, rounds = told["published"]["step_flops"][label], steps / size["steps"]
        computing = device.seconds(Spent(steps * each, 0, 0)) / 3600
        sending = device.seconds(Spent(0, rounds * up, rounds * down)) / 3600
        hours[label] = computing + sending
        table.append([label, f"{steps:.0f}", *(f"{value:.3g}" for value in (computing, sending, computing + sending))])
    caption = (
        "Hours of one client if RoBERTa-large took as many steps to its goal as the model here does (16 × 256 tokens a "
        f"step; {device.flops / 1e9:.0f} GFLOP/s, {device.up / 1e6:g} Mbit/s up, {device.down / 1e6:g} Mbit/s down; "
        "where scalars go up, those of the cohort come down)"
    )
    return [Titled(caption, Table(("row", "steps", "computing", "sending", "hours"), table)), order(hours, ORDER)]


def _bytes(label: str, row: Json, told: Json) -> tuple[float, float]:
    """Bytes up and down of one client in a round, with the published model's numbers where tensors travel."""
    if label in (LORA, FEDZO):
        each = 4.0 * told["published"]["factors" if label == LORA else "numbers"]
        return each, each
    scalars = 4.0 * row["scalars_a_step"] * told["size"]["steps"]
    return scalars, scalars * told["size"]["cohort"]


def step_flops(forward: float, first: float) -> dict[str, float]:
    """Row -> FLOPs of a client's step on a model of which one pass costs `forward` and a LoRA step `first`."""
    behind = 1 / LAYERS
    return {
        LORA: first,
        SPZO: (2 * (1 - behind) + 8 * behind) * forward,
        DECOMFL: (PEER + 1) * forward,
        FEDZO: (PEER + 1) * forward,
    }


def _search(rows: Mapping[str, Json]) -> Titled:
    table = []
    for label, row in rows.items():
        if row["tried"]:
            tried = "; ".join(f"{k}: {'diverged' if v is None else f'{v:.3f}'}" for k, v in row["tried"].items())
            table.append([label, tried, row["setting"]])
    caption = "Loss on held-back rows on the tuning seed, by learning rate (front / back where there are two)"
    return Titled(caption, Table(("row", "tried", "chosen"), table))


def _published(numbers: Json) -> Titled:
    compute, memory, hours, gap = (numbers[name] for name in ("compute", "memory", "hours", "accuracy"))
    rows = [
        ["times less compute than DeComFL and FedZO", " to ".join(f"{v:g}" for v in compute["latest"])],
        ["times the compute of FedAvg(LoRA)", f"{compute['over_lora']:g}"],
        ["points below LoRA on SST-2, RTE", f"< {gap['sst2']:g}, about {gap['rte']:g}"],
        [f"memory, {memory['where']}", f"{memory['fedspzo']:g}; LoRA {memory['lora']:g}; full {memory['full']:g}"],
        [f"hours, {hours['where']}", "; ".join(f"{k} {v:g}" for k, v in hours.items() if k != "where")],
    ]
    return Titled("The paper", Table(("what", "paper"), rows))


def beside(numbers: Json, ours: Mapping[str, Mapping[str, Metric]]) -> Page:
    """The paper's numbers beside those of the published setting, by file."""
    rows = []
    for file, metrics in ours.items():
        metric = metrics.get("accuracy") or next(iter(metrics.values()))
        ends = (
            "–" if metric.low is None or metric.high is None else f"[{100 * metric.low:.1f}, {100 * metric.high:.1f}]"
        )
        rows.append([file, f"{100 * metric.value:.1f}", ends, metric.n, metric.chance])
    table = Titled("Ours", Table(("experiment", "accuracy %", "95 % interval", "n", "chance"), rows))
    return Page("FedSPZO: the paper's numbers and ours", [_published(numbers), table])


def _figure(found: Ratio | None) -> str:
    return "–" if found is None or found.value is None else f"{found.value:.2f}"
