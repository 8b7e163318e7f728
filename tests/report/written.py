"""Run folders made by hand, for every state that a run can be in."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cotune.core.record import ClientMetric, Cohort, LedgerLine, Metric, RoundRecord

FINISHED = {"status": "finished", "code": None, "error": None}
HOSTILE = (
    "</script><script>window.broken=1</script>",
    '"onload="window.broken=1" x="',
    "<img src=x onerror=window.broken=1>",
    "<b>bold</b> & co",
    "{metric} %{y} $x$ --run-0",
    "Zoë 北京 \N{HOSPITAL}",
    "\u202eright to left",
    "-->",
)


def record(round_: int, clients: Sequence[str], seed: int = 0, **fields: Any) -> RoundRecord:
    """A record in which half of the clients took part and were scored."""
    draw = random.Random(f"{seed}/{round_}")
    chosen = sorted(draw.sample(list(clients), max(1, len(clients) // 2)))
    reached = 0.5 + 0.4 * (1 - 0.8**round_) + draw.uniform(-0.02, 0.02)
    tested = {
        "loss": Metric(value=1 - reached, n=120, low=0.9 - reached, high=1.1 - reached),
        "accuracy": Metric(value=reached, n=120, low=reached - 0.08, high=reached + 0.08, chance=0.5),
    }
    scored = {}
    for client in chosen:
        local, federated = draw.uniform(0.5, 1), draw.uniform(0.4, 1)
        scored[client] = {
            "accuracy": ClientMetric(local=local, federated=federated, drop=100 * (local - federated), n=16)
        }
    plain: dict[str, Any] = {
        "round": round_,
        "cohort": Cohort(selected=tuple(chosen), accepted=tuple(chosen)),
        "global_metrics": tested,
        "client_metrics": scored,
        "diagnostics": {"change_norm": 1 / round_},
        "train_loss": 0.7 / round_,
        "flops": 1e9 + round_,
        "seconds": 0.25,
        "peak_bytes": 400_000_000 + round_,
        "theta_sha256": f"{round_:064x}",
        "evaluated": "global theta",
    }
    return RoundRecord.model_validate({**plain, **fields})


def with_ledger(played: RoundRecord) -> tuple[RoundRecord, list[LedgerLine]]:
    """A record and the lines of its messages, which add up to it."""
    lines = []
    for client in played.cohort.selected:
        for purpose, direction in (("train", "down"), ("train", "up"), ("evaluate", "down"), ("evaluate", "up")):
            carried = (
                {"factor_a": 2048, "factor_b": 2048 + played.round}
                if (purpose, direction) != ("evaluate", "up")
                else {}
            )
            line = LedgerLine(
                round=played.round,
                client=client,
                direction=direction,
                purpose=purpose,
                payload_bytes=carried,
                framing_bytes=1000 + len(client),
            )
            lines.append(line)
    sums = {
        "uplink_bytes": sum(line.total_bytes for line in lines if (line.purpose, line.direction) == ("train", "up")),
        "downlink_bytes": sum(
            line.total_bytes for line in lines if (line.purpose, line.direction) == ("train", "down")
        ),
        "evaluation_bytes": sum(line.total_bytes for line in lines if line.purpose == "evaluate"),
    }
    return played.model_copy(update=sums), lines


def about(name: str, clients: Sequence[str], rounds: int, seed: int = 0) -> dict[str, Any]:
    """What experiment.json says of such a run."""
    return {
        "hash": "0" * 16,
        "experiment": {
            "name": name,
            "method": {
                "trainable": {"kind": "lora", "rank": 8, "alpha": 16.0, "targets": None},
                "penalties": [{"kind": "proximal", "mu": 0.01}],
                "optimizer": {"kind": "adamw", "lr": 0.001},
                "aggregator": {"kind": "mean"},
                "share": "all",
            },
            "task": {"kind": "classify", "data": "synth:sentiment"},
            "backbone": {"ref": "random:bert"},
            "federation": {"rounds": rounds, "cohort": max(1, len(clients) // 2)},
            "seeds": {"seed": seed, "data": seed},
        },
        "versions": {"python": "3.11.7", "cotune": "0.1.0"},
        "machine": {"system": "Linux", "processor": "x86_64", "cpus": 2},
        "backbone_sha256": "61a7" * 16,
        "data": {
            "synthetic": True,
            "rows": 1000,
            "used": 990,
            "skipped": {"empty": 7, "missing": 3},
            "labels": {client: [40 + i % 7, 43] for i, client in enumerate(clients)},
            "duplicates": {"test": 1},
        },
        "clients": {client: {"rows": 66 + i % 7, "held": 17} for i, client in enumerate(clients)},
        "trained": {"numbers": 1090, "shared": 1090},
        "test": {"rows": 120, "truncated": 2},
    }


def write_run(
    folder: Path,
    *,
    name: str = "toy",
    clients: Sequence[str] = ("a", "b", "c", "d"),
    played: int = 3,
    planned: int = 3,
    seed: int = 0,
    status: dict[str, Any] | None = None,
    change: Callable[[RoundRecord], RoundRecord] = lambda one: one,
) -> Path:
    """The folder of a run, left as a run leaves it.

    Args:
        folder: of the run.
        name: of the experiment.
        clients: their names.
        played: rounds on disk.
        planned: rounds that the experiment asks for.
        seed: of the numbers.
        status: what status.json holds; None for a finished run.
        change: applied to each record before its bytes are counted.
    """
    folder.mkdir(parents=True)
    both = [with_ledger(change(record(round_ + 1, clients, seed))) for round_ in range(played)]
    (folder / "status.json").write_text(json.dumps(status or FINISHED))
    (folder / "experiment.json").write_text(json.dumps(about(name, clients, planned, seed)))
    _write_lines(folder / "rounds.jsonl", [one.model_dump(mode="json") for one, _ in both])
    _write_lines(folder / "ledger.jsonl", [line.model_dump(mode="json") for _, lines in both for line in lines])
    return folder


def _write_lines(path: Path, values: Sequence[Any]) -> None:
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
