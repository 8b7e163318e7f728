"""A run as a report shows it: what its folder says, a label, and a colour that stays its own on every page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cotune.core.errors import Code, CotuneError, one_line
from cotune.core.record import LedgerLine, MemoryRecord, RoundRecord
from cotune.store import Run, read_json

COLOURS = 8
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "hexagon", "triangle-down")


@dataclass(frozen=True)
class Shown:
    """One run.

    Attributes:
        key: names its columns and choices in the page: `r0`, `r1`, …
        label: unique among the runs of a report.
        colour: the name of a CSS variable.
        dash: of its lines.
        symbol: of its points.
        folder: where it is.
        status: 'running', 'finished', 'interrupted' or 'failed'.
        code: of the error that ended it, or None.
        error: the line of that error, or None.
        about: experiment.json; empty when the run never came so far, or the file is damaged.
        rounds: the records, in order.
        ledger: a line a message.
        memory: what a probe of its memory found, or None.
    """

    key: str
    label: str
    colour: str
    dash: str
    symbol: str
    folder: Path
    status: str
    code: str | None
    error: str | None
    about: Mapping[str, Any]
    rounds: Sequence[RoundRecord]
    ledger: Sequence[LedgerLine]
    memory: MemoryRecord | None = None

    @property
    def experiment(self) -> Mapping[str, Any]:
        """The resolved experiment; empty when there is none."""
        return dict(self.about.get("experiment", {}))

    @property
    def row(self) -> str:
        """The row of a comparison that this is one seed of; else the run alone."""
        return _row(str(self.experiment.get("name", "")), self.about) or self.key

    @property
    def planned(self) -> int | None:
        """How many rounds the experiment asks for."""
        planned = self.experiment.get("federation", {}).get("rounds")
        return int(planned) if planned is not None else None

    @property
    def clients(self) -> list[str]:
        """Every client, also those that were never asked; `client-9` before `client-10`."""
        asked = {client for record in self.rounds for client in (*record.cohort.selected, *record.client_metrics)}
        return sorted(asked | set(self.about.get("clients", {})), key=_natural)

    def total(self, field: str) -> float:
        """The sum of a field over all rounds; 0 where no record has it."""
        return sum(counted(record, field) for record in self.rounds)

    @property
    def peak(self) -> int:
        """The largest peak memory of a round, in bytes."""
        return max((record.peak_bytes for record in self.rounds), default=0)


def counted(record: RoundRecord, field: str) -> float:
    """A numeric field of a record; 0 where it is unknown."""
    value = dict(record).get(field)
    return value if isinstance(value, int | float) else 0


def shown(folders: Sequence[Path]) -> list[Shown]:
    """The runs in these folders, labelled and coloured.

    Runs of one name, or the seeds of one row of a comparison, share a colour and differ in dash and symbol, as long as
    there is another name to tell them from.

    Raises:
        CotuneError: E_CKPT for a file that cannot be read, with its run.
    """
    abouts = [_about(folder) for folder in folders]
    names = [
        about.get("experiment", {}).get("name") or folder.name for about, folder in zip(abouts, folders, strict=True)
    ]
    groups = [_row(name, about) or name for name, about in zip(names, abouts, strict=True)]
    groups = groups if len(set(groups)) > 1 else [str(i) for i in range(len(folders))]
    order = {name: i for i, name in enumerate(dict.fromkeys(groups))}
    met = Counter[str]()
    loaded = []
    for i, (folder, about, label) in enumerate(zip(folders, abouts, _labels(folders, names, abouts), strict=True)):
        slot, turn = order[groups[i]], met[groups[i]]
        met[groups[i]] += 1
        again = slot // COLOURS + turn
        style = (f"run-{slot % COLOURS}", _DASHES[again % len(_DASHES)], _SYMBOLS[(slot + again) % len(_SYMBOLS)])
        loaded.append(_load(folder, about, f"r{i}", label, style))
    return loaded


def _labels(folders: Sequence[Path], names: Sequence[str], abouts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names where they are unique; with the seed where that tells them apart, else the folders'."""
    seeded = []
    for name, about in zip(names, abouts, strict=True):
        seed = about.get("experiment", {}).get("seeds", {}).get("seed")
        seeded.append(name if names.count(name) == 1 or seed is None else f"{name} · seed {seed}")
    candidates: tuple[list[str], ...] = (list(names), seeded, [folder.name for folder in folders])
    unique = next((labels for labels in candidates if len(set(labels)) == len(labels)), None)
    return unique or [f"{folder.parent.name}/{folder.name}" for folder in folders]


def _row(name: str, about: Mapping[str, Any]) -> str:
    """The name of a comparison's run without its seed; '' for any other run."""
    ending = f"-seed-{about.get('experiment', {}).get('seeds', {}).get('seed')}"
    return name.removesuffix(ending) if name.endswith(ending) else ""


def _about(folder: Path) -> Mapping[str, Any]:
    try:
        about = read_json(folder / "experiment.json")
    except CotuneError:
        return {}
    return about if isinstance(about, dict) else {}


def _load(folder: Path, about: Mapping[str, Any], key: str, label: str, style: tuple[str, str, str]) -> Shown:
    run = Run(folder)
    try:
        status = read_json(folder / "status.json")
        return Shown(
            key,
            label,
            *style,
            folder,
            str(status["status"]),
            status.get("code"),
            status.get("error"),
            about,
            run.rounds,
            run.ledger,
            run.memory,
        )
    except (ValidationError, KeyError, TypeError, AttributeError) as error:
        got = f"{error.error_count()} fields" if isinstance(error, ValidationError) else type(error).__name__
        raise CotuneError(
            Code.CHECKPOINT,
            "a run's files are not of this version of cotune",
            where=one_line(folder.name),
            got=got,
            fix="use the version that made them",
        ) from error
    except CotuneError as error:
        raise CotuneError(error.code, "a run cannot be read", where=folder.name, got=error.text) from error


def _natural(text: str) -> list[tuple[int, int, str]]:
    pieces = re.split(r"(\d+)", text)
    return [(0, int(piece), piece) if piece.isdecimal() else (1, 0, piece) for piece in pieces]
