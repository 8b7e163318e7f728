"""Which rule: what the recipe `fednl` rests on, one option of a plain rule changed at a time, at one learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from cotune import comparison
from cotune.comparison import Comparison, Question
from cotune.federation import Federation
from cotune.method import Method
from cotune.reproduce import paper, tables
from cotune.reproduce.needle import Size, ground, recipe
from cotune.reproduce.page import Page, Titled
from cotune.reproduce.reproduction import Found, Laptop, Reproduction
from cotune.store import Run, Table

PLAIN = "plain"
# Label -> options of the rules that differ from those of the plain one; the recipe `fednl` is the row 'centre'.
RULES: Mapping[str, Mapping[str, Any]] = {
    PLAIN: {},
    "centre": {"centre": True},
    "shift": {"shift": True},
    "centre + shift": {"centre": True, "shift": True},
    "gated-delta": {"rule": "gated-delta"},
    "hebbian (no delta)": {"rule": "hebbian"},
    "titans": {"rule": "titans"},
    "norm": {"norm": True},
    "sigmoid gate": {"gate": "sigmoid"},
    "beta starts at 0.1": {"beta_start": 0.1},
    "beta starts at 0.9": {"beta_start": 0.9},
    "no gate, half and half": {"gate": "constant", "gate_start": 0.5},
    "no gate, memory alone": {"gate": "constant", "gate_start": 1.0},
}


def rows(size: Size) -> dict[str, Method]:
    """Label -> method."""

    def plain(rules: Mapping[str, Any], **others: Any) -> Method:
        return recipe("fednl", size, **others, **{"trainable.rules": {"centre": False, **rules}})

    return {
        **{label: plain(rules) for label, rules in RULES.items()},
        "LoRA frozen": plain({}, factors=False),
        "LoRA stays, rules travel": plain({}, share="memory"),
    }


def question(size: Size, seeds: int) -> Question:
    """Every row against `plain`, half of the clients a round."""
    base = ground(size).model_copy(
        update={"name": "fednl-ablation", "federation": Federation(rounds=size.rounds, cohort=2)}
    )
    return comparison.ask(rows(size), base, seeds=seeds, reference=PLAIN)


class FedNLAblation(Reproduction):
    """FedNL's rule, option by option: keys, write, decay, gate, and what trains and travels."""

    name: ClassVar[str] = "fednl-ablation"
    source: ClassVar[str] = "fednl"
    files: ClassVar[tuple[str, ...]] = ("pg19.toml", "pg19-hebbian.toml", "pg19-no-gate.toml", "pg19-rules-only.toml")
    size: ClassVar[Size] = Size(rounds=12, held=8, test_rows=32, sweep=(), lr=4e-3)

    def laptop(self, setting: Laptop) -> Found:
        """Every option under every seed."""
        asked = question(self.size, setting.seeds)
        found = comparison.answer(asked, setting.out, watch=setting.watch, jobs=setting.jobs)
        return page(self.name, found).written(f"{self.name}-laptop")

    def beside(self, runs: Mapping[str, Run]) -> Page:
        """The paper's perplexities beside those of the published setting."""
        told = paper.expected(self.source)["pg19"]
        names = dict(zip(self.files, ("FedNL", "hebbian", "no-gate", "rules-only"), strict=True))
        ours = {file: run.rounds[-1].global_metrics["perplexity"] for file, run in runs.items()}
        listed = [[names[file], told[names[file]], m.value, m.n] for file, m in ours.items()]
        columns = ("row", "paper", "ours", "windows")
        return Page("FedNL on books: the paper's ablation and ours", [Titled(told["where"], Table(columns, listed))])


def page(name: str, found: Comparison) -> Found:
    """One table of options, and which of them is above or below the plain rule."""
    blocks: list[str | Titled] = [
        "Synthetic associative recall as in fednl-needle: a window of 12 tokens, 4 clients with disjoint keys, half of "
        f"them a round, test rows of keys that nobody trained on, seeds {', '.join(map(str, found.table['seeds']))}. "
        "One learning rate for all rows; fewer steps than fednl-needle, so that differences in speed show. Chance "
        f"{found.table['chance']:.3f}.",
        tables.scores(found.table),
        Titled("Against the plain rule, in percentage points, paired by test row", _against(found.table)),
        "Seen: the interval over test rows is off zero, and the sign-flip p-value is at most 5 % after Holm's "
        "correction for every pair of rows, of which there are many. Over seeds: the 95 % interval of the mean over "
        "training runs, by Student's t; where it holds zero, other seeds might say otherwise.",
        tables.costs(found.table),
        tables.hashes(found.about),
    ]
    results = {
        "name": name,
        "scale": "laptop",
        "strata": found.table["strata"],
        **tables.portable(found.table),
        "hashes": tables.hashed(found.about),
    }
    return Found(Page("FedNL: which rule, synthetic", blocks), results, found.folder)


def _against(table: tables.Json) -> Any:
    rows = []
    for row in table["rows"]:
        pair = tables.between(table["pairs"], row["label"], PLAIN)
        if pair is None:
            continue
        said = ("above" if pair["gain"] > 0 else "below") if pair["seen"] else "no difference seen"
        seeds = f"{sum(gain > 0 for gain in pair['by_seed'])} of {len(pair['by_seed'])}"
        ends = [f"{100 * pair[name]:+.1f}" for name in ("gain", "low", "high")]
        apart = tables.over_seeds(pair["by_seed"])
        over = ("–", "–") if apart is None else tuple(f"{100 * end:+.1f}" for end in apart)
        rows.append([row["label"], *ends, f"{pair['holm']:.2g}", said, seeds, *over])
    heads = ("row", "gain", "low", "high", "Holm p", "seen", "seeds above", "over seeds, low", "over seeds, high")
    return Table(heads, rows)
