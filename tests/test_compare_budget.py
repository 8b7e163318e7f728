"""Rows that stop at equal bytes or FLOPs, tests of right and wrong, and tables of runs that had not come to rest."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cotune as ct
from cotune.comparison.ahead import _alone
from cotune.comparison.allowance import Allowance, carry_out
from cotune.comparison.measure import Discordant, Pair, _discordant
from cotune.comparison.played import Played
from cotune.core.errors import Code
from cotune.core.events import Watch
from cotune.core.record import ClientMetric, Cohort, Metric, RoundRecord
from cotune.diagnose.paired import mcnemar
from cotune.engine import InlineEngine
from cotune.experiment import Experiment
from cotune.report.pages.pareto import pareto
from cotune.report.plot import Columns
from cotune.report.shown import shown
from cotune.store import Run

BACKBONE = "random:bert?layers=1&hidden=16&heads=2"
ROUNDS = 5


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> ct.task.Classify:
    """75 rows of three clients that tell their label plainly."""
    draw = np.random.Generator(np.random.Philox(1))
    lines = [
        {"text": ("a" if label else "z") * int(draw.integers(3, 9)), "label": label, "who": f"c{i % 3}"}
        for i, label in enumerate(draw.integers(0, 2, 75).tolist())
    ]
    path = tmp_path_factory.mktemp("data") / "easy.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return ct.task.Classify(data=str(path), partition=ct.task.Natural(key="who"))


def rows() -> dict[str, ct.Method | str]:
    """Both factors travel, or one; nothing is learned, or much."""
    both = {"steps": 3, "batch": 8}
    return {
        "still": ct.recipe("lora-fedavg", lr=0, **both),
        "half": ct.recipe("ffa-lora", lr=0.1, **both),
        "local": ct.recipe("local", lr=0.05),
    }


class Moments:
    """Counts what a comparison tells."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def __call__(self, name: str, about: Mapping[str, Any]) -> None:
        del about
        self.counts[name] += 1


def compared(out: Path, task: ct.task.Classify, budget: str | None, **settings: Any) -> ct.Comparison:
    given = {"rows": rows(), "task": task, "backbone": BACKBONE, "rounds": ROUNDS, "seeds": 1, **settings}
    return ct.compare(given.pop("rows"), out=out, budget=budget, **given)


def both_ways(run: Run) -> list[int]:
    return [record.uplink_bytes + record.downlink_bytes for record in run.rounds]


@pytest.fixture(scope="module")
def whole(task: ct.task.Classify, tmp_path_factory: pytest.TempPathFactory) -> ct.Comparison:
    """Every row with all its rounds."""
    return compared(tmp_path_factory.mktemp("whole"), task, None)


@pytest.fixture(scope="module")
def bytes_(whole: ct.Comparison) -> int:
    """A budget of three rounds and a half of the row whose messages are larger."""
    return both_ways(whole.runs["still"][0])[0] * 7 // 2


@pytest.fixture(scope="module")
def done(task: ct.task.Classify, bytes_: int, tmp_path_factory: pytest.TempPathFactory) -> ct.Comparison:
    return compared(tmp_path_factory.mktemp("done"), task, f"bytes={bytes_}")


def test_every_row_stops_at_the_last_round_within_the_budget(
    done: ct.Comparison, whole: ct.Comparison, bytes_: int
) -> None:
    counts = {label: len(runs[0].rounds) for label, runs in done.runs.items()}
    assert counts["still"] == 3 < counts["half"]
    for label in ("still", "half"):
        each = both_ways(whole.runs[label][0])
        fit = max(i for i in range(1, ROUNDS + 1) if sum(each[:i]) <= bytes_)
        assert counts[label] == fit
    told = {row["label"]: row for row in done.table["rows"]}
    assert {label: row["rounds"] for label, row in told.items()} == {label: [n] for label, n in counts.items()}
    for label, row in told.items():
        spent = sum(both_ways(done.runs[label][0]))
        assert row["uplink_bytes"] + row["downlink_bytes"] == spent <= bytes_
        assert row["spent"] == [pytest.approx(spent / bytes_)]


