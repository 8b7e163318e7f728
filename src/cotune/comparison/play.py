"""Carry a comparison out: every row under every seed, each an ordinary run, in one folder that a repeat continues."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cotune.comparison.ahead import ahead
from cotune.comparison.allowance import carry_out
from cotune.comparison.lengths import Lengthened, length, one_length
from cotune.comparison.played import Crowd, Played, check_same, names, rate
from cotune.comparison.question import Question, with_rate
from cotune.comparison.search import Search, choose
from cotune.core.contracts import ClientInfo
from cotune.core.errors import Code, CotuneError
from cotune.core.events import Watch, quiet
from cotune.experiment import Experiment, MakeEngine
from cotune.method import Method
from cotune.store import Run, read_json, write_json

DESCRIPTION = "comparison.json"
SEARCHED = "search"  # the folder of the runs that tried learning rates
TRIES = 6  # guesses of a row at most, on its way to a length
DIVERGED = (Code.QUORUM, Code.NONFINITE)


@dataclass(frozen=True)
class Outcome:
    """What was found, for the table to be made of.

    Attributes:
        runs: label -> its runs, one a seed.
        crowds: one a seed.
        searches: label -> how its learning rate was chosen.
        lengths: label -> how it was brought to the length of the others.
    """

    runs: Mapping[str, Sequence[Played]]
    crowds: Sequence[Crowd]
    searches: Mapping[str, Search]
    lengths: Mapping[str, Lengthened] = field(default_factory=dict)


@dataclass(frozen=True)
class Player:
    """Carries out a question's runs.

    Attributes:
        question: what is compared.
        folder: of the comparison.
        fresh: throw away earlier runs.
        watch: told about every moment of every run, and `comparing` before each.
        make_engine: where clients run.
        jobs: processes that carry out runs at once; with one, it is this process.
        numbers: of the runs, as they are started.
        done: hashes of the runs that other processes have carried out.
        more: the rows of runs beside the sweep and the seeds, as they turn out to be needed.
    """

    question: Question
    folder: Path
    fresh: bool
    watch: Watch
    make_engine: MakeEngine
    jobs: int = 1
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    done: set[str] = field(default_factory=set)
    more: list[str] = field(default_factory=list)

    @property
    def out(self) -> Path:
        """The folder of the run folders; those of a budget have their own, so that they hold what it paid for alone."""
        allowance = self.question.allowance
        return self.folder / f"budget-{allowance.what}-{allowance.amount:.15g}" if allowance else self.folder

    def play(self) -> Outcome:
        """Every run that is not there yet, then comparison.json and what all of them say.

        Raises:
            CotuneError: whatever a run raises, with its row and seed; E_CONFLICT when rows saw different data.
        """
        question = self.question
        methods, searches = dict(question.rows), {}
        if question.sweep:
            clients = self._crowd(question.search_seed).clients
            trials = {label: [self._trial(label, lr, clients) for lr in question.rates(label)] for label in methods}
            self._ahead([(label, one) for label, ones in trials.items() for one in ones], self.out / SEARCHED)
            searches = {
                label: choose(label, [self._try(one, label) for one in ones], question.metric)
                for label, ones in trials.items()
            }
            methods = {label: with_rate(method, searches[label].chosen) for label, method in methods.items()}
        lengths = self._at_one_length(methods, searches) if question.match_norm else {}
        methods |= {label: with_rate(methods[label], one.matched.lr) for label, one in lengths.items()}
        crowds = [self._crowd(seed) for seed in question.numbers]
        planned = {
            label: [
                self._planned(label, method, seed, crowd.clients)
                for seed, crowd in zip(question.numbers, crowds, strict=True)
            ]
            for label, method in methods.items()
        }
        self._describe(planned, searches, lengths)
        self._ahead([(label, one) for label, ones in planned.items() for one in ones], self.out)
        runs: dict[str, list[Played]] = {label: [] for label in planned}
        for i, seed in enumerate(question.numbers):
            for label, ones in planned.items():
                runs[label].append(self._paid(self._run(ones[i], self.out, label), label))
            check_same(seed, {label: played[i] for label, played in runs.items()})
        return Outcome(runs, crowds, searches, lengths)

    def _at_one_length(self, methods: Mapping[str, Method], searches: Mapping[str, Search]) -> dict[str, Lengthened]:
        """The rows of factors at the rates at which their updates are as long as the shortest at its best rate.

        It begins with the runs of the sweep; without one, with a run of each row at its own rate.
        """
        question, out = self.question, self.out / SEARCHED
        played: dict[str, list[Played]] = {label: [] for label in question.measured}

        def play(guesses: Mapping[str, float]) -> dict[str, float | None]:
            trials = {label: question.trial(label, lr, ()) for label, lr in guesses.items()}
            self.more.extend(trials)
            self._ahead([*trials.items()], out)
            for label, one in trials.items():
                played[label].append(self._try(one, label))
            return {label: _length(played[label][-1]) for label in trials}

        tried: dict[str, dict[float, float | None]] = {}
        if searches:
            for label in played:
                swept = {lr: question.trial(label, lr, ()) for lr in question.rates(label)}
                tried[label] = {lr: _length(self._try(one, label, again=True)) for lr, one in swept.items()}
        rates = {label: float(rate(methods[label]) or 0) for label in played}
        if not searches:
            tried = {label: {rates[label]: found} for label, found in play(rates).items()}
        found = one_length(tried, rates, play, tries=TRIES)
        return {
            label: Lengthened(
                one,
                question.search_seed,
                sum(run.client_steps for run in played[label]),
                sum(run.total("seconds") for run in played[label]),
            )
            for label, one in found.items()
        }

    def _run(self, experiment: Experiment, out: Path, label: str) -> Played:
        seed, lr, told = experiment.seeds.seed, rate(experiment.method), experiment.hash in self.done
        if not told:
            self._say(experiment, label)
        fresh, watch = self.fresh and not told, quiet if told else self.watch
        try:
            allowance = self.question.allowance
            found = carry_out(experiment, out, allowance, fresh=fresh, watch=watch, make_engine=self.make_engine)
        except CotuneError as error:
            raise CotuneError(error.code, f"row '{label}', seed {seed}, lr {lr}: {error.text}") from error
        return Played(experiment, found, allowance)

    def _paid(self, played: Played, label: str) -> Played:
        """The run, when a scored round of it is within the budget.

        Raises:
            CotuneError: E_CONFLICT when none is.
        """
        allowance = self.question.allowance
        if allowance is not None and not played.records:
            first = f"{allowance.what}={allowance.of(played.run.rounds[:1]):g}"
            what = f"row '{label}' has no scored round within the budget of {allowance}"
            where = f"seed {played.experiment.seeds.seed}"
            raise CotuneError(Code.CONFLICT, what, where=where, got=f"a first round of {first}", fix="give more")
        return played

    def _planned(self, label: str, method: Method, seed: int, clients: Sequence[ClientInfo]) -> Experiment:
        """A row's run under a seed."""
        steps = self._steps(label, method, seed, clients)
        return self.question.experiment(label, method, seed, clients, steps)

    def _trial(self, label: str, lr: float, clients: Sequence[ClientInfo]) -> Experiment:
        """A row's run in the search; what a step costs is found at the row's own learning rate."""
        question = self.question
        steps = self._steps(label, question.rows[label], question.search_seed, clients)
        return question.trial(label, lr, clients, steps)

    def _steps(self, label: str, method: Method, seed: int, clients: Sequence[ClientInfo]) -> int | None:
        """A client's steps where FLOPs are counted and a row never aggregates: it has one round, and none to stop at.

        A run of a round's steps says what a step costs. Steps differ a little, so that what follows is played too, and
        made smaller where it was too much.
        """
        question = self.question
        if question.allowance is None or question.allowance.what != "flops" or method.share != "none":
            return None
        most = question.experiment(label, method, seed, clients).method.budget.steps or 1
        steps = max(1, most // question.ground.federation.rounds)
        while True:
            one = question.experiment(label, method, seed, clients, steps)
            run = carry_out(one, self.out, None, fresh=False, watch=quiet, make_engine=self.make_engine)
            spent = question.allowance.of(run.rounds)
            fit = int(steps * question.allowance.amount / spent) if spent else most
            if spent > question.allowance.amount and steps > 1:
                most = steps - 1
            elif steps == most or fit <= steps:
                return steps
            steps = max(1, min(most, fit))

    def _say(self, experiment: Experiment, label: str) -> None:
        """Which run it is."""
        of = len(self.question.rows) * (len(self.question.sweep) + self.question.seeds) + len(self.more)
        seed, lr = experiment.seeds.seed, rate(experiment.method)
        self.watch("comparing", {"number": next(self.numbers), "of": of, "row": label, "seed": seed, "lr": lr})

    def _ahead(self, planned: Sequence[tuple[str, Experiment]], out: Path) -> None:
        """Carry out what is planned in several processes, where there are several; what went wrong is found later."""
        if self.jobs < 2:
            return
        labels = {experiment.hash: label for label, experiment in planned}
        experiments, allowance = [one for _, one in planned], self.question.allowance
        for experiment in ahead(experiments, out, self.jobs, self.fresh, self.make_engine, allowance=allowance):
            self.done.add(experiment.hash)
            self._say(experiment, labels[experiment.hash])

    def _try(self, experiment: Experiment, label: str, *, again: bool = False) -> Played:
        """A run of the search, finished or fallen apart; one that fell apart before is left as it is.

        Whoever looks at it `again` finds it there, and nothing is said.
        """
        if again:
            self.done.add(experiment.hash)
        out, allowance = self.out / SEARCHED, self.question.allowance
        status = experiment.folder(out) / "status.json"
        told = experiment.hash in self.done
        if status.exists() and (told or not self.fresh) and read_json(status)["code"] in DIVERGED:
            if not told:
                next(self.numbers)
            return Played(experiment, Run(status.parent), allowance)
        try:
            return self._run(experiment, out, label)
        except CotuneError as error:
            if error.code not in DIVERGED:
                raise
            return Played(experiment, Run(status.parent), allowance)

    def _crowd(self, seed: int) -> Crowd:
        """What the seed decides about the data.

        Raises:
            CotuneError: E_CONFLICT when there is nothing to train or to test on.
        """
        corpus = self.question.ground.task.load(
            self.question.seeds_of(seed), lambda line: self.watch("fetching", {"line": line})
        )
        clients = [ClientInfo(name, len(rows.train), len(rows.held)) for name, rows in sorted(corpus.clients.items())]
        if not corpus.test or not any(client.rows for client in clients):
            raise CotuneError(Code.CONFLICT, "a comparison needs rows to train on and to test on", where="task")
        tests, task = corpus.test[: self.question.ground.evaluation.rows], self.question.ground.task
        return Crowd(clients, names(tests), [corpus.cells(i, task.cell(row)) for i, row in enumerate(tests)])

    def _describe(
        self,
        planned: Mapping[str, Sequence[Experiment]],
        searches: Mapping[str, Search],
        lengths: Mapping[str, Lengthened],
    ) -> None:
        """What comparison.json says: the question, and where its runs are."""
        question = self.question
        ground = question.ground.resolved()
        del ground["method"], ground["name"]

        def folder(one: Experiment) -> str:
            return (one.folder(self.out).relative_to(self.folder)).as_posix()

        rows = {
            label: {
                "method": ones[0].method.model_dump(mode="json"),
                "lr": rate(ones[0].method),
                "backbone": ones[0].backbone.model_dump(mode="json") if label in question.backbones else None,
                "runs": [{"seed": one.seeds.seed, "folder": folder(one), "hash": one.hash} for one in ones],
                "search": asdict(searches[label]) if label in searches else None,
                "length": asdict(lengths[label]) if label in lengths else None,
            }
            for label, ones in planned.items()
        }
        options = {name: getattr(question, name) for name in ("reference", "metric", "sweep")}
        options |= {"sweep": [f"x{factor:g}" for factor in question.sweep]} if question.relative else {}
        options["budget"] = None if question.allowance is None else str(question.allowance)
        write_json(self.folder / DESCRIPTION, {"rows": rows, "seeds": question.numbers, **options, "ground": ground})


def _length(played: Played) -> float | None:
    """How far the weights of a run are from their start; None where training fell apart."""
    return length(played.run) if played.ended else None
