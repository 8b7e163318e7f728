"""An experiment before it runs: its TOML, its objective, what trains, every message, and what is not protected."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotune import resolve, synthetic
from cotune.cli import toml
from cotune.cli.claim import claim
from cotune.cli.halves import halves
from cotune.cli.leak import leaks
from cotune.cli.messages import Message, Round, Traffic, ordered, spent, traffic
from cotune.cli.objective import objective, rule
from cotune.core.contracts import Corpus, Split
from cotune.core.errors import Code, CotuneError
from cotune.core.protection import NOT_PROTECTED
from cotune.core.spec import Role
from cotune.cuts import Cuts, measure
from cotune.experiment import Experiment
from cotune.setup import Plan
from cotune.store import Table
from cotune.task import Classify

# Where nothing is given yet, so that the rest can be shown; never printed, and never run.
STAND_INS = {"backbone": "random:bert", "task": "synth:sentiment"}
LABELS = 2
SHOWN = 3  # groups of rounds with the same messages


@dataclass(frozen=True)
class View:
    """What is shown of an experiment.

    Attributes:
        experiment: with stand-ins for what is missing.
        missing: 'backbone' or 'task', where a recipe was given without.
        plan: the shapes; None when something is missing that they need.
        assumed: what stands in for data that was not read, or nothing.
        cuts: what cutting the model in two is worth, where that was asked for.
    """

    experiment: Experiment
    missing: tuple[str, ...]
    plan: Plan | None
    assumed: str = ""
    cuts: Cuts | None = None

    def text(self) -> str:
        """The experiment as TOML; everything else as comments, so that the whole is an experiment file."""
        lines = _method_lines(self.experiment)
        if self.missing:
            lines.append(("to go on", "add " + " ".join(f"--{name} {_example(name)}" for name in self.missing)))
        else:
            lines.append(("run", f"{self.experiment.hash}, in runs/{self.experiment.folder(Path()).name}"))
        blocks = ["\n".join(f"{name:<12}{value}" for name, value in lines)]
        if self.plan:
            blocks += [self.assumed or _rows_text(self.plan), _trained_text(self.plan)]
            blocks.append(_traffic_text(traffic(self.plan)))
        blocks += [halves(self.cuts)] if self.cuts else []
        if self.plan and (claimed := claim(self.plan)):
            said = claimed.lines(self.experiment.federation.rounds)
            blocks.append("\n".join(["differential privacy", *(f"  {line}" for line in said)]))
        blocks.append("\n".join(["not protected", *(f"  {line}" for line in _unprotected(self.plan))]))
        comments = "\n\n".join(blocks).split("\n")
        return "\n".join([toml.dump(self.plain()), *(f"# {line}".rstrip() for line in comments)])

    def json(self) -> str:
        """The same as one JSON object."""
        shown: dict[str, Any] = {
            "experiment": self.plain(),
            "hash": None if self.missing else self.experiment.hash,
            "missing": list(self.missing),
            **dict(_method_lines(self.experiment)),
            "assumed": self.assumed or None,
            "not_protected": _unprotected(self.plan),
        }
        if self.cuts:
            shown["cuts"] = self.cuts.plain()
        if self.plan:
            predicted = traffic(self.plan)
            shown["trained"] = {role: dict(row) for role, row in _trained(self.plan).items()}
            if claimed := claim(self.plan):
                shown["privacy"] = claimed.plain(self.experiment.federation.rounds)
            shown["rounds"] = [
                {"rounds": numbers, "messages": [_plain_message(m, n) for m, n in ordered(messages)]}
                for numbers, messages in predicted.alike()
            ]
            shown["run"] = {"rounds": predicted.rounds, "exact": predicted.exact, **predicted.totals()}
        return json.dumps(shown, indent=2, ensure_ascii=False)

    def plain(self) -> dict[str, Any]:
        """The experiment as plain values, without what is missing."""
        plain = self.experiment.model_dump(mode="json")
        if self.missing:
            kept = {"name", "method", "backbone", "task"} - set(self.missing)
            plain = {name: value for name, value in plain.items() if name in kept}
        return plain


def view(
    source: str,
    *,
    shapes_only: bool = False,
    probe: bool = False,
    backbone: str | None = None,
    task: str | None = None,
    sets: Iterable[str] = (),
    **options: Any,
) -> View:
    """What there is to show of a recipe or a file.

    Args:
        source: a recipe's name, or the path of a TOML file.
        shapes_only: read no data.
        probe: load the model, and measure on batches what cutting it in two is worth.
        backbone: a reference.
        task: a data reference.
        sets: assignments.
        options: what else `resolve.load` takes.

    Raises:
        CotuneError: whatever resolving, reading data or attaching to the backbone's shapes raises.
    """
    sets = tuple(sets)
    given = {"backbone": backbone, "task": task}
    missing = tuple(name for name, value in given.items() if value is None and _leaves_out(source, name, sets))
    options |= {name: STAND_INS[name] if name in missing else value for name, value in given.items()}
    assume = Classify.kind if shapes_only else None  # columns would say which task, but no data is read
    experiment = resolve.load(source, sets=sets, assume=assume, **options)
    if missing == ("backbone",) and not shapes_only and (usual := synthetic.backbone(experiment.task)):
        missing, options["backbone"] = (), usual
        experiment = resolve.load(source, sets=sets, **options)
    if probe and (missing or shapes_only):
        wanted = " ".join(f"--{name} {_example(name)}" for name in missing)
        fix = f"add {wanted}" if wanted else "leave --shapes-only out"
        raise CotuneError(Code.CONFIG, "gradients are those of a model on rows", where="--probe", fix=fix)
    if shapes_only and "backbone" in missing:
        fix = f"add --backbone {_example('backbone')}"
        raise CotuneError(Code.CONFIG, "shapes are a backbone's", where="--shapes-only", fix=fix)
    if missing and not shapes_only:
        return View(experiment, missing, None)
    if probe:
        setup = experiment.blueprint().build()
        return View(experiment, missing, setup, cuts=measure(setup))
    if not shapes_only:
        corpus = experiment.task.load(experiment.seeds)
        return View(experiment, missing, experiment.blueprint().sketch(corpus))
    corpus, assumed = _stand_in(experiment)
    return View(experiment, missing, experiment.blueprint().sketch(corpus), assumed)


def _leaves_out(source: str, table: str, sets: Sequence[str]) -> bool:
    """Whether a source is a recipe and nothing sets this table: recipes are methods alone."""
    recipe = source in resolve.recipes() and not Path(source).is_file()
    return recipe and not any(assignment.startswith((f"{table}.", f"{table}=")) for assignment in sets)


def _example(name: str) -> str:
    return {"backbone": "pkg:minilm-l6", "task": "pkg:rotten-tomatoes"}[name]


def _stand_in(experiment: Experiment) -> tuple[Corpus, str]:
    """A corpus of rows that nobody reads: one client, or as many as the cohort and the groups ask for."""
    groups = [group.match for group in experiment.federation.groups]  # as an id, a pattern matches itself
    count = max(1, experiment.federation.cohort or 1, len(groups))
    names = [*groups, *(f"client-{i:02d}" for i in range(count - len(groups)))]
    rows = [dict[str, Any]()] * experiment.method.budget.batch
    head = experiment.task.head
    labels = 0 if head != "classification" else getattr(experiment.task, "classes", None) or LABELS
    corpus = Corpus(
        clients={name: Split(train=rows, held=()) for name in names},
        test=(),
        head=head,
        labels=tuple(str(label) for label in range(labels)),
        chance={},
    )
    clients = f"{count} {_noun(count, 'client')} of {len(rows)} rows"
    classes = f"{labels} labels, " if labels else ""
    return corpus, f"assumed: {classes}{clients}, no test rows; no data was read"


def _rows_text(plan: Plan) -> str:
    clients = plan.clients
    rows, held = sum(info.rows for info in clients), sum(info.held for info in clients)
    divided = f"{rows:,} rows to train on, {held:,} held back, {plan.test_rows:,} test rows that nobody has"
    divided += "" if plan.task.rowwise else "; a row counts as one example until there is a tokenizer"
    return f"{len(clients)} {_noun(len(clients), 'client')}, {plan.federation.cohort or 'all'} a round: {divided}"


def _unprotected(plan: Plan | None) -> list[str]:
    """What no run protects, and what this one tells beside."""
    claimed = claim(plan) if plan else None
    without, *others = NOT_PROTECTED
    return [*([] if claimed and claimed.whole else [without]), *others, *(leaks(plan) if plan else ())]


def _method_lines(experiment: Experiment) -> list[tuple[str, str]]:
    method = experiment.method
    return [
        ("objective", objective(method)),
        *([("personalize", rule(method.personalize))] if method.personalize else []),
        ("step", rule(method.optimizer)),
        ("aggregate", rule(method.aggregator) if method.share != "none" else "nothing: nothing is shared"),
    ]


def _trained(plan: Plan) -> Mapping[str, Mapping[str, int]]:
    """Role -> how many tensors and float32 numbers train, their bytes, and how many of the numbers travel."""
    scope = plan.method.scope(plan.spec, 1)
    train, up, down = set(scope.train), set(scope.up), set(scope.down)
    rows: dict[str, dict[str, int]] = {}
    for role in Role:
        entries = [entry for entry in plan.spec if entry.role is role]
        if entries:
            numbers = sum(entry.numel for entry in entries if entry.name in train)
            rows[role.value] = {
                "tensors": len(entries),
                "numbers": numbers,
                "bytes": 4 * numbers,
                "up": sum(entry.numel for entry in entries if entry.name in up),
                "down": sum(entry.numel for entry in entries if entry.name in down),
            }
    return rows


def _trained_text(plan: Plan) -> str:
    rows = _trained(plan)
    total = {name: sum(row[name] for row in rows.values()) for name in next(iter(rows.values()))}
    lines = [[role, *(f"{count:,}" for count in row.values())] for role, row in [*rows.items(), ("all", total)]]
    columns = ("role", "tensors", "numbers trained", "bytes", "numbers up", "numbers down")
    return f"what trains and what travels (float32, round 1)\n{_indented(Table(columns, lines))}"


def _traffic_text(predicted: Traffic) -> str:
    groups = predicted.alike()
    blocks = [_round_text(numbers, messages) for numbers, messages in groups[:SHOWN]]
    if len(groups) > SHOWN:
        others = sum(len(numbers) for numbers, _ in groups[SHOWN:])
        blocks.append(f"  and {others} more {_noun(others, 'round')} of other sizes")
    about = "" if predicted.exact else f"about, from the first {len(predicted.played)}: "
    rounds = f"{predicted.rounds} {_noun(predicted.rounds, 'round')}"
    blocks.append(f"  run of {rounds}: {about}{_spent_text(predicted.totals())}")
    head = "messages in bytes, when every reply comes and counts"
    return "\n".join([head, *blocks])


def _round_text(numbers: Sequence[int], messages: Round) -> str:
    roles = list(dict.fromkeys(role for message, _ in ordered(messages) for role, _ in message.payload))
    rows = []
    for message, count in ordered(messages):
        payload = dict(message.payload)
        cells = [f"{payload.get(role, 0):,}" for role in roles]
        name = f"{message.purpose} {message.direction}"
        rows.append(
            [name, str(count), *cells, f"{message.framing:,}", f"{message.total:,}", f"{count * message.total:,}"]
        )
    columns = ("message", "count", *roles, "framing", "each", "together")
    listed = ", ".join(map(str, numbers[:SHOWN])) + (f" … {numbers[-1]}" if len(numbers) > SHOWN else "")
    which = f"round {listed}" if len(numbers) == 1 else f"each of rounds {listed}"
    head = f"  {which}: {_spent_text(spent(messages))}"
    return f"{head}\n{_indented(Table(columns, rows), 4)}"


def _spent_text(total: Mapping[str, int]) -> str:
    words = {"uplink_bytes": "up", "downlink_bytes": "down", "evaluation_bytes": "evaluation"}
    return ", ".join(f"{words[name]} {count:,}" for name, count in total.items())


def _plain_message(message: Message, count: int) -> dict[str, Any]:
    return {
        "purpose": message.purpose,
        "direction": message.direction,
        "count": count,
        "payload_bytes": dict(message.payload),
        "framing_bytes": message.framing,
        "total_bytes": message.total,
    }


def _indented(table: Table, spaces: int = 2) -> str:
    return "\n".join(" " * spaces + line for line in str(table).split("\n"))


def _noun(count: int, word: str) -> str:
    return word if count == 1 else f"{word}s"