def test_a_row_that_stopped_has_the_theta_and_the_scores_of_a_longer_run_at_that_round(
    done: ct.Comparison, whole: ct.Comparison
) -> None:
    for label in ("still", "half"):
        short, long = done.runs[label][0], whole.runs[label][0]
        last = short.rounds[-1]
        assert last.theta_sha256 == long.rounds[last.round - 1].theta_sha256
        (row,) = [row for row in done.table["rows"] if row["label"] == label]
        assert row["value"] == pytest.approx(np.mean(short.scores(last.round)["accuracy"]))
        assert row["client_steps"] == 3 * 3 * last.round


def test_the_table_says_the_budget_who_stopped_where_and_what_alone_was_given(done: ct.Comparison, bytes_: int) -> None:
    text = str(done)
    assert f"budget bytes={bytes_} a run" in text.splitlines()[0]
    assert "Rounds differ by row" in text
    assert f"local: steps cost no bytes; they are those of all {ROUNDS} rounds." in text
    (line,) = [line for line in text.splitlines() if line.split()[:4] == ["still", "0", "27", "3"]]
    assert line
    assert done.table["budget"] == {"what": "bytes", "amount": bytes_}
    assert done.about["budget"] == f"bytes={bytes_}"


def test_a_repetition_plays_nothing_and_says_the_same(
    task: ct.task.Classify, done: ct.Comparison, bytes_: int, tmp_path: Path
) -> None:
    shutil.copytree(done.folder.parent, tmp_path / "again")
    moments = Moments()
    again = compared(tmp_path / "again", task, f"bytes={bytes_}", watch=moments)
    assert (moments.counts["round"], moments.counts["reused"]) == (0, 3)
    assert str(again) == str(done)


def test_a_killed_run_goes_on_and_stops_at_the_same_round(done: ct.Comparison, bytes_: int, tmp_path: Path) -> None:
    experiment = Experiment.model_validate(done.runs["still"][0].about["experiment"])
    allowance = Allowance("bytes", bytes_)

    def kill(name: str, about: Mapping[str, Any]) -> None:
        if name == "recorded" and about["record"].round == 2:
            raise KeyboardInterrupt

    def played(watch: Watch) -> Run:
        return carry_out(experiment, tmp_path, allowance, fresh=False, watch=watch, make_engine=InlineEngine)

    with pytest.raises(KeyboardInterrupt):
        played(kill)
    moments = Moments()
    found = [record.theta_sha256 for record in played(moments).rounds]
    assert found == [record.theta_sha256 for record in done.runs["still"][0].rounds]
    assert (moments.counts["resumed"], moments.counts["recorded"], moments.counts["spent"]) == (1, 1, 1)


def test_a_process_of_its_own_stops_a_run_at_the_same_round(done: ct.Comparison, bytes_: int, tmp_path: Path) -> None:
    experiment = Experiment.model_validate(done.runs["still"][0].about["experiment"])
    _alone(experiment, tmp_path, False, InlineEngine, Allowance("bytes", bytes_))
    assert len(Run(experiment.folder(tmp_path)).rounds) == 3


def test_flops_are_a_budget_too_and_alone_a_client_takes_the_steps_that_fit(
    task: ct.task.Classify, whole: ct.Comparison, tmp_path: Path
) -> None:
    amount = 2.5 * whole.runs["half"][0].rounds[0].flops
    found = compared(tmp_path, task, f"flops={amount}", sweep=(0.0, 0.05))
    told = {row["label"]: row for row in found.table["rows"]}
    for row in told.values():
        assert 0.5 * amount < row["flops"] <= amount
    assert told["half"]["rounds"] == [2]
    steps = found.runs["local"][0].about["experiment"]["method"]["budget"]["steps"]
    assert told["local"]["client_steps"] == 3 * steps
    one_more = told["local"]["flops"] * (steps + 1) / steps
    assert one_more > 0.95 * amount
    for label, search in found.table["search"].items():
        assert len(search["scores"]) == 2, label
        assert search["flops"] <= 2 * amount
    head = next(line for line in str(found).splitlines() if line.startswith("search for the learning rate"))
    assert f"every row tries the same 2 rates, each with the budget flops={amount:.15g}" in head


def test_a_budget_below_one_round_and_a_rate_that_falls_to_the_end_are_refused(
    task: ct.task.Classify, tmp_path: Path
) -> None:
    with pytest.raises(ct.CotuneError, match="row 'still' has no scored round within the budget of bytes=10") as caught:
        compared(tmp_path, task, "bytes=10")
    assert caught.value.code is Code.CONFLICT
    assert "got a first round of bytes=" in str(caught.value)
    falling = {"a": ct.recipe("lora-fedavg", **{"budget.schedule": "linear"}), "b": ct.recipe("lora-fedavg")}
    with pytest.raises(ct.CotuneError, match="row 'a' has a learning rate that falls over all rounds") as caught:
        compared(tmp_path, task, "bytes=1e6", rows=falling)
    assert caught.value.code is Code.CONFLICT


