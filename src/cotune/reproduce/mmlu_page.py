"""The pages of `fednl-mmlu`: two settings of ours and what they show, and the paper's table with what it leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np

from cotune.core.seeds import derive, numpy_generator
from cotune.diagnose.paired import mcnemar, paired_bootstrap
from cotune.reproduce import beside, paper, tables
from cotune.reproduce.mmlu_told import (
    FEDAVG,
    FEDNL,
    LOCAL,
    PAPER,
    RULES,
    UNTRAINED,
    Answered,
    Json,
    published_numbers,
)
from cotune.reproduce.page import Page, Titled
from cotune.reproduce.reproduction import Found
from cotune.store import Run, Table

SOURCE = "fednl"
_CLAIMS = (
    ("FedNL's row beats LoRA with FedAvg", FEDNL, FEDAVG),
    ("LoRA with FedAvg beats LoRA that never leaves its client", FEDAVG, LOCAL),
    ("LoRA with FedAvg beats the untrained model", FEDAVG, UNTRAINED),
)


def page(name: str, real: Answered, twin: Answered) -> Found:
    """Both settings, the paper's table, and every setting that differs."""
    numbers = paper.expected(SOURCE)
    told = {"mmlu": real.plain(), "synthetic": twin.plain()}
    sizes = published_numbers(numbers)
    blocks: list[str | Titled] = [
        _about(real, told["mmlu"]),
        *_shown(real, told["mmlu"], "MMLU's development questions"),
        _about(twin, told["synthetic"]),
        *_shown(twin, told["synthetic"], "Synthetic questions"),
        _bytes(told["mmlu"], sizes),
        *beside.mmlu(numbers),
        differing(real, "MMLU's development questions"),
        differing(twin, "synthetic questions"),
        tables.hashes(real.comparison.about),
        tables.hashes(twin.comparison.about),
    ]
    results = {"name": name, "scale": "laptop", **told, "published": {"numbers": sizes}}
    title = "FedNL on five domains of questions: MMLU in small, and synthetic"
    return Found(Page(title, blocks), results, real.comparison.folder)


