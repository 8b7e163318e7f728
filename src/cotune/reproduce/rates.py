"""Learning rates of rows, by the loss on what clients hold back under the one seed that no row is tested on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from cotune import experiment as experiments
from cotune.comparison import Question
from cotune.comparison.ahead import ahead
from cotune.comparison.played import Played
from cotune.comparison.search import Search, choose
from cotune.core.contracts import ClientInfo
from cotune.core.errors import Code, CotuneError
from cotune.core.events import Say
from cotune.engine import InlineEngine
from cotune.experiment import Experiment
from cotune.store import Run, read_json

DIVERGED = (Code.QUORUM, Code.NONFINITE)
FEW = 32  # test rows that are scored beside, which nobody looks at, and held-back rows of a client at most


def searched(
    question: Question, labels: Iterable[str], rates: Sequence[float], out: Path, *, jobs: int, say: Say
) -> dict[str, Search]:
    """Row -> what each learning rate came to, and the one of the lowest loss on the clients' held-back rows.

    By the loss, not by the accuracy: of some twenty rows the accuracy says nothing, and the loss a little.

    Args:
        question: rows and ground.
        labels: of the rows that search.
        rates: that each of them tries.
        out: the folder of the search's runs.
        jobs: runs at once, each in a process of its own.
        say: is told what is run.

    Raises:
        CotuneError: E_CONFLICT for a row that falls apart at every rate, and whatever else a run raises.
    """
    corpus = question.ground.task.load(question.seeds_of(question.search_seed))
    clients = [ClientInfo(name, len(rows.train), len(rows.held)) for name, rows in sorted(corpus.clients.items())]
    trials = {label: [_trial(question, label, rate, clients) for rate in rates] for label in labels}
    if jobs > 1:
        list(ahead([one for ones in trials.values() for one in ones], out, jobs, False, InlineEngine))
    found = {}
    for label, ones in trials.items():
        say(f"searching the learning rate of {label}")
        found[label] = choose(label, [_tried(one, out) for one in ones], "loss")
    return found


def _trial(question: Question, label: str, rate: float, clients: Sequence[ClientInfo]) -> Experiment:
    """A row at a rate under the search's seed; few test rows are scored, as nobody looks at them."""
    found = question.trial(label, rate, clients)
    return found.model_copy(update={"evaluation": found.evaluation.model_copy(update={"rows": FEW})})


def _tried(experiment: Experiment, out: Path) -> Played:
    """The run of a trial, carried out where it is not there yet; one that falls apart has no score."""
    status = experiment.folder(out) / "status.json"
    if not (status.exists() and read_json(status)["code"] in DIVERGED):
        try:
            return Played(experiment, experiments.run(experiment, out, resume=True))
        except CotuneError as error:
            if error.code not in DIVERGED:
                raise
    return Played(experiment, Run(status.parent))
