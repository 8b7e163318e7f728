"""The round that `cotune bench deployment` measures, without the deployment: `make slow` starts those."""

from __future__ import annotations

from pathlib import Path

from cotune import experiment as experiments
from cotune import resolve
from cotune.bench import Deployment
from cotune.bench.deployment import SMALL


def test_a_message_of_its_rounds_is_about_a_kilobyte(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(Deployment.quick().experiment(SMALL))
    run = experiments.run(resolve.load(str(file)), tmp_path / "runs")
    assert len(run.rounds) == 2
    for record in run.rounds:
        messages = len(record.cohort.accepted)
        assert messages == 2
        assert record.uplink_bytes < 1024 * messages
        assert record.downlink_bytes < 1024 * messages


def test_its_model_is_a_third_of_a_gigabyte() -> None:
    bench = Deployment()
    block = 4 * bench.hidden**2 + 3 * bench.hidden * bench.intermediate
    assert 0.29e9 < 4 * bench.layers * block < 0.33e9
