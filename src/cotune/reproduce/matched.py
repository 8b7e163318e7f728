"""The rates at which all rows of a sweep end as far from their start."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from cotune import experiment as experiments
from cotune.comparison import Question
from cotune.comparison.ahead import ahead
from cotune.comparison.lengths import Matched, length, one_length
from cotune.core.errors import Code, CotuneError
from cotune.core.events import Say, silent
from cotune.engine import InlineEngine
from cotune.experiment import Experiment
from cotune.store import Run

DIVERGED = (Code.QUORUM, Code.NONFINITE)


def matched(
    question: Question, out: Path, rates: Mapping[str, float], *, tries: int, jobs: int = 1, say: Say = silent
) -> dict[str, Matched]:
    """Row -> its search for one length, on the seed that no row is tested on.

    The search begins with the runs of the sweep, which are there already.

    Args:
        question: rows, ground, and the rates of the sweep.
        out: the folder of the search's runs.
        rates: row -> its best rate, of the sweep.
        tries: guesses a row at most.
        jobs: runs at once.
        say: is told what is run.

    Raises:
        CotuneError: E_CONFLICT when no row moved, or training of one fell apart at every rate.
    """

    def length_of(label: str, rate: float) -> float | None:
        return length(_run(question.trial(label, rate, ()), out))

    def play(guesses: Mapping[str, float]) -> dict[str, float | None]:
        if jobs > 1:
            list(ahead([question.trial(n, rate, ()) for n, rate in guesses.items()], out, jobs, False, InlineEngine))
        return {label: length_of(label, rate) for label, rate in guesses.items()}

    swept = {label: {rate: length_of(label, rate) for rate in question.sweep} for label in question.rows}
    return one_length(swept, rates, play, tries=tries, say=say)


def _run(experiment: Experiment, out: Path) -> Run | None:
    """The run of an experiment, carried out where it is not there yet; None where training falls apart."""
    status = experiment.folder(out) / "status.json"
    if status.exists() and json.loads(status.read_text("utf-8"))["code"] in DIVERGED:
        return None
    try:
        return experiments.run(experiment, out, resume=True)
    except CotuneError as error:
        if error.code not in DIVERGED:
            raise
        return None
