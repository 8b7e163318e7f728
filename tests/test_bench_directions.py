"""The benchmarks of directions and of their replay: what they compare, and that what they time is right."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch

from cotune.bench import Directions, Replay
from cotune.bench.benchmark import measured
from cotune.noise import Path

PATHS: list[Path] = ["compiled", "numpy"] if find_spec("numba") else ["numpy"]


@pytest.mark.parametrize(("name", "numbers"), [("directions", Directions.quick().equal), ("replay", 2**13)])
def test_every_number_is_the_same_by_every_path(name: str, numbers: int) -> None:
    result = measured(name, quick=True)
    *times, equal = result["figures"]
    assert equal["ours"] == equal["rival"] == numbers
    assert equal["goal"] == 1.0
    timed = {figure["name"].partition(",")[0]: figure["goal"] for figure in times}
    goals: dict[str, dict[str, float | None]] = {
        "directions": {"compiled": 15.0, "numpy": 7.0, "torch": None},
        "replay": {"compiled": 20.0, "numpy": 8.0},
    }
    assert timed == {path: goal for path, goal in goals[name].items() if path in (*PATHS, "torch")}
    assert all(figure["met"] is None for figure in result["figures"])


def test_numbers_that_differ_between_paths_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from cotune.noise import vectorised

    true = vectorised.add

    def wrong(flat: Any, *rest: Any) -> None:
        true(flat, *rest)
        flat[:3] += 1

    monkeypatch.setattr(vectorised, "add", wrong)
    bench = Directions(numbers=64, equal=1000, repeats=1)
    assert list(bench.figures())[-1].ours == 1000 - 3 * (1 if bench.paths.index("numpy") == 0 else 4)


def test_a_round_that_is_folded_is_the_round_of_rebuilt_models_along_the_same_directions() -> None:
    bench = Replay(numbers=1000, clients=3, steps=2, directions=2)
    start, replies = bench._start(), [bench._coefficients(client) for client in range(3)]
    alone = [bench._folded(start, replies[:1], path) for path in PATHS]
    assert all(torch.equal(one, alone[0]) for one in alone)
    whole = [bench._folded(start, replies, path) for path in PATHS]
    assert all(torch.equal(one, whole[0]) for one in whole)
    assert float((whole[0] - start).abs().max()) <= max(float(r.abs().sum()) for r in replies)
    assert bench._rebuilt(start, replies).shape == start.shape
