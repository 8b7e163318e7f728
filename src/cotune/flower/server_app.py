"""A server's app: the experiment of its project on Flower's nodes, resumed wherever an earlier run of it was left.

| `[tool.flwr.app.config]`, or `flwr run -c` | |
|---|---|
| `experiment` | the file in the project, `experiment.toml` |
| `nodes`, `wait` | how many nodes must be there before the first round, and for how many seconds to wait for them |
| `out` | the folder of run folders, on the machine of the SuperLink |
| `data` | the reference of the server's own rows, all of them to score on; else the task's own data |
| anything else | a value of the experiment, or FlowerTune's name for one: see `project` |

Flower does not resume a run. Ours does: the same project, run again, goes on from its last checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from cotune.core.errors import Code, CotuneError

if TYPE_CHECKING:
    from cotune.store import Run

PATIENCE = 90.0  # seconds for an earlier server's process to end, which Flower kills late


def make_server_app(folder: Path) -> ServerApp:
    """The server's app of the project in a folder."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        run = serve(grid, Path(folder), context.run_config)
        print(f"theta_sha256 {run.theta_sha256}\nfolder {run.folder.resolve()}", flush=True)

    return app


def serve(grid: Grid, folder: Path, config: Mapping[str, Any]) -> Run:
    """The finished run of a project's experiment.

    Raises:
        CotuneError: whatever reading the project and running raise.
    """
    from cotune import experiment as experiments
    from cotune import report
    from cotune.engine.site import scored
    from cotune.flower.engine import FlowerEngine
    from cotune.flower.project import experiment_of

    experiment = experiment_of(folder, config)
    data = config.get("data")
    corpus = scored(experiment.task, str(data), experiment.seeds, _say) if data else None
    nodes, wait = int(config.get("nodes", 1)), float(config.get("wait", 600))
    engine = partial(FlowerEngine, grid=grid, nodes=nodes, wait=wait, say=_say)
    out, ends = Path(str(config.get("out", "runs"))).expanduser(), time.monotonic() + PATIENCE
    while True:
        try:
            run = experiments.run(experiment, out, resume=True, watch=_watch, make_engine=engine, corpus=corpus)
            break
        except CotuneError as error:
            if error.code is not Code.LOCK or time.monotonic() > ends:
                _say(str(error))
                raise
            time.sleep(1.0)
    report.write([run.folder])
    return run


def _say(line: str) -> None:
    print(line, flush=True)


def _watch(moment: str, about: Mapping[str, Any]) -> None:
    """What a run tells, a line at a time, for `flwr log`."""
    match moment:
        case "resumed":
            _say(f"resumed after round {about['round']}")
        case "reply" if about["error"]:
            _say(f"dropped {about['client']} · {about['error']}")
        case "recorded":
            record = about["record"]
            counted = f"{len(record.cohort.accepted)} of {len(record.cohort.selected)} clients"
            metrics = "".join(f" · {name} {metric.value:.4f}" for name, metric in record.global_metrics.items())
            sent = f"up {record.uplink_bytes:,} · down {record.downlink_bytes:,} bytes · {record.seconds:.1f} s"
            _say(f"round {record.round}{metrics} · {counted} · {sent}")
