"""The tables of a page, from the table of a comparison and the records of its runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cotune.diagnose.interval import Z
from cotune.reproduce.page import Titled
from cotune.store import Run, Table

Json = Mapping[str, Any]
# The 97.5 % quantile of Student's t with 1, 2, … degrees of freedom.
_STUDENT = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788)
_OF_THE_MACHINE = frozenset({"seconds", "peak_bytes"})


def scores(found: Json) -> Titled:
    """Row by stratum: the mean with its interval, and the means under each seed."""
    strata = found["strata"]
    columns = ["row", *(f"{stratum['cell']} (n {stratum['n']})" for stratum in strata), "by seed, all rows"]
    rows = []
    for row in found["rows"]:
        cells = [row["label"]]
        for stratum in strata:
            score = stratum["scores"].get(row["label"])
            cells.append("–" if score is None else f"{score['value']:.3f} [{score['low']:.3f}, {score['high']:.3f}]")
        rows.append([*cells, " ".join(f"{value:.2f}" for value in row["by_seed"])])
    return Titled(
        "Accuracy, mean over seeds, with the 95 % interval over test rows; – is out of the model's reach",
        Table(columns, rows),
    )


def gains(found: Json, reference: str) -> Titled:
    """What a row gains over every other, by stratum, paired by test row, in percentage points."""
    strata = found["strata"]
    labels = [row["label"] for row in found["rows"] if row["label"] != reference]
    columns = ["over", *(stratum["cell"] for stratum in strata), "all rows", "Holm p", "by seed", "over seeds"]
    rows = []
    for label in labels:
        pairs = [between(stratum["pairs"], reference, label) for stratum in strata]
        whole = between(found["pairs"], reference, label)
        cells = [label, *(_gain(pair) for pair in (*pairs, whole))]
        if whole is None:
            rows.append([*cells, "–", "–", "–"])
            continue
        each = " ".join(f"{100 * gain:+.0f}" for gain in whole["by_seed"])
        rows.append([*cells, f"{whole['holm']:.2g}", each, _ends(over_seeds(whole["by_seed"]))])
    caption = (
        f"What {reference} gains, in percentage points, with the paired 95 % interval over test rows; over seeds: the "
        "95 % interval of the mean over training runs, by Student's t"
    )
    return Titled(caption, Table(columns, rows))


def verdict(claim: str, pair: Json | None) -> str:
    """A sentence: yes, no, or that it cannot be told, with the figure either way."""
    if pair is None:
        return f"{claim}: not measured."
    agreeing = sum(gain > 0 for gain in pair["by_seed"])
    said = "yes" if pair["seen"] and pair["gain"] > 0 else "no, the other way round" if pair["seen"] else "not seen"
    seeds = over_seeds(pair["by_seed"])
    settled = seeds is not None and not seeds[0] <= 0 <= seeds[1]
    said += "" if settled or said == "not seen" else " on these seeds, and others might say otherwise"
    over = f", over seeds {_ends(seeds)}" if seeds else ""
    return f"{claim}: {said}, {_gain(pair)} points{over}, in {agreeing} of {len(pair['by_seed'])} seeds."


def over_seeds(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean of runs under different seeds, by Student's t; None for one seed."""
    free = len(values) - 1
    if free < 1:
        return None
    mean = math.fsum(values) / len(values)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / free / len(values))
    # Past the table, the expansion in 1 / free, which is right to three digits after the point there.
    further = (Z**3 + Z) / (4 * free) + (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * free**2)
    t = _STUDENT[free - 1] if free <= len(_STUDENT) else Z + further
    return mean - t * spread, mean + t * spread


def between(pairs: Sequence[Json], ours: str, theirs: str) -> Json | None:
    """What one row gains over another; None where they were not compared."""
    for pair in pairs:
        if (pair["ours"], pair["theirs"]) == (ours, theirs):
            return pair
        if (pair["theirs"], pair["ours"]) == (ours, theirs):
            turned = {"gain": -pair["gain"], "low": -pair["high"], "high": -pair["low"], "ours": ours, "theirs": theirs}
            apart = pair.get("discordant")
            other = {"discordant": {"ours": apart["theirs"], "theirs": apart["ours"], "p": apart["p"]}} if apart else {}
            return {**pair, **turned, "by_seed": [-gain for gain in pair["by_seed"]], **other}
    return None


def shuffle(matrix: Json) -> Titled:
    """Whose local model on whose held-back rows, mean over seeds."""
    names = matrix["clients"]
    columns = ["model of", *(f"rows of {name}" for name in names), "keys of nobody"]
    rows = [
        [name, *(f"{value:.3f}" for value in matrix["held"][i]), f"{matrix['unseen'][i]:.3f}"]
        for i, name in enumerate(names)
    ]
    own, others = matrix["own"], matrix["others"]
    caption = (
        "Shuffled rules: accuracy of each client's local model (factors and rules) on each client's rows, mean over "
        f"seeds; {matrix['n']} rows a cell and seed; on its own {own:.3f}, on others' {others:.3f}"
    )
    return Titled(caption, Table(columns, rows))


