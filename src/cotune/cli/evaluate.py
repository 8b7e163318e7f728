"""`cotune eval`: a run's model on a task of the lm-evaluation-harness."""

from __future__ import annotations

from pathlib import Path


def evaluate(folder: Path, task: Path, *, client: str | None, batch: int, limit: int | None) -> None:
    """Print what the harness says, and where it stands.

    Args:
        folder: of the run.
        task: a task of the harness, as YAML.
        client: whose model.
        batch: rows at once.
        limit: the first so many rows alone.

    Raises:
        CotuneError: when there is no run or no language model in it, no task, or no harness.
    """
    from cotune.store import Run

    run = Run(folder)
    about = run.about
    print(f"loading {about['experiment']['backbone']['ref']} · {folder}", flush=True)
    from pydantic import ValidationError

    from cotune.core.explain import explain
    from cotune.experiment import Experiment
    from cotune.harness import judge

    try:
        blueprint = Experiment.model_validate(about["experiment"]).blueprint()
    except ValidationError as error:
        raise explain(error, Experiment) from error
    if run.status != "finished":
        print(f"the run is {run.status}: this is its last checkpoint", flush=True)
    found = judge(run, blueprint, task, client=client, batch=batch, limit=limit, say=print)
    some = f" · the first {limit} rows alone" if limit is not None else ""
    print(f"lm-eval {found.version} · {found.task}{some}\n\n{found.table()}\n", flush=True)
    print(f"written {folder / 'lm-eval' / task.stem}.json", flush=True)
