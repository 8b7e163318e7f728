"""Benchmarks: what a figure says, how it is measured, and what `cotune bench` prints of it."""

from __future__ import annotations

import json
import operator
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
import torch

from cotune import bench as benches
from cotune.bench import BENCHES, Benchmark, DeltaRule, Figure
from cotune.bench.benchmark import measured
from cotune.bench.measure import compared, interleaved, peak_bytes
from cotune.cli import main
from cotune.core.errors import CotuneError

MIB = 2**20


class Toy(Benchmark):
    """Two numbers that are known beforehand."""

    size: int = 10
    goal: float = 2.0

    @classmethod
    def quick(cls) -> Self:
        return cls(size=1)

    def figures(self) -> Iterator[Figure]:
        assert torch.get_num_threads() == 1
        yield compared("met · against a rival", [1.0], [4.0], "ms", 2.0)
        yield compared("to be judged · against a rival", [float(self.size)], [30.0], "ms", self.goal)
        yield compared("without a goal · against a rival", [3.0], [3.0], "ms")


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(benches, "BENCHES", {**BENCHES, "toy": Toy})
    return "toy"


def test_a_figure_is_the_ratio_of_medians_with_the_spread_of_its_repeats() -> None:
    figure = compared("name", [1.0, 2.0, 100.0], [10.0, 10.0, 10.0], "ms", 5.0)
    assert (figure.ours, figure.rival, figure.ratio, figure.met) == (2.0, 10.0, 5.0, True)
    assert figure.spread == pytest.approx((7.5 - 2.55) / 2 / 5)
    assert compared("name", [2.0], [9.9], "ms", 5.0).met is False
    assert compared("name", [2.0], [9.9], "ms").met is None
    more = compared("name", [30.0], [100.0], "GFLOP/s", 0.25, more_is_better=True)
    assert (more.ratio, more.met, more.spread) == (0.3, True, 0.0)


def test_repeats_take_turns_and_no_job_always_goes_first() -> None:
    order = list[str]()
    seconds = interleaved({name: lambda name=name: order.append(name) for name in "abc"}, 3)  # type: ignore[misc]
    assert "".join(order) == "abc" + "abc" + "bca" + "cab", "once to warm up, then in turn"
    assert {name: len(values) for name, values in seconds.items()} == {"a": 3, "b": 3, "c": 3}


def test_time_is_work_and_not_waiting() -> None:
    def work() -> None:
        start = time.process_time()
        while time.process_time() - start < 0.02:
            pass

    seconds = interleaved({"waits": lambda: time.sleep(0.02), "works": work}, 2)
    assert max(seconds["waits"]) < 0.01 < min(seconds["works"])


def test_a_peak_is_what_the_job_adds_for_a_moment_and_nothing_else() -> None:
    ours = b"x" * (96 * MIB)
    job = (operator.mul, b"x", 48 * MIB)
    assert abs(peak_bytes(partial, *job) / MIB - 48) < 3, "whatever this process or the imports there took"
    assert len(ours) == 96 * MIB


def test_an_error_in_the_process_of_its_own_is_an_error_here() -> None:
    with pytest.raises(ValueError, match="not here"):
        peak_bytes(int, "not here")  # type: ignore[arg-type]


def test_what_is_measured_says_on_what_and_by_which_settings(toy: str) -> None:
    threads = torch.get_num_threads()
    result = measured(toy, quick=False)
    assert list(result) == ["figures", "machine", "load", "versions", "timing", "experiment"]
    assert set(result["figures"][0]) == {"name", "ours", "rival", "ratio", "unit", "spread", "goal", "met"}
    assert [figure["met"] for figure in result["figures"]] == [True, True, None]
    assert result["machine"]["cores"] >= 1
    assert result["versions"]["torch"] == torch.__version__
    assert result["experiment"]["size"] == 10
    assert torch.get_num_threads() == threads
    small = measured(toy, quick=True)
    assert [figure["met"] for figure in small["figures"]] == [None, None, None], "goals are not judged"
    assert small["experiment"]["hash"] != result["experiment"]["hash"]
    assert measured(toy, quick=True)["experiment"] == small["experiment"]


def test_the_json_is_one_object_and_a_missed_goal_is_the_exit_status(
    toy: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", toy, "--json"]) == 0
    said = capsys.readouterr()
    assert (len(json.loads(said.out)["figures"]), said.out.count("\n"), said.err) == (3, 1, "")

    class Missed(Toy):
        """A goal out of reach."""

        goal: float = 4.0

    monkeypatch.setattr(benches, "BENCHES", {"toy": Missed})
    assert main(["bench", toy, "--json"]) == 1
    assert [figure["met"] for figure in json.loads(capsys.readouterr().out)["figures"]] == [True, False, None]
    assert main(["bench", toy]) == 1
    assert main(["bench", toy, "--quick"]) == 0


def test_the_table_has_every_figure_and_says_when_goals_are_not_judged(
    toy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", toy]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[1][-9:] == ["1", "4", "ms", "4", "±", "0", "%", "≥", "2"] or rows[1][-1] == "yes"
    assert rows[3][-1] == "judged", "what has no goal is not judged either"
    assert main(["bench", toy, "--quick"]) == 0
    out = capsys.readouterr().out
    assert "quick: settings too small to judge a goal by" in out
    assert " yes" not in out


def test_an_unknown_benchmark_is_one_line_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "delta-rul"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert (
        said.err
        == "error[E_CONFIG] no benchmark 'delta-rul' · cotune bench · did you mean 'delta-rule'? known: "
        + (", ".join(sorted(BENCHES)) + "\n")
    )
    with pytest.raises(CotuneError):
        measured("delta-rul", quick=True)


def test_without_a_name_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(BENCHES)
    assert all(line.endswith(".") for line in lines)


def test_the_delta_rule_has_its_five_figures_with_the_goals_of_the_design() -> None:
    result = measured("delta-rule", quick=True)
    goals: dict[str, Any] = {figure["name"].partition(" · ")[0]: figure["goal"] for figure in result["figures"]}
    assert goals == {
        "chunked, forward and backward": 12,
        "lean, forward and backward": 9,
        "lean, peak memory of forward and backward": 5,
        "chunked, forward": 0.25,
        "chunked, forward and backward, 512 tokens": 6,
    }
    assert all(figure["ours"] > 0 and figure["ratio"] > 0 for figure in result["figures"])
    assert [figure["met"] for figure in result["figures"]] == [None] * 5
    assert DeltaRule().tokens == 2048


def test_benchmarks_come_with_the_package() -> None:
    assert Path(benches.__file__).parent.name == "bench"
    assert all(kind.__module__.startswith("cotune.bench.") for kind in BENCHES.values())
