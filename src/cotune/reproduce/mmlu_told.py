"""What a table of rows on five domains says: accuracies, whose model they are of, bytes, what could be seen."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cotune.comparison import Comparison
from cotune.comparison.search import Search
from cotune.core.spec import Role
from cotune.diagnose import mean_interval
from cotune.experiment import Experiment
from cotune.reproduce import paper, tables
from cotune.store import Run

FEDAVG, FEDNL, PAPER, LOCAL, UNTRAINED = "lora-fedavg", "fednl", "fednl-paper", "local", "untrained"
RULES = "rule"  # the part of a message
Json = Mapping[str, Any]


@dataclass(frozen=True)
class Answered:
    """One of the two settings, carried out.

    Attributes:
        comparison: every row under every seed.
        search: row -> how its learning rate was chosen; of one row alone where the others took its rate.
        synthetic: whether the questions are drawn.
    """

    comparison: Comparison
    search: Mapping[str, Search]
    synthetic: bool

    def plain(self) -> dict[str, Any]:
        """All numbers of it; nothing of the machine is in them."""
        table, runs = self.comparison.table, self.comparison.runs
        return {
            "synthetic": self.synthetic,
            **tables.portable(table),
            "strata": table["strata"],
            "domains": {row["label"]: over_domains(table["strata"], row["label"]) for row in table["rows"]},
            "models": {label: scored(found) for label, found in runs.items()},
            "bytes": {label: sent(found[0]) for label, found in runs.items()},
            "search": {
                label: {"seed": one.seed, "losses": dict(one.scores), "chosen": one.chosen, "steps": one.client_steps}
                for label, one in self.search.items()
            },
            "said": said(table),
            "hashes": tables.hashed(self.comparison.about),
        }


def over_domains(strata: Sequence[Json], label: str) -> list[float]:
    """[mean, low, high] over domains, each of them weighing the same.

    The domains' test rows are different ones, so the half-width is √Σ h² over their number, h those of the domains.
    """
    found = [stratum["scores"][label] for stratum in strata]
    mean = math.fsum(score["value"] for score in found) / len(found)
    half = math.hypot(*((score["high"] - score["low"]) / 2 for score in found)) / len(found)
    return [mean, mean - half, mean + half]


def scored(runs: Sequence[Run]) -> dict[str, Any]:
    """Which model the scores are of, and means over seeds of what goes with its accuracy.

    Returns:
        evaluated: in words.
        letter_mass, and where the task has it `tied`: means over test rows.
        own: [share, low, high] of right answers on what clients hold back, each by the model it would use, all seeds.
        own_n: how many those are.
    """
    last = [run.rounds[-1] for run in runs]
    clients = [one["accuracy"] for record in last for one in record.client_metrics.values() if "accuracy" in one]
    answered = [(client.federated, client.n) for client in clients if client.federated is not None]
    n, right = sum(count for _, count in answered), sum(round(share * count) for share, count in answered)
    beside = [name for name in ("letter_mass", "tied") if name in last[0].global_metrics]
    return {
        "evaluated": last[0].evaluated,
        **{name: math.fsum(one.global_metrics[name].value for one in last) / len(last) for name in beside},
        "own": list(mean_interval([1.0] * right + [0.0] * (n - right))) if n else None,
        "own_n": n,
    }


def sent(run: Run) -> dict[str, dict[str, float]]:
    """Direction -> part -> bytes of a client in a round, mean over clients and rounds; `framing` among the parts."""
    found = dict[str, dict[str, float]]()
    for direction in ("up", "down"):
        lines = [line for line in run.ledger if line.direction == direction and line.purpose == "train"]
        parts = dict.fromkeys(name for line in lines for name in line.payload_bytes)
        each = {name: sum(line.payload_bytes.get(name, 0) for line in lines) / len(lines) for name in parts}
        found[direction] = {**each, "framing": sum(line.framing_bytes for line in lines) / len(lines)}
    return found


def carried(experiment: Experiment) -> dict[str, int]:
    """Numbers that train on a backbone's shapes: `rules`, and all of theta."""
    method = experiment.method
    skeleton = experiment.backbone.skeleton(experiment.task.head, 0)
    _, _, spec = method.trainable.attach(skeleton, 0, method.share)
    return {
        "rules": sum(entry.numel for entry in spec if entry.role is Role.RULE),
        "theta": sum(entry.numel for entry in spec),
    }


def published_numbers(numbers: Json) -> dict[str, dict[str, int]]:
    """Row of the paper -> the numbers that train on Qwen2.5-1.5B."""
    files = {"FedNL": "mmlu.toml", "FedAvg, all linear layers": "mmlu-fedavg.toml"}
    return {name: carried(paper.shapes(paper.experiment("fednl", file), numbers)) for name, file in files.items()}


def said(table: Json) -> list[str]:
    """What the intervals allow to say, whichever way they fall: of chance, of rows, and of what n could show."""
    return [_chance(table), _apart(table), _visible(table)]


def _chance(table: Json) -> str:
    chance, rows = table["chance"], table["rows"]
    above = [row["label"] for row in rows if row["low"] > chance]
    below = [row["label"] for row in rows if row["high"] < chance]
    inside = len(rows) - len(above) - len(below)
    text = f"Chance ({100 * chance:g} %) is within the 95 % interval of {inside} of {len(rows)} rows"
    text += "".join(f"; {where} it: {', '.join(who)}" for where, who in (("above", above), ("below", below)) if who)
    return f"{text}." if above or below else f"{text}: no row is told from guessing."


def _apart(table: Json) -> str:
    seen = [pair for pair in table["pairs"] if pair["seen"]]
    total = len(table["pairs"])
    if not seen:
        return (
            f"None of the {total} pairs of rows is told apart: this table does not say which row is better, in either "
            "direction."
        )
    others = [row["label"] for row in table["rows"] if row["label"] != FEDAVG]
    pairs = [tables.between(seen, label, FEDAVG) for label in others]
    words = [
        f"{pair['ours']} {100 * pair['gain']:+.1f} [{100 * pair['low']:+.1f}, {100 * pair['high']:+.1f}]"
        for pair in pairs
        if pair
    ]
    told = f"Told from {FEDAVG}, in points: {', '.join(words)}." if words else f"None is told from {FEDAVG}."
    return f"{len(seen)} of {total} pairs of rows are told apart (interval off zero, Holm p at most .05). {told}"


def _visible(table: Json) -> str:
    pairs = [pair for pair in table["pairs"] if FEDAVG in (pair["ours"], pair["theirs"])]
    sizes = sorted(100 * pair["detectable"] for pair in pairs if pair["detectable"])
    n = table["n"]
    asked = f"{n[0]} questions a seed" if len({*n}) == 1 else f"{min(n)} to {max(n)} questions a seed"
    if not sizes:
        return f"No row answers any of the {asked} differently from {FEDAVG}."
    return (
        f"With {asked}, {table['different_rows']} different ones, a difference from {FEDAVG} had to be {sizes[0]:.1f} "
        f"to {sizes[-1]:.1f} points, by row, to be seen four times in five, before Holm's correction and with these "
        "seeds taken as they are."
    )
