"""Runs with a memory, made by hand: strata, gates, conflict and what a probe found."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from cotune.core.record import Metric, RoundRecord

DEPTHS, LENGTHS, GAPS = ("0.1", "0.5", "0.7"), (512, 1024, 16384), (0, 16, 64, 256)


def share(value: float, n: int = 20) -> Metric:
    """A share of rows between two ends, with its chance."""
    return Metric(value=value, n=n, low=value - 0.1, high=value + 0.1, chance=0.25)


def with_memory(one: RoundRecord) -> RoundRecord:
    """A record as a memory's run leaves it; cells only from the second round on."""
    draw = random.Random(one.round)
    places = {f"depth {d} · length {n}": share(draw.random()) for d in DEPTHS for n in LENGTHS}
    del places["depth 0.7 · length 16384"]
    gaps = {f"gap {gap}": share(draw.random(), 30) for gap in reversed(GAPS)}
    told = {f"gate/{layer}": draw.random() for layer in range(10)}
    for role in ("lora", "rule"):
        told |= {f"agreement_{role}": draw.random(), f"cosine_{role}": draw.uniform(-1, 1)}
        told |= {f"update_{role}": draw.random(), f"clients_{role}": 4.0 + one.round}
    cells = {"accuracy": {**places, **gaps, "other rows": share(0.5, 7)}} if one.round > 1 else {}
    return one.model_copy(update={"cells": cells, "diagnostics": {**one.diagnostics, **told}})


def bins(edges: list[tuple[int, int]], seed: int) -> list[dict[str, Any]]:
    """Bins of these tokens."""
    draw = random.Random(seed)
    found = []
    for first, last in edges:
        mean = draw.uniform(2, 4)
        alone = first == last
        ends = {"low": None, "high": None} if alone else {"low": mean - 0.1, "high": mean + 0.1}
        found.append({"first": first, "last": last, "n": last - first + 1, "mean": mean, **ends})
    return found


def probed() -> dict[str, Any]:
    """A whole memory.json."""
    equal = [(start, start + 1023) for start in range(0, 8192, 1024)]
    doubling = [(2**i - 1, 2 ** (i + 1) - 2) for i in range(11)]
    series = [
        {"name": name, "equal": bins(equal, i), "doubling": bins(doubling, 9 + i), "peak_bytes": peak}
        for i, (name, peak) in enumerate({"memory": [10**8 + i for i in range(8)], "<b>window</b>": None}.items())
    ]
    layers = [{"layer": i, "gate": [0.1 * i, 0.2, 0.3], "state_norm": [float(i), 2.5], "clipped": i} for i in (0, 2, 5)]
    sizes = [{"tokens": t, "state": 4096, "window": min(t, 1024) * 64, "full": t * 64} for t in (16384, 1024, 4096)]
    stream = {"source": "a synthetic text", "tokens": 8192, "streams": 1, "series": series}
    return {"version": 1, "stream": stream, "layers": layers, "bytes": sizes}


def remember(folder: Path, about: object) -> Path:
    """The folder with a memory.json."""
    (folder / "memory.json").write_text(json.dumps(about))
    return folder
