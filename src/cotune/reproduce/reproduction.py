"""What a reproduction is: the published setting as TOML files, a synthetic one that runs here, and a page of both."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from cotune import experiment as experiments
from cotune.core.events import Say, Watch, silent
from cotune.reproduce import paper
from cotune.reproduce.page import Page
from cotune.store import Run, write_atomic, write_json


@dataclass(frozen=True)
class Laptop:
    """How a reproduction is carried out here.

    Attributes:
        out: the folder of run folders.
        seeds: how many.
        jobs: runs at once, each in a process of its own.
        say: is told one line at a time what happens.
    """

    out: Path
    seeds: int
    jobs: int = 1
    say: Say = silent

    @property
    def watch(self) -> Watch:
        """Says which run of a comparison is done or begun."""

        def told(name: str, about: Mapping[str, Any]) -> None:
            if name == "comparing":
                lr = "" if about["lr"] is None else f" · learning rate {about['lr']:g}"
                self.say(f"run {about['number']}/{about['of']} · {about['row']} · seed {about['seed']}{lr}")

        return told


@dataclass(frozen=True)
class Found:
    """What a reproduction left.

    Attributes:
        page: for people.
        results: the same numbers as plain values; nothing of the machine is in them.
        folder: where page and results are.
    """

    page: Page
    results: Mapping[str, Any]
    folder: Path

    def written(self, name: str) -> Found:
        """This, with `NAME.md`, `NAME.html` and `NAME.json` in its folder."""
        write_atomic(self.folder / f"{name}.md", self.page.markdown().encode())
        write_atomic(self.folder / f"{name}.html", self.page.html().encode("utf-8", "replace"))
        write_json(self.folder / f"{name}.json", self.results)
        return self


class Reproduction(ABC):
    """A result of a paper.

    Attributes:
        name: on the command line.
        source: the folder of the paper in `papers`.
        files: the experiments of the published setting, in that folder.
        texts: that a model of the published setting reads for each row.
        seeds: of the synthetic setting.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    files: ClassVar[tuple[str, ...]]
    texts: ClassVar[int] = 1
    seeds: ClassVar[int] = 5

    @classmethod
    def summary(cls) -> str:
        """The first line of the docstring."""
        return (cls.__doc__ or "").strip().partition("\n")[0]

    @abstractmethod
    def laptop(self, setting: Laptop) -> Found:
        """The synthetic setting, run here."""

    @abstractmethod
    def beside(self, runs: Mapping[str, Run]) -> Page:
        """The paper's numbers beside those of the published setting, by file."""

    def published(self, out: Path, say: Say) -> Found:
        """The published setting: what it will need first, then every experiment of it.

        Raises:
            CotuneError: whatever fetching the model or the data, or a run, raises.
        """
        planned = {file: paper.experiment(self.source, file) for file in self.files}
        for experiment in planned.values():
            for line in paper.needed(experiment, paper.expected(self.source), self.texts):
                say(line)
        runs = {}
        for file, experiment in planned.items():
            say(f"run {experiment.name}, {experiment.hash}")
            runs[file] = experiments.run(experiment, out, resume=True)
        page = self.beside(runs)
        results = {"name": self.name, "scale": "paper", "hashes": {file: one.hash for file, one in planned.items()}}
        folder = next(iter(runs.values())).folder
        return Found(page, {**results, "page": page.markdown()}, folder).written(f"{self.name}-paper")
