"""`cotune run`: an experiment from its first word on the screen to the table at its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from cotune.cli.progress import told, watcher
from cotune.core.errors import Code, CotuneError
from cotune.core.events import silent
from cotune.core.stays import stays

LAST = 20  # rounds in the table


def run(
    source: str,
    out: Path,
    *,
    resume: bool,
    fresh: bool,
    quiet: bool,
    engine: str = "inline",
    workers: int | None = None,
    **options: Any,
) -> None:
    """Resolve, run, and print what it came to; the folder alone when quiet.

    Args:
        source: a recipe's name, or the path of a TOML file.
        out: the folder of run folders.
        resume: continue an unfinished run.
        fresh: throw away an earlier run of the same experiment.
        quiet: say nothing before the end.
        engine: where clients run, `inline` or `pool`.
        workers: of a pool; None for as many as there is room for.
        options: what else `resolve.load` takes.

    Raises:
        CotuneError: whatever resolving and running raise; E_CONFLICT when there is nothing to resume, but an unfinished
            run that differs.
    """
    if resume and fresh:
        raise CotuneError(Code.CONFIG, "--resume and --fresh exclude each other", where="cotune run")
    if not quiet:
        print(f"loading {source}", flush=True)  # before the libraries, which take a second or more
    from cotune import experiment as experiments
    from cotune import report, resolve
    from cotune.engine import named

    say = silent if quiet else _say
    make_engine = named(engine, workers, say)
    experiment = resolve.load(source, say=say, **options)
    if resume:
        _check_resumable(experiment.name, experiment.folder(out), experiment.resolved())
    with _resumable(), watcher(Console(highlight=False), quiet) as watch:
        finished = experiments.run(experiment, out, resume=resume, fresh=fresh, watch=watch, make_engine=make_engine)
    page = report.write([finished.folder])
    print(finished.folder if quiet else "\n".join(["", *_summary(finished), f"report {page}"]), flush=True)


def _say(line: str) -> None:
    print(line, flush=True)


@contextmanager
def _resumable() -> Iterator[None]:
    """What to do after an interruption, said with it."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt("repeat the command with --resume to go on") from None


def _check_resumable(name: str, folder: Path, resolved: Mapping[str, Any]) -> None:
    """Refuse to start anew under --resume when an unfinished run of this name differs, other than in its seeds."""
    from cotune.experiment import differences
    from cotune.store import Run, read_json

    if (folder / "status.json").exists():
        return
    for status in sorted(folder.parent.glob(f"{name}-*/status.json"), key=lambda path: path.stat().st_mtime):
        about = status.with_name("experiment.json")
        if Run(status.parent).status == "finished" or not about.exists():
            continue
        changed = differences(read_json(about)["experiment"], resolved)
        if changed and not any(place.startswith(("seeds.", "name:")) for place in changed):
            raise CotuneError(
                Code.CONFLICT,
                "the unfinished run is of another experiment",
                where=status.parent.name,
                got="; ".join(changed),
                fix="undo the change, or leave out --resume to start anew",
            )


def _summary(finished: Any) -> list[str]:
    """The table of the last rounds, the last scores with their intervals, and where everything is."""
    rounds = finished.rounds
    last = rounds[-1]
    names = ["train_loss", *told(last.global_metrics), *(["forgetting"] if "forgetting" in last.diagnostics else [])]
    names += ["drop", "worst_client", "uplink_bytes", "downlink_bytes", "seconds"]
    table = finished.table(*names)
    hidden = max(len(table.rows) - LAST, 0)
    table.rows = table.rows[hidden:]
    lines = [*([f"the last {LAST} of {len(rounds)} rounds"] if hidden else []), str(table), ""]
    for name, metric in told(last.global_metrics).items():
        chance = f", chance {metric.chance:.4f}" if metric.chance is not None else ""
        known = metric.low is not None and metric.high is not None
        interval = f"95 % interval {metric.low:.4f} to {metric.high:.4f}" if known else "no interval"
        lines.append(f"{name} {metric.value:.4f} · {interval}, {metric.n} rows{chance} · {last.evaluated}")
    if any(record.client_metrics for record in rounds) and (staying := stays(finished.about)):
        lines.append(f"drop: {staying}")
    test = finished.about["test"]
    if test["truncated"]:
        lines.append(f"{test['truncated']} of {test['rows']} test rows were cut to the most tokens")
    return [*lines, f"theta_sha256 {finished.theta_sha256}", f"folder {finished.folder}"]
