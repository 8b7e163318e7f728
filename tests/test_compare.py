"""Comparisons of rows whose difference is known: none at all, or planted."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import cotune as ct
from cotune.comparison import ask
from cotune.comparison.measure import Measured, Pair
from cotune.comparison.play import Player
from cotune.comparison.played import names
from cotune.comparison.said import verdicts
from cotune.core.contracts import ClientInfo, Optimizer
from cotune.core.errors import Code
from cotune.core.view import Objective, Step, View
from cotune.diagnose import mean_interval
from cotune.engine import InlineEngine
from cotune.experiment import Experiment

BACKBONE = "random:bert?layers=1&hidden=16&heads=2"
SENTIMENT = "synth:sentiment?clients=4&rows=160"
GOOD, USELESS = 0.05, 0.0


@pytest.fixture(scope="module")
def easy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """160 rows of four clients that tell their label plainly; their lengths tell nothing."""
    draw = np.random.Generator(np.random.Philox(1))
    rows = [
        {"text": ("a" if label else "z") * int(draw.integers(3, 9)), "label": label, "who": f"c{i % 4}"}
        for i, label in enumerate(draw.integers(0, 2, 160).tolist())
    ]
    path = tmp_path_factory.mktemp("data") / "easy.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def classify(data: str) -> ct.task.Classify:
    return ct.task.Classify(data=data, partition=ct.task.Natural(key="who") if data.endswith("jsonl") else None)


def method(lr: float, steps: int = 8, **fields: Any) -> ct.Method:
    return ct.recipe("lora-fedavg", lr=lr, steps=steps, **fields)


class Moments:
    """Counts what a comparison tells."""

    def __init__(self, stop: int | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self.stop = stop

    def __call__(self, name: str, about: Mapping[str, Any]) -> None:
        self.counts[name] += 1
        if name == "checkpoint-renamed" and self.counts[name] == self.stop:
            raise KeyboardInterrupt


def rows() -> dict[str, ct.Method | str]:
    return {"useless": method(USELESS), "good": method(GOOD), "twin": method(GOOD), "local": alone()}


def alone() -> ct.Method:
    return ct.recipe("local", lr=GOOD)


def planted(easy: str, out: Path, **settings: Any) -> ct.Comparison:
    given = {"rounds": 2, "cohort": 2, "seeds": 2, "task": classify(easy), "backbone": BACKBONE, **settings}
    return ct.compare(given.pop("rows", rows()), out=out, **given)


@pytest.fixture(scope="module")
def done(easy: str, tmp_path_factory: pytest.TempPathFactory) -> ct.Comparison:
    return planted(easy, tmp_path_factory.mktemp("done"))


@pytest.fixture
def again(done: ct.Comparison, tmp_path: Path) -> Path:
    """A copy of the folder of the comparison that is done, to ask another question in."""
    shutil.copytree(done.folder.parent, tmp_path / "again")
    return tmp_path / "again"


def pair(comparison: ct.Comparison, ours: str, theirs: str) -> dict[str, Any]:
    (found,) = [p for p in comparison.table["pairs"] if (p["ours"], p["theirs"]) == (ours, theirs)]
    return dict(found)


def test_identical_rows_have_exactly_no_difference(done: ct.Comparison) -> None:
    found = pair(done, "good", "twin")
    assert (found["gain"], found["low"], found["high"], found["p"], found["seen"]) == (0, 0, 0, 1, False)
    assert found["by_seed"] == [0, 0]
    unseen = [line for line in done.table["verdicts"] if line.startswith("no difference seen: ")]
    assert len(unseen) == 1
    assert "good and twin" in unseen[0]
    assert "good scores every test row as twin does." in str(done)
    twins = {row["label"]: row for row in done.table["rows"]}
    assert twins["good"]["value"] == twins["twin"]["value"]


def test_a_planted_difference_is_found_with_its_size(done: ct.Comparison) -> None:
    found = pair(done, "useless", "good")
    assert found["seen"]
    assert found["high"] < -0.1
    assert found["holm"] <= 0.05
    assert found["gain"] == pytest.approx(np.mean(found["by_seed"]))
    useless, good = done.table["rows"][:2]
    assert good["value"] - useless["value"] == pytest.approx(-found["gain"])
    assert good["gain"]["gain"] == -found["gain"]
    assert (good["gain"]["low"], good["gain"]["high"]) == (-found["high"], -found["low"])
    (line,) = [line for line in done.table["verdicts"] if line.startswith("good above useless by ")]
    assert "in 2 of 2 seeds" in line
    assert found["detectable"] < abs(found["gain"])


def test_every_row_has_the_same_data_cohorts_and_model_under_a_seed(done: ct.Comparison) -> None:
    for i in range(2):
        runs = [of[i] for label, of in done.runs.items() if label != "local"]
        cohorts = [[record.cohort.selected for record in run.rounds] for run in runs]
        assert all(cohort == cohorts[0] for cohort in cohorts)
        assert len(cohorts[0]) == 2
        abouts = [run.about for run in [of[i] for of in done.runs.values()]]
        assert len({json.dumps(about["data"]) for about in abouts}) == 1
        assert len({about["backbone_sha256"] for about in abouts}) == 1
        assert len({json.dumps(about["experiment"]["seeds"]) for about in abouts}) == 1
    splits = [of[0].about["data"]["test_manifest"] != of[1].about["data"]["test_manifest"] for of in done.runs.values()]
    assert all(splits), "seeds vary the data"


def test_the_local_row_takes_the_client_steps_of_the_others(done: ct.Comparison) -> None:
    assert {row["client_steps"] for row in done.table["rows"]} == {2 * 2 * 8}
    local = done.runs["local"][0]
    assert len(local.rounds) == 1
    assert len(local.rounds[0].cohort.accepted) == 4
    assert "32 client-steps, as the other rows" in str(done)
    by_label = {row["label"]: row for row in done.table["rows"]}
    assert by_label["local"]["drop"] is None
    assert by_label["good"]["gain_over_local"]["theirs"] == "local"
    assert by_label["good"]["drop"] is not None


def test_a_score_is_the_mean_over_seeds_and_its_rows_are_counted_once(done: ct.Comparison) -> None:
    means = [mean_interval(run.scores(2)["accuracy"])[0] for run in done.runs["good"]]
    by_label = {row["label"]: row for row in done.table["rows"]}
    assert by_label["good"]["value"] == pytest.approx(np.mean(means))
    assert by_label["good"]["by_seed"] == pytest.approx(means)
    assert done.table["n"] == [32, 32]
    assert 32 < done.table["different_rows"] < 64


def test_the_table_on_disk_is_what_is_printed(done: ct.Comparison) -> None:
    assert (done.folder / "table.txt").read_text() == f"{done}\n"
    lines = str(done).splitlines()
    assert lines[0].startswith("accuracy, higher is better · 2 seeds: 0, 1 · 32 test rows a seed, ")
    assert "chance 0." in lines[0]
    for line in (*done.table["verdicts"], *done.table["notes"]):
        assert line in lines
    described = json.loads((done.folder / "comparison.json").read_text())
    assert described["seeds"] == [0, 1]
    for label, row in described["rows"].items():
        assert [run["hash"] for run in row["runs"]] == [run.about["hash"] for run in done.runs[label]]
        assert all((done.folder / run["folder"] / "status.json").exists() for run in row["runs"])
    assert done.folder.name.startswith("compare-")


def test_a_repeated_comparison_reuses_every_run_and_says_the_same(done: ct.Comparison, easy: str, again: Path) -> None:
    moments = Moments()
    found = planted(easy, again, watch=moments)
    assert moments.counts["reused"] == moments.counts["comparing"] == 8
    assert moments.counts["round"] == 0
    assert str(found) == str(done)


def test_by_the_loss_lower_is_better_and_no_run_is_repeated(easy: str, again: Path) -> None:
    moments = Moments()
    found = planted(easy, again, watch=moments, metric="loss", reference="good")
    assert moments.counts["round"] == 0
    useless, good = found.table["rows"][:2]
    useless_runs = found.runs["useless"]
    assert useless["value"] > good["value"]
    assert useless["gain"]["high"] < 0
    assert found.table["chance"] is None
    assert any(line.startswith("good above useless by ") for line in found.table["verdicts"])
    worst = [max(one["loss"].federated or 0 for one in run.rounds[-1].client_metrics.values()) for run in useless_runs]
    assert useless["worst_client"] == pytest.approx(np.mean(worst))


def test_one_more_seed_goes_on_in_the_same_folder(done: ct.Comparison, easy: str, again: Path) -> None:
    moments = Moments()
    found = planted(easy, again, watch=moments, seeds=3)
    assert found.folder.name == done.folder.name
    assert moments.counts["reused"] == 8
    assert moments.counts["finished"] == 4
    assert [len(runs) for runs in found.runs.values()] == [3, 3, 3, 3]


def test_scores_that_are_no_numbers_are_refused_with_their_row(easy: str, tmp_path: Path) -> None:
    some: dict[str, Any] = {"rows": {"a": method(USELESS, 1), "b": method(GOOD, 1)}, "rounds": 1, "seeds": 1}
    found = planted(easy, tmp_path, local=False, **some)
    path = found.runs["b"][0].folder / "scores" / "round-00001.json"
    scores = json.loads(path.read_text())
    path.write_text(json.dumps({**scores, "loss": [*scores["loss"][1:], float("nan")]}))
    with pytest.raises(ct.CotuneError, match="row 'b' has scores that are no numbers") as caught:
        planted(easy, tmp_path, local=False, metric="loss", **some)
    assert caught.value.code is Code.NONFINITE


def test_a_killed_comparison_goes_on_where_it_was(done: ct.Comparison, easy: str, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        planted(easy, tmp_path, watch=Moments(stop=3))  # after the first of two rounds of the second run
    moments = Moments()
    found = planted(easy, tmp_path, watch=moments)
    assert (moments.counts["reused"], moments.counts["resumed"], moments.counts["finished"]) == (1, 1, 7)
    for ours, theirs in zip(found.table["pairs"], done.table["pairs"], strict=True):
        assert ours == theirs
    assert found.folder.name == done.folder.name


def test_data_that_changed_between_two_runs_is_a_conflict(easy: str, tmp_path: Path) -> None:
    moving = tmp_path / "moving.jsonl"
    lines = Path(easy).read_text().splitlines(keepends=True)
    moving.write_text("".join(lines))
    some: dict[str, Any] = {"local": False, "rounds": 1, "seeds": 1}
    planted(str(moving), tmp_path / "out", rows={"a": method(0, 1), "b": method(GOOD, 1)}, **some)
    moving.write_text("".join([*lines[80:], *lines[:80]]))
    with pytest.raises(ct.CotuneError, match="rows 'a' and 'c' did not run on the same ground") as caught:
        planted(str(moving), tmp_path / "out", rows={"a": method(0, 1), "c": method(GOOD / 2, 1)}, **some)
    assert caught.value.code is Code.CONFLICT
    assert "another test split" in str(caught.value)


def test_a_sweep_finds_the_planted_rate_for_every_row_and_says_what_that_cost(easy: str, tmp_path: Path) -> None:
    some: dict[str, Any] = {"rows": {"a": method(USELESS), "local": alone()}, "seeds": 1, "sweep": (USELESS, GOOD)}
    found = planted(easy, tmp_path, **some)
    assert [row["lr"] for row in found.table["rows"]] == [GOOD, GOOD]
    for search in found.table["search"].values():
        assert (search["chosen"], search["seed"]) == (GOOD, 1000)
        assert search["scores"]["0.05"] > search["scores"]["0"]
        assert search["client_steps"] == 2 * 32
        assert search["uplink_bytes"] > 0
        assert search["seconds"] > 0
    head, names, *lines = str(found).split("search for the learning rate: ")[1].splitlines()[:4]
    assert head.startswith("accuracy on the clients' held-back rows, on seed 1000 alone")
    assert names.split()[:4] == ["row", "0", "0.05", "chosen"]
    assert [line.split()[3:5] for line in lines] == [["0.05", "64"], ["0.05", "64"]]
    tried = sorted(path.name.rpartition("-")[0] for path in (found.folder / "search").iterdir())
    assert tried == [f"{row}-seed-1000-lr-{lr}" for row in ("a", "local") for lr in ("0", "0.05")]
    moments = Moments()
    assert str(planted(easy, tmp_path, watch=moments, **some)) == str(found)
    assert moments.counts["reused"] == 6


@pytest.mark.parametrize("rounds", [1, 3])  # fewer than the patience of a run end it, though nothing was committed
def test_a_rate_at_which_training_falls_apart_is_passed_over(easy: str, tmp_path: Path, rounds: int) -> None:
    some: dict[str, Any] = {
        "rows": {"a": method(GOOD, 2)},
        "seeds": 1,
        "local": True,
        "sweep": (1e30, GOOD),
        "rounds": rounds,
    }
    found = planted(easy, tmp_path, **some)
    search = found.table["search"]["a"]
    assert (search["chosen"], search["scores"]["1e+30"]) == (GOOD, None)
    assert "diverged" in str(found)
    moments = Moments()
    planted(easy, tmp_path, watch=moments, **some)
    assert moments.counts["round"] == 0


class Still(Optimizer):
    """Stays where it is, at no learning rate."""

    kind: ClassVar[str] = "still"

    def init(self, view: View) -> None:
        del view

    def step(self, view: View, state: None, objective: Objective) -> Step:
        raise NotImplementedError


def ground(**fields: Any) -> Experiment:
    given = {"method": method(0.1), "task": classify(SENTIMENT), "backbone": ct.Backbone(ref=BACKBONE), **fields}
    return Experiment(**given)


def still() -> ct.Method:
    return ct.Method.model_validate({**dict(method(0.1)), "optimizer": Still()})


REFUSED: dict[str, tuple[dict[str, ct.Method], dict[str, Any], str]] = {
    "a row without a learning rate in a sweep": (
        {"a": method(0.1), "b": still()},
        {"sweep": [0.1]},
        "row 'b' has no learning rate",
    ),
    "a rate that is none": ({"a": method(0.1), "b": method(1)}, {"sweep": [-1.0]}, "lr"),
    "different budgets": (
        {"a": method(0.1), "b": method(0.1, 9, batch=8)},
        {},
        "rows 'a' and 'b' have different budgets · method.budget · got steps: 8 and 9; batch: 16 and 8",
    ),
    "one row": ({"a": method(0.1)}, {}, "two rows"),
    "no seeds": ({"a": method(0.1), "b": method(1)}, {"seeds": 0}, "--seeds"),
    "an unknown metric": ({"a": method(0.1), "b": method(1)}, {"metric": "acuracy"}, "did you mean 'accuracy'?"),
    "an unknown reference": ({"a": method(0.1), "b": method(1)}, {"reference": "c"}, "no reference 'c'"),
    "nothing scored": (
        {"a": method(0.1), "b": method(1)},
        {"ground": ground(evaluation=ct.Evaluation(which="none"))},
        "nothing would be scored",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_rows_that_cannot_be_compared_are_refused_before_anything_runs(what: str) -> None:
    given, settings, hint = REFUSED[what]
    with pytest.raises(ct.CotuneError) as caught:
        ask(given, **{"ground": ground(), "seeds": 1, **settings})
    assert hint in str(caught.value)
    assert caught.value.code in (Code.CONFIG, Code.CONFLICT)


@pytest.mark.parametrize(
    ("federation", "steps"),
    [
        (ct.Federation(rounds=3, cohort=2), 12),  # 3 · 8 · 2 / 4
        (ct.Federation(rounds=3), 24),
        (ct.Federation(rounds=1, cohort=1), 2),
        (ct.Federation(rounds=3, cohort=3), 18),
        (ct.Federation(rounds=1, cohort=1, groups=(ct.Group(match="*", budget=ct.Budget(steps=1)),)), 1),  # from 0.25
        (ct.Federation(rounds=3, cohort=2, groups=(ct.Group(match="*", budget=ct.Budget(steps=3)),)), 5),  # from 4.5
    ],
)
def test_alone_a_client_takes_its_share_of_the_steps_of_all(federation: ct.Federation, steps: int) -> None:
    question = ask({"a": method(0.1, batch=4), "local": alone()}, ground(federation=federation), seeds=1)
    clients = [ClientInfo(name, 20) for name in "abcd"] + [ClientInfo("empty", 0)]
    found = question.experiment("local", alone(), 0, clients)
    assert (found.method.budget.steps, found.method.budget.batch) == (steps, 4)
    assert (found.federation.rounds, found.federation.cohort) == (1, None)


def test_a_task_without_test_rows_has_nothing_to_compare_on(tmp_path: Path) -> None:
    task = classify(SENTIMENT).model_copy(update={"test": 0})
    question = ask({"a": method(0.1), "local": alone()}, ground(task=task), seeds=1)
    with pytest.raises(ct.CotuneError, match="rows to train on and to test on"):
        Player(question, tmp_path, False, Moments(), InlineEngine).play()


@pytest.mark.parametrize(("rounds", "scored"), [(1, [1]), (2, [1, 2]), (7, [2, 4, 6, 7]), (40, [10, 20, 30, 40])])
def test_the_last_round_and_at_most_three_before_are_scored_everywhere(rounds: int, scored: list[int]) -> None:
    both = {"a": method(0.1), "b": method(1)}
    usual = ask(both, ground(federation=ct.Federation(rounds=rounds)), seeds=1).ground.evaluation
    assert [i for i in range(1, rounds + 1) if usual.due(i, rounds)] == scored
    assert usual.which == "all"


def test_what_the_ground_says_of_scoring_stays() -> None:
    both = {"a": method(0.1), "b": method(1)}
    given = ask(both, ground(evaluation=ct.Evaluation(every=2, rows=9)), seeds=1).ground.evaluation
    assert (given.every, given.which, given.rows) == (2, "all", 9)


@pytest.mark.parametrize(
    ("low", "high", "holm", "seen"),
    [(0.1, 0.3, 0.05, True), (-0.3, -0.1, 0.01, True), (0.1, 0.3, 0.06, False), (-0.1, 0.5, 0.01, False)],
)
def test_a_difference_is_seen_off_zero_and_after_the_correction_for_all_pairs(
    low: float, high: float, holm: float, seen: bool
) -> None:
    assert Pair("a", "b", (low + high) / 2, low, high, 0.001, holm, 0.1, (0.2,)).seen is seen


def test_a_difference_that_the_correction_takes_back_is_no_sentence() -> None:
    question = ask({"a": method(0.1), "b": method(1), "local": alone()}, ground(), seeds=1)
    weak = Pair("a", "b", 0.2, 0.1, 0.3, 0.04, 0.12, 0.3, (0.2,))
    pairs = (weak, replace(weak, theirs="local", holm=0.03), replace(weak, ours="b", theirs="local", low=-0.1))
    said = verdicts(Measured(question, (), pairs, {}, (9,), 9, True, None))
    assert said == [
        "a above local by 20.0 [+10.0, +30.0] · Holm p 0.03 · in 1 of 1 seeds",
        "not after Holm's correction: a and b",
        "no difference seen: b and local",
    ]


def test_where_a_task_scores_parts_of_rows_it_is_said(easy: str, again: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cotune.comparison.play.names", lambda rows: ["one document"])
    found = planted(easy, again)
    assert (found.table["different_rows"], found.table["matched_rows"]) == (64, False)
    assert "the task scores parts of rows" in str(found)


def test_rows_are_named_by_their_content_and_equal_ones_apart() -> None:
    first, second, third = names([{"text": "x", "label": 1}, {"label": 1, "text": "x"}, {"text": "x", "label": 0}])
    assert first.removesuffix("/0") == second.removesuffix("/1")
    assert len({first, second, third}) == 3
    assert names([{"text": "x", "label": 1}]) == [first]


def test_the_package_has_the_function_however_its_modules_were_imported() -> None:
    assert callable(ct.compare)
    assert ct.compare.__name__ == "compare"
