"""`cotune export`: a run's model as a folder that plain peft or transformers load."""

from __future__ import annotations

from pathlib import Path

from cotune.core.errors import Code, CotuneError


def export(folder: Path, to: Path, *, merge: bool, client: str | None, with_backbone: bool) -> None:
    """Write the folder, and print what it holds and what a user of it must know.

    Args:
        folder: of the run.
        to: the new folder.
        merge: the whole model instead of an adapter.
        client: the model of this client.
        with_backbone: the frozen backbone beside the adapter.

    Raises:
        CotuneError: when there is no run, no model to write, or something in the run's folder is not as it should be.
    """
    if merge and with_backbone:
        raise CotuneError(Code.CONFIG, "--merge and --with-backbone exclude each other", where="cotune export")
    from cotune.store import Run

    run = Run(folder)
    about = run.about
    print(f"loading {about['experiment']['backbone']['ref']} · {folder}", flush=True)
    from pydantic import ValidationError

    from cotune.core.explain import explain
    from cotune.experiment import Experiment
    from cotune.export import export as write

    try:
        experiment = Experiment.model_validate(about["experiment"])
    except ValidationError as error:
        raise explain(error, Experiment) from error
    done = write(
        run,
        experiment.blueprint(),
        to,
        merge=merge,
        client=client,
        with_backbone=with_backbone,
        say=lambda line: print(line, flush=True),
    )
    if run.status != "finished":
        print(f"the run is {run.status}: this is its last checkpoint")
    print("\n".join([done.what, *done.notes, f"folder {done.folder}"]), flush=True)
