"""`cotune compare`: rows held against each other, from the first word on the screen to what may be said of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from cotune.cli.progress import Lines, watcher
from cotune.core.errors import Code, CotuneError
from cotune.core.events import silent

if TYPE_CHECKING:
    from cotune.experiment import Experiment

# What every run of a comparison would say again.
_SAID_ONCE = frozenset({"loading", "loaded"})


def compare(
    sources: Sequence[str],
    out: Path,
    *,
    seeds: int,
    sweep: str | None,
    metric: str | None,
    reference: str | None,
    fresh: bool,
    quiet: bool,
    jobs: int | None = None,
    budget: str | None = None,
    match_norm: bool = False,
    **options: Any,
) -> None:
    """Resolve, run what is not there yet, and print what it came to; the folder alone when quiet.

    Args:
        sources: recipes' names, or the paths of TOML files.
        out: the folder of the comparison's folder.
        seeds: how many.
        sweep: learning rates, separated by commas.
        metric: to compare by.
        reference: the row that the others are held against.
        fresh: throw away earlier runs.
        quiet: say nothing before the end.
        jobs: runs at once; None for one, or for as many as there is room for where nobody names a backbone.
        budget: what a run may spend, as `bytes=2e6` or `flops=1e12`.
        match_norm: bring rows to one length of update first.
        options: what else `comparison.load` takes.

    Raises:
        CotuneError: whatever resolving and running raise.
    """
    grid, tell = rates(sweep) if sweep else [], silent if quiet else say
    tell(f"loading {', '.join(sources)}")  # before the libraries, which take a second or more
    from cotune import comparison, report

    rows, ground, backbones = comparison.load(sources, say=tell, faster=not grid, **options)
    if jobs is None and comparison.unnamed(options.get("base"), options.get("sets", ()), options):
        jobs = _room(ground, len(rows) * seeds)
        tell(f"{jobs} {'run' if jobs == 1 else 'runs'} at once")
    question = comparison.ask(
        rows,
        ground,
        seeds=seeds,
        reference=reference,
        metric=metric,
        sweep=grid,
        backbones=backbones,
        budget=budget,
        match_norm=match_norm,
    )
    with _repeatable(), watcher(Console(highlight=False), quiet) as lines:
        found = comparison.answer(question, out, fresh=fresh, watch=Told(lines), jobs=jobs or 1)
    page = report.write([run.folder for runs in found.runs.values() for run in runs], found.folder)
    print(found.folder if quiet else f"\n{found}\n\nfolder {found.folder}\nreport {page}", flush=True)


def _room(ground: Experiment, runs: int) -> int:
    """How many runs of a small model this machine has room for at once."""
    from cotune.engine.capacity import Room, capacity

    return capacity(None, runs, ground.backbone.threads, ground.backbone.device, Room.measured())[0]


class Told:
    """Passes the moments of many runs on to what tells about one: a line before each, and of its rounds the last."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.said: set[str] = set()
        self.rounds = 0

    def __call__(self, name: str, about: Mapping[str, Any]) -> None:
        """One moment."""
        match name:
            case "comparing":
                lr = "" if about["lr"] is None else f" · learning rate {about['lr']:g}"
                self.lines.say(f"run {about['number']}/{about['of']} · {about['row']} · seed {about['seed']}{lr}")
                return
            case "spent":
                self.lines.say(f"stopped after round {about['rounds']} · budget {about['budget']}")
                return
            case "round":
                self.rounds = about["rounds"]
            case "recorded":
                record = about["record"]
                if record.round < self.rounds and not record.abandoned and not record.cohort.reasons:
                    return
        if name in _SAID_ONCE & self.said:
            return
        self.said.add(name)
        self.lines(name, about)


def rates(text: str) -> list[float | str]:
    """The learning rates of `1e-3,1e-2`, or the factors of `x1,x10`, each once.

    Raises:
        CotuneError: E_CONFIG when it cannot be read.
    """
    try:
        words = list(dict.fromkeys(word.strip() for word in text.split(",")))
        return list(dict.fromkeys(word if word.startswith("x") else float(word) for word in words))
    except ValueError as error:
        raise CotuneError(
            Code.CONFIG, "cannot read the learning rates", where="--sweep", got=text, expected="say 1e-4,1e-3,1e-2"
        ) from error


def say(line: str) -> None:
    """Print one line."""
    print(line, flush=True)


@contextmanager
def _repeatable() -> Iterator[None]:
    """What to do after an interruption, said with it."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt("repeat the command to go on") from None
