"""From what a user gives to an experiment: a recipe or a TOML file, then options; tables merge, arrays replace."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cotune import engine as engines
from cotune import experiment as experiments
from cotune import synthetic
from cotune import task as task_room
from cotune.backbone import Backbone
from cotune.core.contracts import Task
from cotune.core.errors import Code, CotuneError, nearest
from cotune.core.events import Say, Watch, quiet, silent
from cotune.core.explain import explain
from cotune.core.part import resolve
from cotune.core.seeds import Seeds
from cotune.experiment import Experiment, MakeEngine
from cotune.federation import Evaluation, Federation
from cotune.method import Method
from cotune.store import Run, safe_name
from cotune.task.infer import inferred

Tree = dict[str, Any]
_BARE = re.compile(r"[\w:/.@?=&~+-]+")
_SEVERAL = re.compile(rf"{_BARE.pattern}(,{_BARE.pattern})+")


def recipes() -> dict[str, str]:
    """Name -> the text of every recipe that comes with cotune."""
    folder = resources.files("cotune") / "recipes"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    return {file.name.removesuffix(".toml"): file.read_text("utf-8") for file in files}


def recipe(name: str, **overrides: Any) -> Method:
    """The method of a recipe, with some fields of its parts exchanged.

    A field is named alone where one part has it (`mu=0.1`, `rank=4`), or by its path (`**{"optimizer.lr": 1e-3}`).

    Raises:
        CotuneError: E_CONFIG for an unknown recipe or field, or a field that several parts have.
    """
    tree = _recipe(name)
    for field, value in overrides.items():
        _put(tree, field if "." in field or field in Method.model_fields else _place(tree, field), value)
    return _method(tree)


def load(
    source: str,
    *,
    backbone: str | None = None,
    task: str | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    device: str | None = None,
    sets: Iterable[str] = (),
    assume: str | None = None,
    say: Say = silent,
    lacking: tuple[str, str] | None = None,
) -> Experiment:
    """The experiment behind a recipe's name or a TOML file, with options on top.

    Args:
        source: a recipe's name, or the path of a TOML file, which may say `recipe = NAME` and override parts of it.
        backbone: a reference in place of `backbone.ref`; where nobody names one and the data are synthetic, a small one
            that comes with cotune.
        task: a data reference, whose columns say the task where the file does not, or `KIND:REFERENCE`; of a task that
            draws its rows or knows its data, `KIND` or `KIND?key=value&key=value`.
        rounds: in place of `federation.rounds`.
        seed: in place of `seeds.seed`.
        device: in place of `backbone.device`.
        sets: `a.b=c`, the value as TOML; a bare word is a text.
        assume: the kind of a task that neither the file nor `task` names, in place of reading columns.
        say: is told which task was inferred from which columns, and which backbone nobody named.
        lacking: where a backbone or a task is missing, and what to add, with `{}` for which, as an error says it.

    Raises:
        CotuneError: E_CONFIG, with the key, the value and the nearest key; E_DATA where columns say no task.
    """
    path = Path(source)
    if path.suffix == ".toml" or path.is_file():
        tree = _file(path)
        name = safe_name(path.stem)
    else:
        tree, name = {"recipe": source}, source
    if "recipe" in tree:
        tree = _merge({"method": _recipe(str(tree.pop("recipe")))}, tree)
    tree.setdefault("name", name)
    options = {"backbone.ref": backbone, "federation.rounds": rounds, "seeds.seed": seed, "backbone.device": device}
    for key, value in options.items():
        if value is not None:
            _put(tree, key, value)
    if task is not None:
        table = tree.get("task", {})
        tree["task"] = _merge(table, _task(task, table.get("kind", assume), say))
    for assignment in sets:
        _put(tree, *assigned(assignment))
    _add_backbone(tree, say)
    for needed, example in (("backbone", "pkg:minilm-l6"), ("task", "pkg:rotten-tomatoes")):
        if needed not in tree:
            where, fix = lacking or (source, f"add --{{0}} {example}, or a [{{0}}] table")
            raise CotuneError(Code.CONFIG, f"no {needed} given", where=where, fix=fix.format(needed))
    return _experiment(tree)


def assigned(text: str, where: str = "--set") -> tuple[str, Any]:
    """The key and the value of `a.b=c`; the value is TOML, a bare word, or several of them with commas between.

    Args:
        text: the assignment.
        where: it was given, for errors.

    Raises:
        CotuneError: E_CONFIG when it cannot be read.
    """
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise CotuneError(Code.CONFIG, "cannot read an assignment", where=where, got=text, expected="a.b=c")
    return key.strip(), _value(value.strip(), where)


def run(
    method: Method | Experiment | str,
    *,
    task: Task | None = None,
    backbone: Backbone | str | None = None,
    rounds: int = 10,
    cohort: int | None = None,
    federation: Federation | None = None,
    evaluation: Evaluation | None = None,
    seed: int = 0,
    name: str | None = None,
    out: Path | str = "runs",
    resume: bool = False,
    fresh: bool = False,
    watch: Watch = quiet,
    engine: str = "inline",
    workers: int | None = None,
    make_engine: MakeEngine | None = None,
) -> Run:
    """Carry out an experiment, or a method on a task and a backbone, and return what it left on disk.

    Args:
        method: a method, the name of a recipe, or a whole experiment (then task, backbone and seeds are its own).
        task: data and scoring.
        backbone: a reference, or one with its settings.
        rounds: how many, when no federation is given.
        cohort: clients a round, when no federation is given; None for all.
        federation: rounds and cohorts in full.
        evaluation: when and on what to score.
        seed: from which every draw derives.
        name: the first part of the folder's name.
        out: the folder of run folders.
        resume: continue an unfinished run.
        fresh: throw away an earlier run of the same experiment.
        watch: told about every moment of the run.
        engine: where clients run: `inline`, in this process; or `pool`, in several. Theta is the same.
        workers: of a pool; None for as many as there is room for.
        make_engine: an engine of your own, in place of those.
    """
    made = make_engine or engines.named(engine, workers, lambda line: watch("fetching", {"line": line}))
    if isinstance(method, Experiment):
        experiment = method
    else:
        if task is None or backbone is None:
            raise CotuneError(Code.CONFIG, "a method runs on a task and a backbone", where="run", fix="give both")
        experiment = Experiment(
            name=name or (method if isinstance(method, str) else "run"),
            method=recipe(method) if isinstance(method, str) else method,
            task=task,
            backbone=Backbone(ref=backbone) if isinstance(backbone, str) else backbone,
            federation=federation or Federation(rounds=rounds, cohort=cohort),
            evaluation=evaluation or Evaluation(),
            seeds=Seeds(seed=seed),
        )
    return experiments.run(experiment, out, resume=resume, fresh=fresh, watch=watch, make_engine=made)


def task(text: str, *, sets: Iterable[str] = (), say: Say = silent) -> Task:
    """The task that a data reference, `KIND:REFERENCE` or `KIND?key=value` names; `sets` are assignments to its fields.

    Raises:
        CotuneError: E_CONFIG for an unknown key or value, E_DATA where columns say no task.
    """
    tree: Tree = {"task": _task(text, None, say)}
    for assignment in sets:
        key, value = assigned(assignment)
        _put(tree, f"task.{key}", value)
    found = resolve("task", task_room.KINDS, tree["task"])
    assert isinstance(found, Task)  # what the room resolves to is a task
    return found


def _recipe(name: str) -> Tree:
    known = recipes()
    if name not in known:
        raise CotuneError(Code.CONFIG, f"no recipe or file '{name}'", fix=nearest(name, known))
    return tomllib.loads(known[name])


def _file(path: Path) -> Tree:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise CotuneError(Code.CONFIG, "cannot read the experiment", where=str(path), got=error.strerror) from error
    except ValueError as error:
        raise CotuneError(Code.CONFIG, "not a TOML file", where=str(path), got=str(error)) from error


def _add_backbone(tree: Tree, say: Say) -> None:
    """Name the backbone of a synthetic task where nobody did, and say so."""
    table = tree.get("backbone", {})
    if "task" not in tree or not isinstance(table, dict) or "ref" in table:
        return
    task = resolve("task", task_room.KINDS, tree["task"])
    if isinstance(task, Task) and (ref := synthetic.backbone(task)):
        _put(tree, "backbone.ref", ref)
        say(f"backbone {ref}: none was named, and the data are synthetic")


def _method(tree: Tree) -> Method:
    try:
        return Method.model_validate(tree)
    except ValidationError as error:
        raise explain(error, Method, "method") from error


def _experiment(tree: Tree) -> Experiment:
    if isinstance(tree.get("method"), dict):
        tree = {**tree, "method": _method(tree["method"])}
    try:
        return Experiment.model_validate(tree)
    except ValidationError as error:
        raise explain(error, Experiment) from error


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Tree:
    """Tables merge, key by key; anything else, arrays too, replaces."""
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _put(tree: Tree, key: str, value: Any) -> None:
    """Set `a.b.0.c`; a number steps into an array."""
    *path, last = key.split(".")
    place: Any = tree
    try:
        for step in path:
            place = place[int(step)] if isinstance(place, list) else place.setdefault(step, {})
        if isinstance(place, list):
            place[int(last)] = value
        else:
            place[last] = value
    except (ValueError, IndexError, TypeError, AttributeError) as error:
        raise CotuneError(Code.CONFIG, f"no such place '{key}'", fix="see `cotune show` for what there is") from error


def _place(tree: Tree, field: str) -> str:
    """Where the one part is that has this field."""
    method = _method(tree)
    rows = [("trainable", method.trainable), ("budget", method.budget), ("optimizer", method.optimizer)]
    rows += [(f"penalties.{i}", part) for i, part in enumerate(method.penalties)]
    rows += [("uplink", method.uplink), ("downlink", method.downlink), ("aggregator", method.aggregator)]
    rows += [("personalize", method.personalize)] if method.personalize else []
    found = [where for where, part in rows if field in type(part).model_fields]
    if len(found) == 1:
        return f"{found[0]}.{field}"
    known = {name for _, part in rows for name in type(part).model_fields}
    what = f"several parts have '{field}'" if found else f"no part has '{field}'"
    raise CotuneError(
        Code.CONFIG, what, got=", ".join(found) or None, fix="name its path" if found else nearest(field, known)
    )


def _value(text: str, where: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        if _BARE.fullmatch(text):
            return text
        if _SEVERAL.fullmatch(text):
            return [_value(one, where) for one in text.split(",")]
        raise CotuneError(Code.CONFIG, "cannot read a value", where=where, got=text, expected="TOML") from None


def _task(text: str, given: str | None, say: Say) -> Tree:
    """`KIND:REFERENCE`, or a reference alone: its task is the one given already, else what its columns say.

    A kind that needs no data, or knows its own, stands alone, or before its fields: `KIND?key=value&key=value`.
    """
    alone, mark, fields = text.partition("?")
    data = task_room.KINDS[alone].model_fields.get("data") if alone in task_room.KINDS else None
    if alone in task_room.KINDS and (data is None or not data.is_required()):
        pairs = [assigned(pair, "--task") for pair in fields.split("&")] if mark else []
        return {"kind": alone, **dict(pairs)}
    kind, separator, reference = text.partition(":")
    if separator and kind in task_room.KINDS:
        return {"kind": kind, "data": reference}
    if given is not None:
        return {"kind": given, "data": text}
    kind, columns = inferred(text)
    say(f"task {kind}, from columns {', '.join(columns)}")
    return {"kind": kind, "data": text}
