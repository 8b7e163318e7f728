"""Rows at one length: the learning rate of each at which its weights end as far from their start as all others' do."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cotune import experiment as experiments
from cotune.comparison import Question
from cotune.comparison.ahead import ahead
from cotune.core.errors import Code, CotuneError
from cotune.core.events import Say, silent
from cotune.core.state import from_bytes
from cotune.engine import InlineEngine
from cotune.experiment import Experiment
from cotune.linalg import norm
from cotune.store import Run

WITHIN = 0.1  # of the length that is asked for
STRETCH = 4.0  # how far a guess goes beyond what was tried
DIVERGED = (Code.QUORUM, Code.NONFINITE)


@dataclass(frozen=True)
class Matched:
    """What was tried for one row.

    Attributes:
        target: the length that is asked for.
        tried: learning rate -> length of the update after training; None where training fell apart.
    """

    target: float
    tried: Mapping[float, float | None] = field(default_factory=dict)

    @property
    def lr(self) -> float:
        """Of what was tried, the rate whose length is nearest by ratio."""
        return min(self.tried, key=lambda lr: self._off(self.tried[lr]))

    @property
    def reached(self) -> bool:
        """Whether a length within a tenth was found."""
        length = self.tried[self.lr]
        return length is not None and abs(length / self.target - 1) <= WITHIN

    def _off(self, length: float | None) -> float:
        return abs(math.log(length / self.target)) if length else math.inf

    def guess(self) -> float:
        """The next rate: on the line through log lr and log length of the nearest two tries, of which one is too short.

        Where all are too short, or too long, it goes on along that line, by a factor of 4 at most.

        Raises:
            CotuneError: E_CONFLICT when training fell apart at every rate.
        """
        known = sorted((lr, length) for lr, length in self.tried.items() if length)
        if not known:
            fix = "sweep smaller learning rates"
            raise CotuneError(Code.CONFLICT, "no length to start from: training fell apart at every rate", fix=fix)
        above = next((i for i, (_, length) in enumerate(known) if length > self.target), len(known))
        inside = 0 < above < len(known)
        (lr, length), *more = known[max(0, above - 1) :] if above < len(known) else known[-2:]
        if not more:  # one try: a length is about in proportion to its rate
            return _rounded(lr * _clipped(self.target / length))
        other, longer = more[0]
        rise = max(0.3, math.log(longer / length) / math.log(other / lr)) if longer > length else 1.0
        end = (lr, length) if inside or above == 0 else (other, longer)
        found = end[0] * _clipped((self.target / end[1]) ** (1 / rise))
        if inside:  # a guess at either end would be tried twice
            found = min(max(found, lr * (other / lr) ** 0.1), lr * (other / lr) ** 0.9)
        return _rounded(found)


def matched(
    question: Question, out: Path, rates: Mapping[str, float], *, tries: int, jobs: int = 1, say: Say = silent
) -> dict[str, Matched]:
    """Row -> its search for one length, on the seed that no row is tested on.

    The length is the shortest that a row has at its best rate: a row whose penalty holds it back cannot go as far as
    the others do at their best, but all of them can go less far. The search begins with the runs of the sweep, which
    are there already.

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

    swept = {label: {rate: length_of(label, rate) for rate in question.sweep} for label in question.rows}
    at_best = [moved for label, rate in rates.items() if (moved := swept[label][rate])]
    if not at_best:
        raise CotuneError(Code.CONFLICT, "no row has moved", where="learning rates", fix="sweep larger ones")
    target = min(at_best)
    found = {label: Matched(target, tried) for label, tried in swept.items()}
    for _ in range(tries):
        guesses = {label: one.guess() for label, one in found.items() if not one.reached}
        if jobs > 1:
            list(ahead([question.trial(n, rate, ()) for n, rate in guesses.items()], out, jobs, False, InlineEngine))
        for label, rate in guesses.items():
            measured = length_of(label, rate)
            say(f"{label} at learning rate {rate:g}: length {measured or math.nan:.3g}, {target:.3g} is asked for")
            found[label] = Matched(target, {**found[label].tried, rate: measured})
    return found


def length(run: Run | None) -> float | None:
    """√Σ ‖s B A‖² over the layers of a run's adapter: how far its weights are from where they started; None without."""
    if run is None or run.status != "finished":
        return None
    folder = run.folder / "adapter"
    config = json.loads((folder / "adapter_config.json").read_text("utf-8"))
    tensors = from_bytes((folder / "adapter_model.safetensors").read_bytes())
    scale: float = config["lora_alpha"] / config["r"]
    half = ".lora_A.weight"
    pairs = [(tensors[n.replace(half, ".lora_B.weight")], tensors[n]) for n in tensors if n.endswith(half)]
    return scale * math.hypot(*(float(norm(pair)) for pair in pairs))


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


def _clipped(factor: float) -> float:
    return min(STRETCH, max(1 / STRETCH, factor))


def _rounded(lr: float) -> float:
    return float(f"{lr:.3g}")
