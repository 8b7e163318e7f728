"""The page about zeroth-order runs: there when there are some, and its numbers are those of the files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from parsed import page
from tiny import experiment, play
from written import write_run

from cotune.core.record import RoundRecord
from cotune.optim import SplitZO
from cotune.report import shown
from cotune.report.pages.zeroth_order import blocks, zeroth_order
from cotune.store import Run


def told(one: RoundRecord) -> RoundRecord:
    """A record as a split run leaves it, with two replies refused and one theta that was another."""
    dropped = {"E_SCALAR": ("a", "b"), "E_LATE": ("c",)} if one.round == 1 else {"E_BASE": ("d",)}
    ratio = {"energy_ratio": 4.0 * one.round, "suggested_again": float(one.round), "cut_slopes": 3.0}
    cohort = one.cohort.model_copy(update={"dropped": dropped, "selected": ("a", "b", "c", "d")})
    return one.model_copy(update={"diagnostics": {**one.diagnostics, **ratio}, "cohort": cohort})


def written(folder: Path, optimizer: dict[str, Any], change: Any = told) -> Path:
    write_run(folder, name=folder.name, change=change)
    path = folder / "experiment.json"
    about = json.loads(path.read_text())
    about["experiment"]["method"]["optimizer"] = optimizer
    path.write_text(json.dumps(about))
    return folder


SPLIT = {"kind": "split-zo", "lr": 0.1, "directions": 2, "again": 3, "direction": "sign"}


def test_a_run_with_gradients_alone_has_no_such_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "toy")
    assert zeroth_order(shown([folder])) is None
    assert "page-zeroth-order" not in page(folder).html


def test_energies_and_losses_are_those_of_the_records_beside_a_run_with_gradients(tmp_path: Path) -> None:
    ours, other = written(tmp_path / "split", SPLIT), write_run(tmp_path / "lora", name="lora", seed=3)
    found = page(ours, other)
    records = Run(ours).rounds
    for name in ("energy_ratio", "suggested_again"):
        assert found.column(f"r0/zeroth/{name}") == [record.diagnostics[name] for record in records]
    drawn = found.data["plots"]["spent"]["figures"][""]["data"]
    assert [trace["bind"]["y"] for trace in drawn] == ["r0/{spent_loss}", "r1/{spent_loss}"]
    table = found.table("Loss for what was spent")
    both = [record for folder in (ours, other) for record in Run(folder).rounds]
    assert table.column("Loss on test rows") == [record.global_metrics["loss"].value for record in both]
    assert table.column("Mean training loss") == [record.train_loss for record in both]
    so_far = [sum(record.flops for record in records[: i + 1]) for i in range(len(records))]
    assert table.column("FLOPs so far")[: len(records)] == so_far


def test_refused_scalars_cut_slopes_and_other_thetas_are_counted(tmp_path: Path) -> None:
    found = page(written(tmp_path / "split", SPLIT)).table("Checks of scalars and replay")
    (cells,) = [[text for text, _ in row] for row in found.rows]
    assert cells[1:4] == ["2", "9", "not in 2 of 12 messages"]
    clean = page(written(tmp_path / "clean", {"kind": "zo", "directions": 5}, lambda one: one))
    (cells,) = [[text for text, _ in row] for row in clean.table("Checks of scalars and replay").rows]
    assert cells[1] == "0"
    assert cells[3].startswith("every time")


@pytest.mark.parametrize("share", [False, True])
def test_blocks_have_as_many_slopes_as_the_optimizer_traces(share: bool) -> None:
    optimizer = SplitZO(lr=0.1, directions=2, again=3, share_z2=share)
    counts = {name: shape[-1] for name, (_, shape) in optimizer.traced(1).items()}
    assert list(blocks(optimizer.model_dump(mode="json")).values()) == list(counts.values())
    assert blocks({"kind": "zo", "directions": 5}) == {"all": 5}


def test_a_real_run_says_what_its_messages_carry_and_that_every_theta_was_the_servers(tmp_path: Path) -> None:
    ref = "random:llama?layers=4&hidden=16&heads=2"
    run = play(experiment("fedspzo", backbone__ref=ref, federation={"rounds": 2}), tmp_path)
    found = page(run.folder)
    table = found.table("Scalars by block")
    assert table.texts("Block") == ["front", "back"]
    assert table.column("Slopes a step") == [1, 4]
    sent = {line.payload_bytes["scalars"] for line in run.ledger if "scalars" in line.payload_bytes}
    assert table.texts("Scalars of a message, bytes") == [f"{size}" for size in sent] * 2
    (cells,) = [[text for text, _ in row] for row in found.table("Checks of scalars and replay").rows]
    assert cells[1] == "0"
    assert cells[3] == "every time, in 8 messages"
    assert cells[4] == run.theta_sha256[:16]