def agreement(runs: Mapping[str, Sequence[Run]], labels: Sequence[str]) -> dict[str, dict[str, float]]:
    """Label -> mean over rounds and seeds of how far the clients' updates agree, by role."""
    found = {}
    for label in labels:
        told = [record.diagnostics for run in runs[label] for record in run.rounds]
        names = [f"{measure}_{role}" for measure in ("agreement", "cosine") for role in ("rule", "lora")]
        found[label] = {name: math.fsum(one[name] for one in told) / len(told) for name in names if name in told[0]}
    return found


def conflict(runs: Mapping[str, Sequence[Run]], labels: Sequence[str]) -> Titled:
    """Agreement and mean cosine of the clients' updates, of rules against factors."""
    found = agreement(runs, labels)
    clients = len(next(iter(runs.values()))[0].rounds[0].cohort.accepted)
    names = ("agreement_rule", "agreement_lora", "cosine_rule", "cosine_lora")
    rows = [[label, *(f"{found[label][name]:.3f}" for name in names)] for label in labels]
    caption = (
        "Update conflict, mean over rounds and seeds: agreement is 1 where all clients pull one way and "
        f"{clients**-0.5:.2f} for {clients} at right angles; cosine is the mean over pairs of clients"
    )
    return Titled(caption, Table(("row", "agreement, rules", "agreement, LoRA", "cosine, rules", "cosine, LoRA"), rows))


def costs(found: Json) -> Titled:
    """Learning rate, steps, bytes and FLOPs of each row."""
    columns = ("row", "learning rate", "client-steps", "up MB", "down MB", "GFLOP")
    rows = [
        [
            row["label"],
            "–" if row["lr"] is None else f"{row['lr']:g}",
            f"{row['client_steps']:g}",
            f"{row['uplink_bytes'] / 1e6:.3f}",
            f"{row['downlink_bytes'] / 1e6:.3f}",
            f"{row['flops'] / 1e9:.4g}",
        ]
        for row in found["rows"]
    ]
    return Titled(
        "What a run costs: float32, all clients and rounds, framing included; a row alone sends nothing back",
        Table(columns, rows),
    )


def search(found: Json) -> Titled:
    """How learning rates were chosen."""
    searches = found["search"]
    rates = list(next(iter(searches.values()))["scores"]) if searches else []
    rows = [
        [
            label,
            *("diverged" if one["scores"][lr] is None else f"{one['scores'][lr]:.3f}" for lr in rates),
            f"{one['chosen']:g}",
        ]
        for label, one in searches.items()
    ]
    return Titled(
        "Accuracy on the clients' held-back rows on the spare seed, by learning rate",
        Table(("row", *rates, "chosen"), rows),
    )


def hashed(about: Json) -> dict[str, list[str]]:
    """Row -> the hashes of its experiments."""
    return {label: [run["hash"] for run in row["runs"]] for label, row in about["rows"].items()}


def hashes(about: Json) -> Titled:
    """The experiments behind the numbers; the same hash is the same bits on the same versions and kind of machine."""
    rows = [[label, " ".join(found)] for label, found in hashed(about).items()]
    return Titled("Experiments, one a seed", Table(("row", "hashes"), rows))


def portable(found: Json) -> dict[str, Any]:
    """The table without what another machine would change."""
    rows = [{name: value for name, value in row.items() if name not in _OF_THE_MACHINE} for row in found["rows"]]
    searches = {
        label: {name: value for name, value in one.items() if name not in _OF_THE_MACHINE}
        for label, one in found["search"].items()
    }
    kept = ("metric", "seeds", "n", "different_rows", "chance", "resamples", "pairs")
    return {**{name: found[name] for name in kept}, "rows": rows, "search": searches}


def gain_cells(pair: Json | None) -> list[str]:
    """Three cells: a gain with its interval over test rows, Holm's p-value, and the interval over seeds."""
    return ["–"] * 3 if pair is None else [_gain(pair), f"{pair['holm']:.2g}", _ends(over_seeds(pair["by_seed"]))]


def _ends(interval: tuple[float, float] | None) -> str:
    return "–" if interval is None else f"[{100 * interval[0]:+.1f}, {100 * interval[1]:+.1f}]"


def _gain(pair: Json | None) -> str:
    if pair is None:
        return "–"
    gain, low, high = (100 * pair[name] + 0.0 for name in ("gain", "low", "high"))
    return f"{gain:+.1f} [{low:+.1f}, {high:+.1f}]"
