"""A comparison tells head and tail apart, and counts a row for either only where all seeds agree on it."""

from __future__ import annotations

import json
from pathlib import Path

import cotune as ct
from cotune.core.seeds import Seeds

SIZES = {"cats": 40, "dogs": 30, "newts": 8, "voles": 8}  # of the last two, either may be the rarer among the clients


def test_strata_of_the_tail_are_the_rows_that_every_seed_calls_so(tmp_path: Path) -> None:
    rows = [{"text": f"{beast} number {i}", "label": beast} for beast, n in SIZES.items() for i in range(n)]
    path = tmp_path / "zoo.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = ct.task.Classify(
        data=str(path), partition=ct.task.LongTail(clients=2, tail=1), max_tokens=16, test=0.4, held=0.1
    )
    said: dict[str, set[str]] = {}
    rare = set()
    for seed in range(3):
        corpus = task.load(Seeds(seed=seed))
        rare |= {*corpus.facts["tail"]["classes"]}
        for row, stratum in zip(corpus.test, corpus.strata, strict=True):
            said.setdefault(row["text"], set()).add(stratum)
    assert rare == {"newts", "voles"}, "seeds do not agree, or there is nothing to see"
    found = ct.compare(
        {name: ct.recipe(name, steps=1, batch=4, lr=1e-3) for name in ("lora-fedavg", "fedprox")},
        local=False,
        task=task,
        backbone="random:bert?layers=1&hidden=16&heads=2",
        rounds=1,
        seeds=3,
        out=tmp_path / "out",
    )
    strata = {stratum["cell"]: stratum for stratum in found.table["strata"]}
    assert {name: stratum["n"] for name, stratum in strata.items()} == {
        name: sum(of == {name} for of in said.values()) for name in ("head", "tail")
    }
    assert sum(len(of) == 2 for of in said.values()) > 0