@pytest.mark.parametrize(
    "text", ["", "bytes", "bytes=", "bytes=x", "bytes=0", "flops=-1", "flops=inf", "flops=nan", "s=1"]
)
def test_a_budget_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ct.CotuneError, match="cannot read the budget") as caught:
        Allowance.read(text)
    assert caught.value.code is Code.CONFIG


def record(
    round_: int, *, sent: int = 0, flops: float = 0.0, losses: Sequence[float] = (), scored: bool = True
) -> RoundRecord:
    clients = {f"c{i}": {"loss": ClientMetric(federated=loss, n=1)} for i, loss in enumerate(losses)}
    metrics = {"loss": Metric(value=1.0, n=1, low=None, high=None)} if scored else {}
    return RoundRecord(
        round=round_,
        cohort=Cohort(selected=()),
        uplink_bytes=sent,
        downlink_bytes=2 * sent,
        flops=flops,
        global_metrics=metrics,
        client_metrics=clients,
    )


def test_the_last_scored_round_that_is_paid_for_counts_and_a_dear_round_is_not_begun() -> None:
    records = [record(1, sent=1, scored=False), record(2, sent=2), record(3, sent=1, scored=False), record(4, sent=1)]
    for amount, within in ((2, 0), (8.9, 0), (9, 2), (14, 2), (15, 4), (99, 4)):
        assert len(Allowance("bytes", amount).within(records)) == within
    assert [Allowance("bytes", amount).spent(records[:3]) for amount in (17.9, 18)] == [True, False]
    assert not Allowance("bytes", 1).spent([])
    assert Allowance("flops", 1).of([record(1, flops=2.5), record(2, flops=1.5)]) == 4


def fall(folder: Path, losses: Mapping[int, Sequence[float]], last: int) -> float | None:
    """What is read of a run whose rounds have these losses on clients' held-back rows."""
    lines = [record(i, losses=losses.get(i, ())).model_dump_json() for i in range(1, last + 1)]
    (folder / "status.json").write_text(json.dumps({"status": "finished"}))
    (folder / "rounds.jsonl").write_text("".join(f"{line}\n" for line in lines))
    ground = Experiment(
        method=ct.recipe("local"), task=ct.task.Classify(data="synth:sentiment"), backbone=ct.Backbone(ref=BACKBONE)
    )
    return Played(ground, Run(folder)).fall


@pytest.mark.parametrize(
    ("losses", "last", "expected"),
    [
        ({6: [1.0, 3.0], 8: [0.9, 2.7]}, 8, 0.1),  # 2 -> 1.8 over two rounds of eight
        ({4: [1.0], 8: [0.8]}, 8, 0.1),  # 0.2 over half of them
        ({6: [1.0], 7: [5.0], 8: [1.0]}, 8, 0.0),
        ({6: [1.0], 8: [1.5]}, 8, -0.5),
        ({7: [1.0], 8: [0.5]}, 8, None),  # nothing before the last quarter
        ({8: [0.5]}, 8, None),
        ({1: [0.5]}, 1, None),
        ({}, 8, None),
    ],
)
def test_how_much_a_loss_fell_over_the_last_quarter(
    tmp_path: Path, losses: Mapping[int, Sequence[float]], last: int, expected: float | None
) -> None:
    found = fall(tmp_path, losses, last)
    assert found == (expected if expected is None else pytest.approx(expected, abs=1e-12))


def test_a_table_of_runs_that_still_fall_is_titled_early_and_one_at_rest_is_not(
    task: ct.task.Classify, whole: ct.Comparison, tmp_path: Path
) -> None:
    falls = {row["label"]: row["fall"] for row in whole.table["rows"]}
    assert falls["still"] == 0
    assert falls["half"] > 0.01
    assert falls["local"] is None
    assert whole.table["early"] == ["half"]
    assert whole.table["unsettled"] == []
    assert str(whole).splitlines()[0].endswith(" · early")
    assert "early: the loss on held-back rows fell by more than 1 % over the last quarter of the rounds: half " in str(
        whole
    )
    two = {"still": rows()["still"], "also": rows()["still"]}
    rest = compared(tmp_path, task, None, rows=two, rounds=2, local=False)
    assert rest.table["early"] == []
    assert "early" not in str(rest)
    one = compared(tmp_path, task, None, rows=two, rounds=1, local=False)
    assert str(one).splitlines()[0].endswith(" · not known whether early")
    assert "early is not known, as no earlier round was scored on clients' held-back rows: still, also." in str(one)


