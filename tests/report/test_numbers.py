"""Numbers in a report are those of rounds.jsonl and ledger.jsonl, digit by digit."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest
from parsed import Page, page
from written import write_run

from cotune.core.record import Metric
from cotune.diagnose.paired import LOWER_IS_BETTER
from cotune.report import series
from cotune.report.pages.pareto import front
from cotune.report.shown import shown
from cotune.store import Run


@pytest.fixture(scope="module")
def runs(real: Path) -> list[Run]:
    return [Run(path.parent) for path in sorted(real.glob("*/status.json"))]


@pytest.fixture(scope="module")
def both(runs: list[Run]) -> Page:
    return page(*(run.folder for run in runs))


def test_curves_bind_what_the_records_say(both: Page, runs: list[Run]) -> None:
    for i, run in enumerate(runs):
        for name in ("loss", "accuracy"):
            metrics = [record.global_metrics[name] for record in run.rounds]
            assert both.column(f"r{i}/{name}") == [metric.value for metric in metrics]
            for end in ("low", "high", "chance"):
                assert both.column(f"r{i}/{name}/{end}") == [getattr(metric, end) for metric in metrics]
        assert both.column(f"r{i}/train_loss") == [record.train_loss for record in run.rounds]
        assert both.column(f"r{i}/change_norm") == [record.diagnostics["change_norm"] for record in run.rounds]


def test_axes_are_what_was_spent_so_far(both: Page, runs: list[Run]) -> None:
    for i, run in enumerate(runs):
        records = run.rounds
        assert both.column(f"r{i}/x/round") == [record.round for record in records]
        traffic = [record.uplink_bytes + record.downlink_bytes for record in records]
        assert both.column(f"r{i}/x/bytes") == list(accumulate(traffic))
        assert both.column(f"r{i}/x/flops") == list(accumulate(record.flops for record in records))
        assert both.column(f"r{i}/x/seconds") == list(accumulate(record.seconds for record in records))


def test_the_table_of_curves_has_every_round_of_every_run(both: Page, runs: list[Run]) -> None:
    table = both.table("Every number by round")
    records = [record for run in runs for record in run.rounds]
    assert table.column("Round") == [record.round for record in records]
    assert table.column("Accuracy") == [record.global_metrics["accuracy"].value for record in records]
    assert table.column("Loss") == [record.global_metrics["loss"].value for record in records]
    assert table.column("Train loss") == [record.train_loss for record in records]
    assert table.column("Low") == [record.global_metrics["accuracy"].low for record in records]
    assert table.column("n") == [record.global_metrics["accuracy"].n for record in records]


def test_clients_are_mapped_by_round(both: Page, runs: list[Run]) -> None:
    for i, run in enumerate(runs):
        clients = sorted(run.about["clients"])
        assert both.column(f"r{i}/clients") == clients
        expected = [
            [
                record.client_metrics[client]["accuracy"].federated if client in record.client_metrics else None
                for record in run.rounds
            ]
            for client in clients
        ]
        assert both.column(f"r{i}/map/accuracy") == expected
        table = both.table("Accuracy of the model that", f"run=r{i}&client_metric=accuracy")
        assert [[value for _, value in row[1:]] for row in table.rows] == expected


def test_bars_are_of_the_last_round_that_scores_a_client(both: Page, runs: list[Run]) -> None:
    for i, run in enumerate(runs):
        last = {c: (r.round, m["accuracy"]) for r in run.rounds for c, m in r.client_metrics.items()}
        clients = sorted(last)
        assert both.column(f"r{i}/bars/accuracy/client") == clients
        assert both.column(f"r{i}/bars/accuracy/local") == [last[client][1].local for client in clients]
        assert both.column(f"r{i}/bars/accuracy/federated") == [last[client][1].federated for client in clients]
        assert both.column(f"r{i}/bars/accuracy/drop") == [last[client][1].drop for client in clients]
        table = both.table("each client where it was last scored", f"run=r{i}&client_metric=accuracy")
        assert table.texts("Client") == clients
        assert table.column("Drop (points)") == [last[client][1].drop for client in clients]
        assert table.column("Round") == [last[client][0] for client in clients]


def test_the_tail_is_the_worst_quarter(tmp_path: Path) -> None:
    run = Run(write_run(tmp_path / "toy", clients=[f"c{i}" for i in range(16)]))
    table = page(run.folder).table("Mean, worst quarter and worst client")
    scores = {client: m["accuracy"].federated or 0 for client, m in run.rounds[-1].client_metrics.items()}
    values = sorted(scores.values())
    assert table.column("Clients") == [8]
    assert table.column("Mean") == pytest.approx([sum(values) / 8], rel=1e-15)
    assert table.column("Worst quarter") == pytest.approx([(values[0] + values[1]) / 2], rel=1e-15)
    assert table.column("Worst") == [values[0]]
    assert table.texts("Worst client") == [min(scores, key=scores.__getitem__)]
    drops = [m["accuracy"].drop or 0 for m in run.rounds[-1].client_metrics.values()]
    assert table.column("Largest drop") == [max(drops)]


def test_bytes_are_the_ledgers_and_add_up_to_the_records(both: Page, runs: list[Run]) -> None:
    check = both.table("Bytes in all")
    assert check.column("Ledger") == check.column("Records")
    assert set(check.texts("Comparison")) == {"equal in every round"}
    for i, run in enumerate(runs):
        table = both.table("from its ledger", f"run=r{i}")
        parts = table.heads[4:-1]
        assert table.column("Together") == [sum(value or 0 for _, value in row[4:-1]) for row in table.rows]
        recorded = {record.round: record for record in run.rounds}
        for round_, purpose, way, total in zip(
            table.column("Round"), table.texts("For"), table.texts("Direction"), table.column("Together"), strict=True
        ):
            if purpose == "Training":
                assert round_ is not None
                record = recorded[int(round_)]
                assert total == (record.uplink_bytes if way == "up" else record.downlink_bytes)
        assert sum(table.column("Messages")[j] or 0 for j in range(len(table.rows))) == len(run.ledger)
        sums = [0] * len(run.rounds)
        for part in parts:
            column = both.column(f"r{i}/bytes/train/up/{part.replace(' ', '_')}")
            sums = [total + count for total, count in zip(sums, column, strict=True)]
        assert sums == [record.uplink_bytes for record in run.rounds]


def test_a_ledger_that_lacks_a_line_is_said_to_differ(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "toy")
    lines = (folder / "ledger.jsonl").read_text().splitlines()
    (folder / "ledger.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    check = page(folder).table("Bytes in all")
    assert check.texts("Comparison") == ["equal in every round"] * 2 + ["differs in round 3"]


def test_cards_hold_totals_and_the_last_scores(both: Page, runs: list[Run]) -> None:
    for field in ("uplink_bytes", "downlink_bytes", "evaluation_bytes", "flops", "seconds"):
        shown = [float(a["data-value"] or 0) for _, a in both.tags if a.get("data-field") == field]
        assert shown == [sum(getattr(record, field) for record in run.rounds) for run in runs]
    peaks = [float(a["data-value"] or 0) for _, a in both.tags if a.get("data-field") == "peak_bytes"]
    assert peaks == [max(record.peak_bytes for record in run.rounds) for run in runs]
    scores = [float(a["data-value"] or 0) for _, a in both.tags if a.get("data-metric") == "accuracy"]
    assert scores == [run.rounds[-1].global_metrics["accuracy"].value for run in runs]
    for run in runs:
        assert f'data-value="{run.theta_sha256}"' in both.html
        metric = run.rounds[-1].global_metrics["accuracy"]
        assert f"n = {metric.n:,}" in both.text
        assert run.rounds[-1].evaluated in both.text


def test_the_front_is_what_no_other_point_beats() -> None:
    points = [(1.0, 0.5), (2.0, 0.7), (3.0, 0.6), (2.0, 0.7), (4.0, 0.7), (1.0, 0.4)]
    assert front(points, less=False) == [0, 1, 3]
    assert front([(1.0, 0.5), (2.0, 0.7), (3.0, 0.1)], less=True) == [0, 2]
    assert front([], less=True) == []


def test_runs_are_placed_by_their_final_value_and_what_they_cost(both: Page, runs: list[Run]) -> None:
    for i, run in enumerate(runs):
        records = run.rounds
        assert both.column(f"r{i}/cost/bytes") == [sum(r.uplink_bytes + r.downlink_bytes for r in records)]
        assert both.column(f"r{i}/cost/peak") == [max(record.peak_bytes for record in records)]
        assert both.column(f"r{i}/final/loss/value") == [records[-1].global_metrics["loss"].value]
    assert both.table("Final loss against flops", "final=loss&cost=flops").texts("On the front").count("yes") >= 1


def test_the_seeds_of_a_row_of_a_comparison_are_one_point_of_one_colour(tmp_path: Path) -> None:
    names = [(row, seed) for row in ("near", "far") for seed in range(3)] + [("alone", 0)]
    folders = [write_run(tmp_path / f"{row}{seed}", name=f"{row}-seed-{seed}", seed=seed) for row, seed in names]
    told = page(*folders)
    _, near, far, alone = told.data["plots"]["pareto"]["figures"][""]["data"]
    assert [one["name"] for one in (near, far, alone)] == ["near", "far", "alone-seed-0"]
    runs = [Run(folder) for folder in folders[:3]]
    values = [run.rounds[-1].global_metrics["loss"].value for run in runs]
    assert told.column("r0/final/loss/value") == pytest.approx([sum(values) / 3], rel=1e-12)
    assert (told.column("r0/final/loss/low"), told.column("r0/final/loss/high")) == ([min(values)], [max(values)])
    costs = [sum(r.uplink_bytes + r.downlink_bytes for r in run.rounds) for run in runs]
    assert told.column("r0/cost/bytes") == pytest.approx([sum(costs) / 3], rel=1e-12)
    table = told.table("Final loss against flops", "final=loss&cost=flops")
    assert len(table.column("Low")) == 3
    assert table.column("n")[0] == sum(run.rounds[-1].global_metrics["loss"].n for run in runs)
    seen = shown(folders)
    assert [len({(run.colour) for run in seen[start : start + 3]}) for start in (0, 3)] == [1, 1]
    assert len({run.colour for run in seen}) == 3
    assert len({run.symbol for run in seen[:3]}) == 3


def test_more_rows_than_colours_differ_in_their_symbol(tmp_path: Path) -> None:
    seen = shown([write_run(tmp_path / f"{row}", name=f"row-{row}-seed-0") for row in range(12)])
    assert len({(run.colour, run.symbol) for run in seen}) == 12


def test_rows_by_class_are_those_of_the_data(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "toy", clients=("b", "a"))
    written = page(folder)
    assert [written.column(f"r0/holds/{i}") for i in range(4)] == [[41, 40], [43, 43], [67, 66], [17, 17]]
    table = written.table("Rows of the clients")
    assert (table.texts("Client"), table.column("class 0"), table.column("Training")) == (
        ["a", "b"],
        [41, 40],
        [67, 66],
    )


def test_no_interval_and_numbers_that_are_none_stay_out_of_the_data(tmp_path: Path) -> None:
    odd = Metric(value=float("inf"), n=1, low=None, high=None)
    folder = write_run(
        tmp_path / "toy",
        change=lambda one: one.model_copy(update={"global_metrics": {"loss": odd}, "train_loss": float("nan")}),
    )
    written = page(folder)
    assert written.column("r0/loss") == [None] * 3
    assert written.column("r0/train_loss") == [None] * 3
    assert written.table("Every number by round").texts("Loss") == ["∞"] * 3


def test_what_is_better_is_what_the_comparison_says() -> None:
    assert all(map(series.less_is_better, LOWER_IS_BETTER))
    assert not series.less_is_better("accuracy")
