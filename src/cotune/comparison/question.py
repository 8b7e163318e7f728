"""What is compared: rows that differ in method or in what they see of the model, on one ground, over the same seeds."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cotune import resolve, synthetic
from cotune.backbone import Backbone
from cotune.comparison.allowance import Allowance
from cotune.comparison.played import rate
from cotune.core.contracts import ClientInfo
from cotune.core.errors import Code, CotuneError, nearest
from cotune.core.events import silent
from cotune.core.part import Capability, kind_of
from cotune.core.part import resolve as part
from cotune.core.seeds import Seeds
from cotune.core.view import Budget, Schedule
from cotune.experiment import Experiment
from cotune.federation import Evaluation, Federation
from cotune.method import ROOMS, Method

LOCAL = "local"
SEARCH = 1000  # how far the seed of the search for a learning rate is from the first
# A file is read as a whole experiment: of a row, all but the method is put aside, and of the ground, the method.
NO_GROUND = (
    'backbone={ref="random:bert"}',
    'task={kind="classify", data="synth:sentiment"}',
    *("federation={}", "evaluation={}", "seeds={}"),
)
LACKING = ("cotune compare", "add --{} REF, or --base FILE; of a row, the method alone counts")
_NAMES_BACKBONE = re.compile(r"backbone(\.ref)?=")
_APART = re.compile(r"\+(?=(?:backbone|method)\.[\w.]+=)")  # what a row has of its own begins here
NO_METHOD = 'method={trainable="full", optimizer={kind="sgd", lr=0}, budget={steps=1}}'


@dataclass(frozen=True)
class Question:
    """Rows and what they share; the runs of a row are those of its method under every seed.

    Attributes:
        rows: label -> method, in the order of the table.
        ground: task, backbone, federation, evaluation and the first seed; its method is that of the first row.
        seeds: how many, one after another from the first; each decides data, cohorts, batches and initialisation.
        reference: the row that the others are held against.
        metric: by which.
        sweep: the learning rates to choose from, row by row; none to leave each row its own.
        relative: whether those are factors of each row's own rate.
        backbones: label -> the backbone of a row that has settings of its own, a window say; the weights are the same.
        allowance: what each run may spend of the rounds that the ground has; None for all of them.
        match_norm: whether rows of factors are brought to one length of update before they are compared.
    """

    rows: Mapping[str, Method]
    ground: Experiment
    seeds: int
    reference: str
    metric: str
    sweep: tuple[float, ...] = ()
    backbones: Mapping[str, Backbone] = field(default_factory=dict)
    allowance: Allowance | None = None
    match_norm: bool = False
    relative: bool = False

    def rates(self, label: str) -> tuple[float, ...]:
        """The learning rates that a row chooses from."""
        own = rate(self.rows[label]) or 0.0
        return tuple(float(f"{own * factor:.12g}") for factor in self.sweep) if self.relative else self.sweep

    @property
    def numbers(self) -> list[int]:
        """The seeds."""
        return [self.ground.seeds.seed + i for i in range(self.seeds)]

    @property
    def search_seed(self) -> int:
        """The one seed under which learning rates are tried, which is none of the others."""
        return self.ground.seeds.seed + SEARCH

    @property
    def alone(self) -> list[str]:
        """The rows that never aggregate."""
        return [label for label, method in self.rows.items() if method.share == "none"]

    @property
    def measured(self) -> list[str]:
        """The rows whose update has a length: that of the products of factors which all clients share."""
        return [label for label, method in self.rows.items() if _has_length(method)]

    @property
    def budget(self) -> Budget:
        """What a client does in a round, in every row that aggregates."""
        together = [method.budget for method in self.rows.values() if method.share != "none"]
        return together[0] if together else next(iter(self.rows.values())).budget

    def seeds_of(self, seed: int) -> Seeds:
        """The seeds of a run; a purpose that the ground fixes stays fixed."""
        return self.ground.seeds.model_copy(update={"seed": seed})

    def client_steps(self, seed: int, clients: Sequence[ClientInfo]) -> int:
        """The steps of all clients in all rounds, when every reply comes."""
        federation, seeds = self.ground.federation, self.seeds_of(seed)
        groups = {client.id: federation.group(client.id) for client in clients}
        budgets = {name: group.budget if group and group.budget else self.budget for name, group in groups.items()}
        steps = {client.id: budgets[client.id].count(client.rows) for client in clients}
        return sum(
            steps[name] for round_ in range(federation.rounds) for name in federation.sample(clients, seeds, round_ + 1)
        )

    def experiment(
        self, label: str, method: Method, seed: int, clients: Sequence[ClientInfo], steps: int | None = None
    ) -> Experiment:
        """A row under one seed; a row that never aggregates takes the others' client-steps in one round of everyone.

        Args:
            label: of the row.
            method: of the row.
            seed: of the run.
            clients: everyone.
            steps: of every client, where a row that never aggregates is to take others.
        """
        federation = self.ground.federation
        if method.share == "none":
            everyone = sum(client.rows > 0 for client in clients)
            steps = steps or max(1, math.floor(self.client_steps(seed, clients) / everyone + 0.5))
            given = {"batch": self.budget.batch, "accumulate": self.budget.accumulate}
            budget = method.budget.model_copy(update={"steps": steps, "epochs": None, **given})
            method, federation = _with(method, budget=budget), Federation(rounds=1)
        readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", label).strip("-._")[:40] or "row"
        backbone = self.backbones.get(label, self.ground.backbone)
        shared = {"task": self.ground.task, "backbone": backbone, "evaluation": self.ground.evaluation}
        name, seeds = f"{readable}-seed-{seed}", self.seeds_of(seed)
        return Experiment(name=name, method=method, federation=federation, seeds=seeds, **shared)

    def trial(self, label: str, lr: float, clients: Sequence[ClientInfo], steps: int | None = None) -> Experiment:
        """A row at one learning rate under the search's seed, scored on what every client holds back."""
        found = self.experiment(label, with_rate(self.rows[label], lr), self.search_seed, clients, steps)
        evaluation = self.ground.evaluation.model_copy(update={"which": "all"})
        return found.model_copy(update={"name": f"{found.name}-lr-{lr:g}", "evaluation": evaluation})