def _about(one: Answered, told: Json) -> str:
    """What was asked, of whom, and how learning rates were chosen."""
    run = next(iter(one.comparison.runs.values()))[0]
    experiment, data = run.about["experiment"], run.about["data"]
    ref, dtype = experiment["backbone"]["ref"], experiment["backbone"]["dtype"]
    sizes = ", ".join(f"{name} {size['train']} and {size['held']}" for name, size in sorted(data["sizes"].items()))
    left = next(row["untaken"] for row in told["rows"])
    longest = experiment["task"]["max_tokens"]
    every = len(told["search"]) > 1
    again = f"; seeds {', '.join(map(str, told['seeds']))} divide anew" if len(told["seeds"]) > 1 else ""
    chosen = (
        "Each row takes the best of the rates below" if every else f"All rows take the rate that is best for {FEDAVG}"
    )
    what = (
        f"**Synthetic** questions with four options ({experiment['task']['data']}), whose answers are facts of their "
        f"domains to be learned by heart; who knows them all scores {100 * data['optimum_accuracy']:g} %"
        if one.synthetic
        else f"**Real** questions: {data['used']} of MMLU's development questions, five or fewer of each of 57 "
        "subjects, as a package carries them. They are the examples that others put in front of the test's questions, "
        "so nothing here compares with a leaderboard"
    )
    return (
        f"{what}. Each domain is a client; questions to train on and held back, seed {told['seeds'][0]}: "
        f"{sizes}. The rest is the test, which no client has{again}. "
        f"{ref} in {dtype}, {_count(left, 'test question')} of all seeds of more than {longest} tokens left out. "
        f"{chosen} by the loss on held-back questions, on a spare seed. {UNTRAINED} is the model as it comes: "
        f"{FEDAVG} at rate 0."
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _shown(one: Answered, told: Json, title: str) -> list[str | Titled]:
    """What it shows first, then the tables that it is read from."""
    table = one.comparison.table
    claims = [
        tables.verdict(claim, tables.between(table["pairs"], ours, theirs))
        for claim, ours, theirs in _CLAIMS
        if {ours, theirs} <= {row["label"] for row in table["rows"]}
    ]
    lead = [] if one.synthetic else [beside.ahead(paper.expected(SOURCE))]
    return [
        " ".join([*told["said"], *lead]),
        *claims,
        accuracies(told, title),
        _differences(told, title),
        _models(told, title),
        tables.costs(table),
        _search(told, title),
    ]


def accuracies(told: Json, title: str) -> Titled:
    """Row by domain, both averages, what it gains over `lora-fedavg`, the letters' mass and whose model it is."""
    strata = told["strata"]
    heads = [f"{stratum['cell']} (n {stratum['n']})" for stratum in strata]
    rows = []
    for row in told["rows"]:
        label, model = row["label"], told["models"][row["label"]]
        domains = [_share(*(stratum["scores"][label][end] for end in ("value", "low", "high"))) for stratum in strata]
        gain, _, seeds = tables.gain_cells(tables.between(told["pairs"], label, FEDAVG))
        cells = [label, *domains, _share(*told["domains"][label]), _share(row["value"], row["low"], row["high"])]
        mass = f"{100 * model['letter_mass']:.1f}"
        rows.append([*cells, gain, seeds, mass, model["evaluated"].partition(",")[0]])
    n = ", ".join(map(str, told["n"]))
    caption = (
        f"{title}: accuracy in %, mean over seeds, with the 95 % interval over test rows; chance "
        f"{100 * told['chance']:g}; n {n} by seed, {told['different_rows']} different rows (in brackets by domain); "
        f"gain over {FEDAVG} in points, paired by test row, and the interval of its mean over seeds by Student's t; "
        "letters: their share of the next token's probability, in %"
    )
    ends = ("average over domains", "over rows", f"gain over {FEDAVG}", "over seeds", "letters", "scored model")
    return Titled(caption, Table(("row", *heads, *ends), rows))


def _differences(told: Json, title: str) -> Titled:
    """Each row against `lora-fedavg`: the tests, and what they could have seen."""
    rows = []
    for row in told["rows"]:
        pair = tables.between(told["pairs"], row["label"], FEDAVG)
        if pair is None:
            continue
        gain, holm, seeds = tables.gain_cells(pair)
        apart = pair["discordant"]
        test = f"{apart['ours']}:{apart['theirs']}, p {apart['p']:.2g}" if apart else "–"
        each = " ".join(f"{100 * value + 0.0:+.1f}" for value in pair["by_seed"])
        visible = f"{100 * pair['detectable']:.1f}" if pair["detectable"] else "–"
        rows.append([row["label"], gain, holm, test, each, seeds, visible, "yes" if pair["seen"] else "no"])
    columns = ("row", "gain", "Holm p", "McNemar", "by seed", "over seeds", "could see", "seen")
    caption = (
        f"{title}: gain over {FEDAVG} in points; McNemar counts questions that one of the two alone has right (– where "
        "a score is a mean over clients' models); could see: the smallest difference shown four times in five"
    )
    return Titled(caption, Table(columns, rows))


def _models(told: Json, title: str) -> Titled:
    """Whose model each row's scores are of, and how clients do on their own rows."""
    rows = []
    drops = {row["label"]: row["drop"] for row in told["rows"]}
    for label, model in told["models"].items():
        own = _share(*model["own"]) if model["own"] else "–"
        tied = f"{100 * model['tied']:.1f}" if "tied" in model else "–"
        drop = "–" if drops[label] is None else f"{drops[label]:+.1f}"
        always = " ".join(letter or "–" for letter in model["one_letter"])
        rows.append([label, model["evaluated"], always, own, model["own_n"], drop, tied])
    columns = ("row", "scored on the test", "one letter", "own rows %", "n", "drop", "tied %")
    caption = (
        f"{title}: the model behind each row; one letter: by seed, its answer to all questions but one in twenty; own "
        "rows: what clients hold back, each answered by the model that its client would use, all seeds together, with "
        "Wilson's interval; drop: points lost there by aggregation, the "
        "client's own model before it less the one after; tied: test rows whose two best letters are equal, where the "
        "first wins"
    )
    return Titled(caption, Table(columns, rows))


def _bytes(told: Json, sizes: Mapping[str, Mapping[str, int]]) -> Titled:
    """A client in a round, as Algorithm 1 sends it and as the paper counts it."""
    rows: list[list[str]] = []
    for label, found in told["bytes"].items():
        cells = []
        for direction in ("up", "down"):
            parts = {name: size for name, size in found[direction].items() if name != "framing"}
            cells += [f"{sum(parts.values()):,.0f}", f"{parts.get(RULES, 0):,.0f}"]
        rows.append([label, *cells, f"{found['up']['framing']:,.0f}"])
        if RULES in found["up"]:
            alone = [f"{found[way][RULES]:,.0f}" for way in ("up", "up", "down", "down")]
            rows.append([f"{label}, rules alone", *alone, "–"])
    for name, numbers in sizes.items():
        whole, rules = (f"{4 * numbers[what]:,}" for what in ("theta", "rules"))
        rows.append([f"paper: {name}, Qwen2.5-1.5B", whole, rules, whole, rules, "–"])
        if numbers["rules"]:
            rows.append([f"paper: {name}, Qwen2.5-1.5B, rules alone", rules, rules, rules, rules, "–"])
    caption = (
        "Bytes of a client in a round, float32, without framing, in both configurations: factors and rules travel "
        "(Algorithm 1; share = theta), or rules alone (share = memory); what the paper's 0.26 MB "
        "and 22.5 MB count is in README.md"
    )
    columns = ("row", "up", "of it rules", "down", "of it rules", "framing up")
    return Titled(caption, Table(columns, rows))


def _search(told: Json, title: str) -> Titled:
    searches = told["search"]
    rates = list(next(iter(searches.values()))["losses"])
    rows = [
        [label, *_losses(one["losses"], rates), f"{one['chosen']:g}", one["steps"]] for label, one in searches.items()
    ]
    caption = f"{title}: loss on held-back rows on the spare seed, by learning rate"
    return Titled(caption, Table(("row", *rates, "chosen", "client-steps"), rows))


def _losses(found: Mapping[str, float | None], rates: list[str]) -> list[str]:
    return ["diverged" if (loss := found[rate]) is None else f"{loss:.3f}" for rate in rates]


def differing(one: Answered, title: str) -> Titled:
    """Every setting in which our run nearest to the paper's reading differs from the published one."""
    runs = one.comparison.runs
    row = next(label for label in (PAPER, FEDNL, FEDAVG) if label in runs)
    found = beside.differing(paper.experiment(SOURCE, "mmlu.toml"), runs[row][0])
    return Titled(f"{found.caption}: {row} on {title}", found.table)


def published(runs: Mapping[str, Run]) -> Page:
    """The paper's table beside the published setting, by file."""
    blocks: list[str | Titled] = [*beside.mmlu(paper.expected(SOURCE)), _held(runs), _tested(runs)]
    return Page("FedNL on MMLU: the paper's numbers and ours", blocks)


def _held(runs: Mapping[str, Run]) -> Titled:
    """What the paper's table is of: each client's own questions, by the model that it would use."""
    found: dict[str, dict[str, Any]] = {
        file: {name: one["accuracy"] for name, one in sorted(run.rounds[-1].client_metrics.items())}
        for file, run in runs.items()
    }
    domains = list(dict.fromkeys(name for clients in found.values() for name in clients))
    rows = []
    for file, clients in found.items():
        shares = [100 * clients[name].federated for name in domains]
        counts = [clients[name].n for name in domains]
        cells = [_wilson(share, n) for share, n in zip(shares, counts, strict=True)]
        n = sum(counts)
        right = sum(share * count for share, count in zip(shares, counts, strict=True)) / n
        rows.append([file, *cells, f"{sum(shares) / len(shares):.2f}", _wilson(right, n), n])
    caption = "Ours, accuracy in % on what each client holds back, with Wilson's 95 % interval; chance 25"
    return Titled(caption, Table(("experiment", *domains, "average over domains", "over rows", "n"), rows))


def _tested(runs: Mapping[str, Run]) -> Titled:
    """Every two experiments on questions that no client has, paired by question."""
    rows: list[list[object]] = []
    for (one, ours), (other, theirs) in combinations(runs.items(), 2):
        if _asked(ours) != _asked(theirs):
            continue
        scores = [np.array(run.scores(run.rounds[-1].round)["accuracy"]) for run in (ours, theirs)]
        gains = scores[0] - scores[1]
        gain, low, high = (100 * end for end in paired_bootstrap(gains, numpy_generator(derive(0, one, other))))
        more, fewer = int((gains > 0).sum()), int((gains < 0).sum())
        test = f"{more}:{fewer}, p {mcnemar(more, fewer):.2g}"
        rows.append([one, other, f"{gain:+.1f} [{low:+.1f}, {high:+.1f}]", test, len(gains)])
    caption = (
        "Ours, on the questions that no client has: what one gains over another in points, paired by question, with "
        "the 95 % interval, and McNemar's test; pairs whose models take other questions are left out"
    )
    return Titled(caption, Table(("experiment", "over", "gain", "McNemar", "n"), rows))


def _asked(run: Run) -> tuple[Any, Any]:
    return run.about["data"].get("test_manifest"), run.about["test"].get("sources")


def _share(value: float, low: float, high: float) -> str:
    return f"{100 * value:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def _wilson(percent: float, n: int) -> str:
    low, high = paper.wilson(percent, n)
    return f"{percent:.1f} [{low:.1f}, {high:.1f}]"
