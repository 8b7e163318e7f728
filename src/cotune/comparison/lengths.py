"""Rows at one length: the learning rate of each at which its weights end as far from their start as all others' do."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cotune.core.errors import Code, CotuneError
from cotune.core.events import Say, silent
from cotune.core.state import from_bytes
from cotune.linalg import norm
from cotune.store import Run

WITHIN = 0.1  # of the length that is asked for
STRETCH = 4.0  # how far a guess goes beyond what was tried


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


@dataclass(frozen=True)
class Lengthened:
    """How a row was brought to one length, and what that cost beside the search for its best rate.

    Attributes:
        matched: what was tried.
        seed: of the runs, which is none of the comparison's.
        client_steps: of all runs that were played for it alone.
        seconds: of those.
    """

    matched: Matched
    seed: int
    client_steps: int
    seconds: float


def one_length(
    tried: Mapping[str, Mapping[float, float | None]],
    rates: Mapping[str, float],
    play: Callable[[Mapping[str, float]], Mapping[str, float | None]],
    *,
    tries: int,
    say: Say = silent,
) -> dict[str, Matched]:
    """Row -> its search for one length.

    The length is the shortest that a row has at its best rate: a row whose penalty holds it back cannot go as far as
    the others do at their best, but all of them can go less far.

    Args:
        tried: row -> learning rate -> length, of what was played already.
        rates: row -> its best rate of those.
        play: row -> learning rate, to row -> length; None where training falls apart.
        tries: guesses a row at most.
        say: is told what was played.

    Raises:
        CotuneError: E_CONFLICT when no row moved, or training of one fell apart at every rate.
    """
    at_best = [length for label, rate in rates.items() if (length := tried[label][rate])]
    if not at_best:
        raise CotuneError(Code.CONFLICT, "no row has moved", where="learning rates", fix="sweep larger ones")
    found = {label: Matched(min(at_best), lengths) for label, lengths in tried.items()}
    for _ in range(tries):
        guesses = {label: one.guess() for label, one in found.items() if not one.reached}
        for label, length in (play(guesses) if guesses else {}).items():
            one, rate = found[label], guesses[label]
            say(f"{label} at learning rate {rate:g}: length {length or math.nan:.3g}, {one.target:.3g} is asked for")
            found[label] = Matched(one.target, {**one.tried, rate: length})
    return found


def length(run: Run | None) -> float | None:
    """√Σ ‖s B A‖² over the layers of a run's adapter: how far its weights are from where they started; None without."""
    if run is None or run.status != "finished":
        return None
    folder = run.folder / "adapter"
    config = json.loads((folder / "adapter_config.json").read_text("utf-8"))
    tensors = from_bytes((folder / "adapter_model.safetensors").read_bytes())
    rank: int = config["r"]
    scale: float = config["lora_alpha"] / (math.sqrt(rank) if config.get("use_rslora") else rank)
    half = ".lora_A.weight"
    pairs = [(tensors[n.replace(half, ".lora_B.weight")], tensors[n]) for n in tensors if n.endswith(half)]
    return scale * math.hypot(*(float(norm(pair)) for pair in pairs))


def _clipped(factor: float) -> float:
    return min(STRETCH, max(1 / STRETCH, factor))


def _rounded(lr: float) -> float:
    return float(f"{lr:.3g}")
