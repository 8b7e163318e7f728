"""What a run may spend: rows that stop at equal bytes or equal FLOPs instead of after equal rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from cotune import experiment as experiments
from cotune.core.errors import Code, CotuneError
from cotune.core.events import Watch
from cotune.core.record import RoundRecord
from cotune.experiment import Experiment, MakeEngine
from cotune.store import Lines, Run, read_json, write_json

MARK = "spent.json"  # in the folder of a run that stopped: what it was allowed
WORDS = {"bytes": "training bytes, up and down, framing included", "flops": "FLOPs of training"}


class SpentError(KeyboardInterrupt):
    """Ends a run as an interruption does, so that its folder says that not all its rounds were played."""


@dataclass(frozen=True)
class Allowance:
    """What all clients of a run may spend together in all rounds.

    Attributes:
        what: 'bytes' of training messages both ways, or 'flops' of training.
        amount: how much.
    """

    what: str
    amount: float

    @classmethod
    def read(cls, text: str) -> Self:
        """The allowance of `bytes=2e6` or `flops=1e12`.

        Raises:
            CotuneError: E_CONFIG when it cannot be read.
        """
        what, _, number = text.partition("=")
        try:
            amount = float(number)
        except ValueError:
            amount = math.nan
        if what not in WORDS or not 0 < amount < math.inf:
            said = "cannot read the budget"
            raise CotuneError(Code.CONFIG, said, where="--budget", got=text, expected="bytes=2e6 or flops=1e12")
        return cls(what, amount)

    def __str__(self) -> str:
        return f"{self.what}={self.amount:.15g}"

    def of(self, records: Sequence[RoundRecord]) -> float:
        """What these rounds have spent."""
        if self.what == "flops":
            return math.fsum(record.flops for record in records)
        return float(sum(record.uplink_bytes + record.downlink_bytes for record in records))

    def within(self, records: Sequence[RoundRecord]) -> list[RoundRecord]:
        """The rounds from the first one up to the last scored one at which no more than this was spent."""
        fit = [i for i in range(len(records)) if records[i].global_metrics and self.of(records[: i + 1]) <= self.amount]
        return list(records[: fit[-1] + 1]) if fit else []

    def spent(self, records: Sequence[RoundRecord]) -> bool:
        """Whether one more round, as dear as the dearest of these, would be too much."""
        dearest = max((self.of([record]) for record in records), default=0.0)
        return bool(records) and self.of(records) + dearest > self.amount


def carry_out(
    experiment: Experiment,
    out: Path,
    allowance: Allowance | None,
    *,
    fresh: bool,
    watch: Watch,
    make_engine: MakeEngine,
) -> Run:
    """A run with all its rounds, or as many as the allowance takes; what is there already is reused or continued.

    A round that came out dearer than every one before is forgotten where it was too much: what a part needs may grow.

    Raises:
        CotuneError: whatever the run raises.
    """
    if allowance is None:
        return experiments.run(experiment, out, resume=True, fresh=fresh, watch=watch, make_engine=make_engine)
    folder = experiment.folder(out)

    def guarded(name: str, about: Mapping[str, Any]) -> None:
        """Passes a moment on, and ends the run behind the last round that is paid for."""
        watch(name, about)
        if name == "recorded":
            records = Run(folder).rounds
            over = allowance.of(records) > allowance.amount
            if over or (records[-1].round < experiment.federation.rounds and allowance.spent(records)):
                write_json(folder / MARK, asdict(allowance))
                raise SpentError

    if not fresh and stopped(folder, allowance):
        _cut(folder, allowance)
        watch("reused", {"folder": str(folder)})
        return Run(folder)
    try:
        return experiments.run(experiment, out, resume=True, fresh=fresh, watch=guarded, make_engine=make_engine)
    except SpentError:
        _cut(folder, allowance)
        watch("spent", {"rounds": Run(folder).rounds[-1].round, "budget": str(allowance)})
        return Run(folder)


def stopped(folder: Path, allowance: Allowance) -> bool:
    """Whether a run ended because it had spent what it may."""
    return (folder / MARK).exists() and read_json(folder / MARK) == asdict(allowance)


def _cut(folder: Path, allowance: Allowance) -> None:
    """Forget the rounds behind the last one that counts, for every reader of the folder; none where none counts."""
    paid = allowance.within(Run(folder).rounds)
    for name in ("rounds.jsonl", "ledger.jsonl") if paid else ():
        Lines(folder / name).cut_after(paid[-1].round)