def ask(
    rows: Mapping[str, Method],
    ground: Experiment,
    *,
    seeds: int,
    reference: str | None = None,
    metric: str | None = None,
    sweep: Iterable[float | str] = (),
    backbones: Mapping[str, Backbone] | None = None,
    budget: str | None = None,
    match_norm: bool = False,
) -> Question:
    """The question, with what was left out filled in, or the reason why it has no answer.

    Where the ground does not say, four rounds are scored, the last one among them, on test rows and on what every
    client holds back; with a `budget`, such as `bytes=2e6`, every round is. With `match_norm`, rows of factors are
    brought to one length of update first.

    Raises:
        CotuneError: E_CONFIG for a number, a metric or a reference that is none; E_CONFLICT for rows that cannot be
            compared.
    """
    metrics = ground.task.metrics
    metric = metric or ("accuracy" if "accuracy" in metrics else "loss")
    together = (label for label, method in rows.items() if method.share != "none")
    reference = reference or next(together, next(iter(rows), ""))
    if len(rows) < 2:
        raise CotuneError(Code.CONFIG, "a comparison needs two rows", where="cotune compare", got=len(rows))
    for what, given, known in (("metric", metric, metrics), ("reference", reference, rows)):
        if given not in known:
            raise CotuneError(Code.CONFIG, f"no {what} '{given}'", where="cotune compare", fix=nearest(given, known))
    if not 1 <= seeds <= SEARCH:
        raise CotuneError(Code.CONFIG, "too many or too few seeds", where="--seeds", got=seeds, expected="1 to 1000")
    _check_budgets(rows)
    grid, relative = _grid(sweep)
    for label, method in rows.items() if grid else ():
        if "lr" not in type(method.optimizer).model_fields:
            what = f"row '{label}' has no learning rate: its optimizer is '{kind_of(type(method.optimizer))}'"
            raise CotuneError(Code.CONFLICT, what, where="--sweep", fix="leave the sweep out, or the row")
        for lr in grid:
            with_rate(method, lr * (rate(method) or 0.0) if relative else lr)
    if ground.evaluation.which == "none":
        raise CotuneError(Code.CONFLICT, "nothing would be scored", where="evaluation.which", got="none")
    allowance = Allowance.read(budget) if budget else None
    if allowance is not None:
        _check_schedules(rows)
    if match_norm:
        _check_lengths(rows, allowance)
    usual = {"every": 1 if allowance else math.ceil(ground.federation.rounds / 4), "which": "all"}
    left_out = {name: value for name, value in usual.items() if name not in ground.evaluation.model_fields_set}
    evaluation = Evaluation.model_validate({**dict(ground.evaluation), **left_out})
    ground = ground.model_copy(update={"evaluation": evaluation, "method": next(iter(rows.values()))})
    own = {label: backbone for label, backbone in (backbones or {}).items() if backbone != ground.backbone}
    for label in own:
        if label not in rows:
            raise CotuneError(Code.CONFIG, f"no row '{label}'", where="backbones", fix=nearest(label, rows))
    return Question(rows, ground, seeds, reference, metric, grid, own, allowance, match_norm, relative)


