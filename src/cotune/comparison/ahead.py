"""Runs in several processes at once, each on its own thread count, before anybody asks what they came to."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from multiprocessing import active_children, get_context
from pathlib import Path

from cotune.comparison.allowance import Allowance, carry_out
from cotune.core.errors import CotuneError
from cotune.core.events import quiet
from cotune.experiment import Experiment, MakeEngine


def ahead(
    planned: Sequence[Experiment],
    out: Path,
    jobs: int,
    fresh: bool,
    make_engine: MakeEngine,
    *,
    allowance: Allowance | None = None,
) -> Generator[Experiment, None, None]:
    """Each experiment once it is finished, or has failed and its folder says why, as they come.

    The processes are new ones, so that each has torch's threads to itself; `make_engine` must be found by its name.
    Where the caller stops early, or is interrupted, they are ended at once: a run that is cut off goes on another time.

    Args:
        planned: no two of one hash are run twice.
        out: the folder of run folders.
        jobs: how many at once.
        fresh: throw away earlier runs.
        make_engine: where clients run.
        allowance: what each may spend; None for all its rounds.
    """
    different = {experiment.hash: experiment for experiment in planned}
    others = {child.pid for child in active_children()}
    with ProcessPoolExecutor(min(jobs, max(1, len(different))), mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(_alone, one, out, fresh, make_engine, allowance): one for one in different.values()}
        try:
            for future in as_completed(waiting):
                future.result()
                yield waiting[future]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            ours = [child for child in active_children() if child.pid not in others]
            for child in ours:
                child.terminate()
            for child in ours:
                child.join()
            raise


def _alone(
    experiment: Experiment, out: Path, fresh: bool, make_engine: MakeEngine, allowance: Allowance | None
) -> None:
    """One run; what it fails with stands in its folder, and comes up again when the run is asked for."""
    with suppress(CotuneError):
        carry_out(experiment, out, allowance, fresh=fresh, watch=quiet, make_engine=make_engine)