def test_right_and_wrong_have_mcnemars_test_beside_the_interval(done: ct.Comparison) -> None:
    ours, theirs = (
        np.array(done.runs[label][0].scores(done.runs[label][0].rounds[-1].round)["accuracy"])
        for label in ("still", "half")
    )
    more, fewer = int((ours > theirs).sum()), int((ours < theirs).sum())
    (pair,) = [p for p in done.table["pairs"] if (p["ours"], p["theirs"]) == ("still", "half")]
    assert pair["discordant"] == {"ours": more, "theirs": fewer, "p": mcnemar(more, fewer)}
    assert more + fewer > 0
    (row,) = [row for row in done.table["rows"] if row["label"] == "half"]
    assert (row["gain"]["discordant"]["ours"], row["gain"]["discordant"]["theirs"]) == (fewer, more)
    assert f"{fewer}:{more}, p " in str(done)
    assert "McNemar: the test rows that a row alone has right" in str(done)


def test_a_row_of_several_seeds_counts_once_for_who_has_it_right_more_often() -> None:
    draw = np.random.Generator(np.random.Philox(3))
    ours, theirs = (draw.integers(0, 2, (40, 3)).astype(float) for _ in range(2))
    gone = draw.random((40, 3)) < 0.3
    ours[gone], theirs[gone] = np.nan, np.nan
    more = fewer = 0
    for a, b in zip(ours.tolist(), theirs.tolist(), strict=True):
        net = sum(x - y for x, y in zip(a, b, strict=True) if not np.isnan(x))
        more, fewer = more + (net > 0), fewer + (net < 0)
    assert _discordant(ours, theirs) == Discordant(more, fewer, mcnemar(more, fewer))
    assert _discordant(np.array([[1.0], [0.5]]), np.array([[0.0], [1.0]])) is None


def test_the_other_way_round_the_counts_change_places() -> None:
    pair = Pair("a", "b", 0.1, 0.0, 0.2, 0.1, 0.1, 0.1, (0.1,), Discordant(4, 1, 0.375))
    assert pair.turned().discordant == Discordant(1, 4, 0.375)
    assert pair.turned().turned() == pair


FAMILIES = (
    "local", "lora-fedavg", "fedprox", "scaffold", "fedssi", "fedala", "ffa-lora", "subspace-reg", "fednl", "fedspzo",
)  # fmt: skip


def test_all_families_run_under_one_budget_and_give_one_table_and_one_pareto_plot(tmp_path: Path) -> None:
    small = {"budget.steps": 1, "budget.batch": 2}
    found = ct.compare(
        {name: ct.recipe(name, **small) for name in FAMILIES},
        task=ct.task.Choice(data="synth:choice?domains=5&rows=30"),
        backbone="random:llama?layers=2&hidden=8&heads=2",
        rounds=2,
        seeds=1,
        budget="flops=3e8",
        out=tmp_path,
    )
    assert [row["label"] for row in found.table["rows"]] == [*FAMILIES]
    told = {row["label"]: row["rounds"] for row in found.table["rows"]}
    assert told["lora-fedavg"] == [2]
    assert told["fedala"] == [1], "its second round, the first in which it mixes, would have been too much"
    assert all(row["flops"] <= 3e8 for row in found.table["rows"])
    assert len(found.table["pairs"]) == len(FAMILIES) * (len(FAMILIES) - 1) / 2
    assert found.table["chance"] == 0.25
    labels, folders = zip(*((label, runs[0].folder) for label, runs in found.runs.items()), strict=True)
    columns: Columns = {}
    drawn = dict(zip(labels, shown(folders), strict=True))
    (plot,) = pareto([*drawn.values()], columns)
    assert len(plot.figures[""]["data"]) == 1 + len(FAMILIES)
    for row in found.table["rows"]:
        key = drawn[row["label"]].key
        assert columns[f"{key}/cost/flops"] == [row["flops"]]
        assert columns[f"{key}/final/accuracy/value"] == [pytest.approx(row["value"])]
