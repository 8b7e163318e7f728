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
from cotune.diagnose.interval import Z
from cotune.diagnose.paired import POWER_Z
from cotune.experiment import Experiment
from cotune.reproduce import paper, tables
from cotune.store import Run
from cotune.task.letters import LETTERS
from cotune.task.mmlu import DOMAINS

FEDAVG, FEDNL, PAPER, LOCAL, UNTRAINED = "lora-fedavg", "fednl", "fednl-paper", "local", "untrained"
RULES = "rule"  # the part of a message
ALLOWED = 0.05  # of the questions, where a row that gives one letter may differ
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
        golds = [gold(run) for run in next(iter(runs.values()))]
        strata = sorted(table["strata"], key=lambda stratum: _place(stratum["cell"]))
        plain = {
            "synthetic": self.synthetic,
            **tables.portable(table),
            "strata": strata,
            "domains": {row["label"]: over_domains(strata, row["label"]) for row in table["rows"]},
            "models": {label: scored(found, golds) for label, found in runs.items()},
            "bytes": {label: sent(found[0]) for label, found in runs.items()},
            "search": {
                label: {"seed": one.seed, "losses": dict(one.scores), "chosen": one.chosen, "steps": one.client_steps}
                for label, one in self.search.items()
            },
            "hashes": tables.hashed(self.comparison.about),
        }
        return {**plain, "said": said(plain)}


def over_domains(strata: Sequence[Json], label: str) -> list[float]:
    """[mean, low, high] over domains, each of them weighing the same.

    The domains' test rows are different ones, so the half-width is √Σ h² over their number, h those of the domains.
    """
    found = [stratum["scores"][label] for stratum in strata]
    mean = math.fsum(score["value"] for score in found) / len(found)
    half = math.hypot(*((score["high"] - score["low"]) / 2 for score in found)) / len(found)
    return [mean, mean - half, mean + half]


def gold(run: Run) -> list[int]:
    """The right option of every test row that a run scored, from 0."""
    experiment = Experiment.model_validate(run.about["experiment"])
    rows = experiment.task.load(experiment.seeds).test
    taken = run.about["test"].get("sources", range(len(rows)))
    return [int(rows[i]["gold"]) for i in taken]


def one_letter(scores: Sequence[float], right: Sequence[int]) -> str:
    """The letter that is the answer to those questions that a model has right, but for one in twenty; '' where none is.

    Such a model may as well give this letter to every question: hardly anything of what it says depends on one.
    """
    misses = [
        sum(float(one == i) != score for one, score in zip(right, scores, strict=True)) for i in range(len(LETTERS))
    ]
    fewest = min(misses)
    return LETTERS[misses.index(fewest)] if fewest <= ALLOWED * len(right) else ""


def scored(runs: Sequence[Run], golds: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Which model the scores are of, and means over seeds of what goes with its accuracy.

    Args:
        runs: one a seed.
        golds: by seed, the right option of every row that was scored.

    Returns:
        evaluated: in words.
        letter_mass, and where the task has it `tied`: means over test rows.
        own: [share, low, high] of right answers on what clients hold back, each by the model it would use, all seeds.
        own_n: how many those are.
        one_letter: by seed, the letter that it gives to all questions but one in twenty; '' where answers differ.
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
        "one_letter": [
            one_letter(run.scores(one.round)["accuracy"], right)
            for run, one, right in zip(runs, last, golds, strict=True)
        ],
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


def said(told: Json) -> list[str]:
    """What the intervals allow to say, whichever way they fall: of chance, of rows, and of what n could show."""
    return [_chance(told), *_constant(told), _apart(told), _visible(told)]


def _constant(told: Json) -> list[str]:
    """Who gives one letter to all questions, or nearly, under every seed."""
    found = {label: model["one_letter"] for label, model in told["models"].items() if all(model["one_letter"])}
    if not found:
        return []
    words = ", ".join(f"{label} {''.join(dict.fromkeys(letters))}" for label, letters in found.items())
    return [
        f"{len(found)} of {len(told['rows'])} rows give one letter to all questions of a seed, or to all but one in "
        f"twenty, and score how often it is right: {words}."
    ]


def _place(domain: str) -> tuple[int, str]:
    """MMLU's domains as the paper lists them, others by name."""
    return ([*DOMAINS].index(domain) if domain in DOMAINS else len(DOMAINS), domain)


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
    apart = (
        f"{len(seen)} of {total} pairs of rows are told apart over test rows (interval off zero, Holm p at most .05)"
    )
    ends = [found for pair in table["pairs"] if (found := tables.over_seeds(pair["by_seed"]))]
    settled = sum(not low <= 0 <= high for low, high in ends)
    return f"{apart}{f', and {settled} over seeds, uncorrected' if ends else ''}. {told}"


def _visible(table: Json) -> str:
    pairs = [pair for pair in table["pairs"] if FEDAVG in (pair["ours"], pair["theirs"])]
    sizes = sorted(100 * pair["detectable"] for pair in pairs if pair["detectable"])
    n, chance, different = table["n"], table["chance"], table["different_rows"]
    asked = f"{n[0]} questions a seed" if len({*n}) == 1 else f"{min(n)} to {max(n)} questions a seed"
    apart = 100 * (Z + POWER_Z) * math.sqrt(2 * chance * (1 - chance) / different)
    text = (
        f"With {asked}, {different} different ones, two rows that guess independently had to be {apart:.0f} points "
        "apart to be told apart four times in five, before Holm's correction"
    )
    alike = len(pairs) - len(sizes)
    if sizes:
        ends = dict.fromkeys(f"{size:.1f}" for size in (sizes[0], sizes[-1]))
        text += f"; by how these rows differ from {FEDAVG}, {' to '.join(ends)} points"
    return f"{text}; {alike} of {len(pairs)} rows score every question as {FEDAVG} does." if alike else f"{text}."