def with_rate(method: Method, lr: float) -> Method:
    """The method at another learning rate; a rate of its own that the model's back half has keeps its ratio to it.

    Raises:
        CotuneError: E_CONFIG when its optimizer does not take it.
    """
    fields = {**method.optimizer.model_dump(), "lr": lr}
    before, back = getattr(method.optimizer, "lr", None), fields.get("lr_back")
    if before and back:
        fields["lr_back"] = back * (lr / before)
    return _with(method, optimizer=part("optimizer", ROOMS["optimizer"], fields))


def load(
    sources: Sequence[str],
    *,
    base: str | None = None,
    local: bool = True,
    cohort: int | None = None,
    sets: Sequence[str] = (),
    faster: bool = True,
    **options: Any,
) -> tuple[dict[str, Method], Experiment, dict[str, Backbone]]:
    """The rows behind recipe names and TOML files, the ground they share, and the backbones of rows with their own.

    Where nobody names a backbone, synthetic data have one, and rounds, a cohort, steps and rates that it learns with.

    Args:
        sources: of a file, the method alone counts; `+method.a=b` and `+backbone.a=b` behind it are for this row alone.
        base: a TOML file with the ground; its method does not count.
        local: add the recipe `local` where no row stays unaggregated.
        cohort: clients a round.
        sets: `method.a=b` goes to every row, anything else to the ground.
        faster: whether recipes' learning rates are raised where nobody names a backbone; not where they are searched.
        options: what else `resolve.load` takes, for the ground: backbone, task, rounds, seed, device, say.

    Raises:
        CotuneError: E_CONFIG, with what is missing or wrong.
    """
    usual, times = list[str](), 1.0
    if unnamed(base, sets, options):
        sets, cohort, usual = _usual(sources, sets, cohort, options)
        if faster and not any(text.startswith(("method.optimizer", "method=")) for text in sets):
            times = synthetic.FASTER
            usual.append(f"{times:g} times the learning rate of every recipe")
    given = [*sets, *([] if cohort is None else [f"federation.cohort={cohort}"])]
    own = [text for text in given if text.startswith(("method.", "method="))]
    shared = [text for text in given if text not in own]
    if base is None:
        options["lacking"] = LACKING
    ground = resolve.load(base or LOCAL, sets=[*shared, NO_METHOD], **options)
    if usual:
        options.get("say", silent)(f"{', '.join(usual)}: so small a model learns with these, and none was named")
    if base is None:
        ground = ground.model_copy(update={"name": "compare"})
    rows: dict[str, Method] = {}
    taken: Counter[str] = Counter()
    backbones: dict[str, Backbone] = {}
    for given_source in sources:
        source, *apart = _APART.split(given_source)
        name = "+".join([Path(source).stem if Path(source).suffix == ".toml" else source, *apart])
        taken[name] += 1
        label = name if taken[name] == 1 else f"{name}#{taken[name]}"
        of_row = [text for text in apart if text.startswith("method.")]
        plain = source in resolve.recipes() and not any(text.startswith("method.optimizer") for text in of_row)
        rows[label] = _faster(_row(source, label, [*own, *of_row]), times if plain else 1.0)
        seen = [text for text in apart if text.startswith("backbone.")]
        if seen:
            told = {**options, "backbone": ground.backbone.ref, "say": silent}
            backbones[label] = resolve.load(base or LOCAL, sets=[*shared, NO_METHOD, *seen], **told).backbone
    if local and not any(method.share == "none" for method in rows.values()):
        rows[LOCAL] = _faster(_row(LOCAL, LOCAL, own), times)
    return rows, ground, backbones


def unnamed(base: str | None, sets: Sequence[str], options: Mapping[str, Any]) -> bool:
    """Whether nobody names a backbone."""
    return base is None and not options.get("backbone") and not any(map(_NAMES_BACKBONE.match, sets))


