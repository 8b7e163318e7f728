"""Two real runs, for all tests of the report."""

from __future__ import annotations

from pathlib import Path

import pytest

import cotune as ct


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two real runs."""
    out = tmp_path_factory.mktemp("runs")
    for name in ("lora-fedavg", "scaffold"):
        ct.run(
            ct.recipe(name, steps=2, batch=8),
            task=ct.task.Classify(data="synth:sentiment?clients=4&rows=120"),
            backbone="random:bert?layers=1&hidden=16",
            rounds=3,
            cohort=2,
            name=name,
            out=out,
        )
    return out
