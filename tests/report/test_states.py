"""Runs in every state that one can be in: each gives a report, and it says what is the matter."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from parsed import page
from written import HOSTILE, record, write_run

from cotune.core.errors import CotuneError
from cotune.core.record import Cohort, RoundRecord
from cotune.report import shown, write

FAILED = {"status": "failed", "code": "E_QUORUM", "error": "error[E_QUORUM] 3 rounds in a row had too few replies"}


def unscored(one: RoundRecord) -> RoundRecord:
    return one.model_copy(update={"global_metrics": {}, "client_metrics": {}, "evaluated": ""})


def abandoned(one: RoundRecord) -> RoundRecord:
    if one.round != 2:
        return one
    first, *others = one.cohort.selected
    cohort = Cohort(selected=one.cohort.selected, accepted=(first,), dropped={"E_LATE": tuple(others)})
    return unscored(one).model_copy(update={"abandoned": "error[E_QUORUM] too few replies", "cohort": cohort})


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"status": "running", "code": None, "error": None}, "Under way, with 2 of 9 rounds played so far"),
        ({"status": "interrupted", "code": None, "error": None}, "Interrupted after 2 of 9 rounds"),
        (FAILED, "Failed after 2 of 9 rounds"),
    ],
)
def test_an_unfinished_run_says_so_and_how_to_go_on(tmp_path: Path, status: dict[str, str], said: str) -> None:
    written = page(write_run(tmp_path / "toy", played=2, planned=9, status=status))
    assert said in written.text
    assert "--resume" in written.text
    assert (status["error"] or "") in written.text
    assert (status["code"] or "") in written.text


def test_a_run_without_a_whole_checkpoint_starts_anew(tmp_path: Path) -> None:
    status = {"status": "failed", "code": "E_HASH", "error": "error[E_HASH] no checkpoint is whole"}
    assert "--fresh" in page(write_run(tmp_path / "toy", status=status)).text


def test_a_run_before_its_first_round_has_a_card(tmp_path: Path) -> None:
    written = page(write_run(tmp_path / "toy", played=0, status={"status": "running", "code": None, "error": None}))
    assert "No round has been recorded." in written.text
    assert "plot-curves" not in written.html


def test_a_run_that_failed_before_it_began_has_a_card(tmp_path: Path) -> None:
    folder = tmp_path / "toy-1"
    folder.mkdir()
    (folder / "status.json").write_text('{"status": "failed", "code": "E_DATA", "error": "error[E_DATA] no file"}')
    written = page(folder)
    assert "toy-1" in written.text
    assert "error[E_DATA] no file" in written.text
    assert "no experiment.json" in written.text


def test_a_run_without_any_evaluation_shows_what_it_has(tmp_path: Path) -> None:
    written = page(write_run(tmp_path / "toy", change=unscored))
    assert [option["value"] for option in written.data["choices"]["metric"]] == ["train_loss", "change_norm"]
    assert "No client has been scored" in written.text


def test_metrics_may_be_missing_in_some_rounds(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "toy", played=4, change=lambda one: unscored(one) if one.round % 2 else one)
    written = page(folder)
    values = written.column("r0/accuracy")
    assert [value is None for value in values] == [True, False, True, False]
    assert written.table("Every number by round").column("Accuracy") == values


def test_an_abandoned_round_is_crossed_and_its_dropped_clients_are_named(tmp_path: Path) -> None:
    written = page(write_run(tmp_path / "toy", change=abandoned))
    assert written.column("r0/symbol") == ["circle", "x", "circle"]
    assert "1 round was abandoned, and theta stayed as it was: 2." in written.text
    table = written.table("Cohorts of toy")
    assert table.texts("Who was dropped")[1].startswith("E_LATE: ")
    assert table.texts("Why the round was abandoned")[1] == "error[E_QUORUM] too few replies"
    names = [trace.get("name") for trace in written.data["plots"]["participation"]["figures"]["r0"]["data"]]
    assert names == [None, "counted", "round abandoned", "E_LATE"]


def test_a_single_round_is_a_report(tmp_path: Path) -> None:
    written = page(write_run(tmp_path / "toy", played=1, planned=1))
    assert written.column("r0/x/round") == [1]
    assert "pareto" not in written.data["plots"]


def test_without_flops_nothing_is_drawn_over_them(tmp_path: Path) -> None:
    def uncounted(one: RoundRecord) -> RoundRecord:
        return one.model_copy(update={"flops": 0.0})

    written = page(write_run(tmp_path / "a", name="a", change=uncounted), write_run(tmp_path / "b", change=uncounted))
    for choice in ("x", "cost", "spent"):
        assert "flops" not in [option["value"] for option in written.data["choices"][choice]]
    assert "FLOPs" not in written.text


def test_hostile_names_are_text(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "toy", name='<script>window.broken=1</script>"', clients=HOSTILE, change=abandoned)
    written = page(folder)
    assert len(written.scripts) == 3
    assert not any(name == "img" or "onload" in attributes for name, attributes in written.tags)
    assert set(written.table("Rows of the clients").texts("Client")) >= set(HOSTILE) - {"\u202eright to left"}
    assert "<" not in "".join(written.column("r0/clients"))
    assert len(set(written.column("r0/clients"))) == len(HOSTILE)


def test_names_that_differ_in_their_middle_alone_stay_apart(tmp_path: Path) -> None:
    clients = [f"{'a' * 40}{i}{'b' * 40}" for i in range(5)]
    assert len(set(page(write_run(tmp_path / "toy", clients=clients)).column("r0/clients"))) == 5


def test_two_hundred_clients_are_no_trouble(tmp_path: Path) -> None:
    clients = [f"client-{i}" for i in range(200)]
    folder = write_run(tmp_path / "toy", clients=clients, played=40, planned=40)
    began = time.perf_counter()
    path = write([folder])
    assert time.perf_counter() - began < 10
    assert path.stat().st_size < 8e6
    written = page(folder)
    assert written.column("r0/clients") == clients
    assert len(written.table("Cohorts of toy").rows) == 40


def test_runs_of_one_name_are_told_apart_by_seed_and_share_a_colour(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / f"{n}-{s}", name=n, seed=s) for n in ("fedprox", "local") for s in (0, 1)]
    runs = shown(folders)
    assert [run.label for run in runs] == ["fedprox · seed 0", "fedprox · seed 1", "local · seed 0", "local · seed 1"]
    assert [run.colour for run in runs] == ["run-0", "run-0", "run-1", "run-1"]
    assert len({(run.colour, run.dash) for run in runs}) == 4


def test_runs_of_one_name_alone_have_a_colour_each(tmp_path: Path) -> None:
    runs = shown([write_run(tmp_path / f"toy-{i}", name="toy") for i in range(3)])
    assert [run.label for run in runs] == ["toy-0", "toy-1", "toy-2"]
    assert len({run.colour for run in runs}) == 3


def test_twenty_runs_differ_in_colour_or_dash(tmp_path: Path) -> None:
    runs = shown([write_run(tmp_path / f"r{i}", name=f"r{i}", played=1) for i in range(20)])
    assert len({(run.colour, run.dash) for run in runs}) == 20


def test_files_of_another_version_are_one_line(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "toy")
    (folder / "rounds.jsonl").write_text('{"round": 1, "unheard": 2}\n')
    with pytest.raises(CotuneError, match=r"error\[E_CKPT\] .* toy · got 2 fields") as caught:
        shown([folder])
    assert "\n" not in str(caught.value)


def test_a_damaged_status_names_its_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "toy")
    (folder / "status.json").write_text("{")
    with pytest.raises(CotuneError, match=r"E_CKPT.*toy"):
        shown([folder])


def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "toy")
    with (folder / "rounds.jsonl").open("a") as file:
        file.write(record(4, ("a", "b")).model_dump_json()[:50])
    assert page(folder).column("r0/x/round") == [1, 2, 3]