def _usual(
    sources: Sequence[str], sets: Sequence[str], cohort: int | None, options: dict[str, Any]
) -> tuple[Sequence[str], int | None, list[str]]:
    """Assignments and a cohort with what a synthetic task has by default, the rounds among the options, and words.

    What is given stays; a file has steps of its own.
    """
    known = resolve.recipes()
    ground = resolve.load(LOCAL, sets=[*sets, NO_METHOD], **{**options, "say": silent, "lacking": LACKING})
    told = list[str]()
    if options.get("rounds") is None and not any(text.startswith("federation") for text in sets):
        options["rounds"] = synthetic.ROUNDS
        told.append(f"{synthetic.ROUNDS} rounds")
    clients = sum(bool(rows.train) for rows in ground.task.load(ground.seeds).clients.values())
    if cohort is None and clients > synthetic.COHORT and not any(text.startswith("federation") for text in sets):
        cohort = synthetic.COHORT
        told.append(f"{cohort} of {clients} clients a round")
    plain = all(_APART.split(source)[0] in known for source in sources)
    if plain and not any(text.startswith("method.budget") or text.startswith("method=") for text in sets):
        sets = [*sets, f"method.budget.steps={synthetic.STEPS}"]
        told.append(f"{synthetic.STEPS} steps of each")
    return sets, cohort, told


def _faster(method: Method, times: float) -> Method:
    """The method at so many times its learning rate, where it has one."""
    lr = rate(method)
    return method if lr is None or times == 1 else with_rate(method, float(f"{lr * times:.12g}"))


def _row(source: str, label: str, sets: Sequence[str]) -> Method:
    try:
        return resolve.load(source, sets=[*NO_GROUND, *sets]).method
    except CotuneError as error:
        raise CotuneError(error.code, f"row '{label}': {error.text}") from error


def _with(method: Method, **parts: object) -> Method:
    return Method.model_validate({**dict(method), **parts})


def _check_budgets(rows: Mapping[str, Method]) -> None:
    """Refuse rows that would be given different work."""
    work = {
        label: {name: getattr(method.budget, name) for name in ("steps", "epochs", "batch", "accumulate")}
        for label, method in rows.items()
        if method.share != "none"
    }
    for label, budget in work.items():
        first, expected = next(iter(work.items()))
        if budget != expected:
            raise CotuneError(
                Code.CONFLICT,
                f"rows '{first}' and '{label}' have different budgets",
                where="method.budget",
                got="; ".join(f"{n}: {expected[n]} and {v}" for n, v in budget.items() if v != expected[n]),
                fix="give all rows the same, say --set method.budget.steps=10",
            )


def _grid(sweep: Iterable[float | str]) -> tuple[tuple[float, ...], bool]:
    """The numbers of a sweep, and whether they are factors, which are written `x3`.

    Raises:
        CotuneError: E_CONFIG for a factor that is none, and for rates and factors together.
    """
    given = list(sweep)
    factors = [text.removeprefix("x") for text in given if isinstance(text, str)]
    try:
        numbers = tuple(float(one) for one in (factors or given))
    except ValueError:
        numbers = ()
    if len(numbers) != len(given) or (factors and not all(0 < number < math.inf for number in numbers)):
        got = ", ".join(map(str, given))
        expected = "rates, 1e-4,1e-3, or factors of each row's own, x1,x10"
        raise CotuneError(Code.CONFIG, "cannot read the sweep", where="--sweep", got=got, expected=expected)
    return tuple(dict.fromkeys(numbers)), bool(factors)


def _has_length(method: Method) -> bool:
    """Whether what is averaged is factors alone, and a learning rate decides how far they go."""
    factors = Capability.FACTORS in method.trainable.gives and method.share != "none"
    return factors and "lr" in type(method.optimizer).model_fields


def _check_lengths(rows: Mapping[str, Method], allowance: Allowance | None) -> None:
    """Refuse one length where fewer than two rows have any, or where a run may end before its last round."""
    fix = "leave --match-norm out"
    if allowance is not None:
        what = "a row that stops early is as long as it came"
        raise CotuneError(Code.CONFLICT, what, where="--match-norm", got=f"a budget of {allowance}", fix=fix)
    able = [label for label, method in rows.items() if _has_length(method)]
    if len(able) < 2:
        what = "one length needs two rows of factors that are averaged"
        raise CotuneError(Code.CONFLICT, what, where="--match-norm", got=", ".join(able) or "none", fix=fix)


def _check_schedules(rows: Mapping[str, Method]) -> None:
    """Refuse a learning rate that falls over rounds which a budget may leave out."""
    for label, method in rows.items():
        if method.budget.schedule is not Schedule.CONSTANT:
            what = f"row '{label}' has a learning rate that falls over all rounds, and a budget may end before"
            got = f"method.budget.schedule = {method.budget.schedule.value}"
            fix = "make it constant, or leave the budget out"
            raise CotuneError(Code.CONFLICT, what, where="--budget", got=got, fix=fix)
