"""A project's experiment: its file, and what Flower's run config says on top, in our words or in FlowerTune's.

A key of the run config is a place in the experiment (`federation.rounds`), a name that FlowerTune's projects have
(`num-server-rounds`), or one of the few that say where and how to run. Nothing else is taken: a key that is none of
these is an error that names the nearest.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cotune.core.errors import Code, CotuneError, nearest
from cotune.core.events import Say, silent

if TYPE_CHECKING:
    from cotune.experiment import Experiment

Value = str | int | float | bool
Config = Mapping[str, Value]
Assigned = Mapping[str, Value]

# What says where and how to run, and is no part of the experiment.
OURS = ("experiment", "nodes", "wait", "out", "data", "set")
SECTIONS = ("name", "method", "task", "backbone", "federation", "evaluation", "seeds")

_ARGUMENTS = "train.training-arguments"
# FlowerTune's names -> ours. Values are taken as they are.
ALIASES: Mapping[str, str] = {
    "num-server-rounds": "federation.rounds",
    "model.name": "backbone.ref",
    "model.gradient-checkpointing": "backbone.gradient_checkpointing",
    f"{_ARGUMENTS}.gradient-checkpointing": "backbone.gradient_checkpointing",
    "model.lora.peft-lora-r": "method.trainable.rank",
    "model.lora.peft-lora-alpha": "method.trainable.alpha",
    "train.seq-length": "task.max_tokens",
    "train.learning-rate-max": "method.optimizer.lr",
    f"{_ARGUMENTS}.learning-rate": "method.optimizer.lr",
    f"{_ARGUMENTS}.weight-decay": "method.optimizer.weight_decay",
    f"{_ARGUMENTS}.per-device-train-batch-size": "method.budget.batch",
    f"{_ARGUMENTS}.gradient-accumulation-steps": "method.budget.accumulate",
    f"{_ARGUMENTS}.max-grad-norm": "method.budget.clip",
    f"{_ARGUMENTS}.lr-scheduler-type": "method.budget.schedule",
    "dataset.name": "task.data",
    "static.dataset.name": "task.data",
}
# What has no effect here, and why: every round is kept and the adapter of the last is exported, logs are Flower's.
WITHOUT_EFFECT: Mapping[str, str] = {
    "train.save-every-round": "every round is kept, and the last one's adapter exported",
    "train.learning-rate-min": "a cosine schedule ends near 0",
    f"{_ARGUMENTS}.output-dir": "runs lie in `out`",
    f"{_ARGUMENTS}.logging-steps": "rounds.jsonl has a line a round",
    f"{_ARGUMENTS}.save-steps": "a round is kept whole or not at all",
    f"{_ARGUMENTS}.save-total-limit": "the last two checkpoints are kept",
}


def experiment_of(folder: Path, config: Config, say: Say = silent) -> Experiment:
    """The experiment of the project in a folder, with a run config on top.

    Args:
        folder: of the project, here or as Flower installed it.
        config: the run config, its keys dotted.
        say: is told which task was inferred from which columns.

    Raises:
        CotuneError: E_CONFIG for a key or value that is none, and whatever reading an experiment raises.
    """
    from cotune import resolve

    return resolve.load(str(file_of(folder, config)), sets=assignments(config), say=say)


def file_of(folder: Path, config: Config) -> Path:
    """Where the experiment's file is; it is in the project, whoever sent the run config.

    Raises:
        CotuneError: E_CONFIG where it is somewhere else, or not there.
    """
    name = str(config.get("experiment", "experiment.toml"))
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise CotuneError(Code.CONFIG, "the experiment is outside of its project", where="experiment", got=name)
    if not path.is_file():
        raise CotuneError(
            Code.CONFIG, "the project has no such experiment", where="experiment", got=name, fix="`cotune flower init`"
        )
    return path


def config_of(folder: Path) -> dict[str, Value]:
    """The run config that a project's pyproject.toml has, its keys dotted as Flower hands them to an app.

    Raises:
        CotuneError: E_CONFIG where there is no project, or its file cannot be read.
    """
    path = folder / "pyproject.toml"
    try:
        table = tomllib.loads(path.read_text("utf-8"))["tool"]["flwr"]["app"]
    except OSError as error:
        what, fix = "no project here", "`cotune flower init DIR` makes one"
        raise CotuneError(Code.CONFIG, what, where=str(path), got=error.strerror, fix=fix) from error
    except (ValueError, KeyError, TypeError) as error:
        what, expected = "not a Flower project", "[tool.flwr.app]"
        raise CotuneError(Code.CONFIG, what, where=str(path), got=type(error).__name__, expected=expected) from error
    return dict(_flat(table.get("config", {})))


def assignments(config: Config) -> list[str]:
    """The run config as assignments to the experiment, `a.b=c`, in the order of the config; those of `set` last.

    Raises:
        CotuneError: E_CONFIG for an unknown key, with the nearest, and for a value that has no counterpart here.
    """
    found: dict[str, str] = {}
    for key, value in config.items():
        if key in OURS or key in WITHOUT_EFFECT or (key.startswith(_ARGUMENTS) and value == ""):
            continue  # FlowerTune leaves an empty text where its code fills something in
        for place, given in _translated(key, value, config).items():
            found[place] = _written(given)
    lines = [f"{place}={value}" for place, value in found.items()]
    return lines + [one.strip() for one in str(config.get("set", "")).split(";") if one.strip()]


def _translated(key: str, value: Value, config: Config) -> Assigned:
    """What one key of the run config assigns."""
    if key == "name" or (key.partition(".")[0] in SECTIONS and "." in key):
        return {key: value}
    if key in ALIASES:
        return {ALIASES[key]: value}
    if key in _COMPUTED:
        return _COMPUTED[key](key, value, config)
    known = [*OURS, *ALIASES, *_COMPUTED, *WITHOUT_EFFECT, *(f"{section}." for section in SECTIONS)]
    raise CotuneError(Code.CONFIG, f"no such setting '{key}'", where="run config", fix=nearest(key, known))


def _quantization(key: str, value: Value, config: Config) -> Assigned:
    """4 and 8 bits; 0 for none."""
    del config
    names: Mapping[Value, str] = {4: "nf4", 8: "int8"}
    if value == 0:
        return {}
    if isinstance(value, bool) or value not in names:
        raise CotuneError(Code.CONFIG, "no such quantization", where=key, got=value, expected="0, 4 or 8")
    return {"backbone.quantization": names[value]}


def _cohort(key: str, value: Value, config: Config) -> Assigned:
    """A share of the nodes, rounded down, at least two of them: as FedAvg counts; all of them are no cohort."""
    share, nodes = _number(key, value), int(_number("nodes", config.get("nodes", 0)))
    if not 0 < share <= 1:
        raise CotuneError(Code.CONFIG, "not a share of the nodes", where=key, got=value, expected="above 0, at most 1")
    if share == 1:
        return {}
    if nodes < 1:
        raise CotuneError(Code.CONFIG, "a share of how many nodes?", where=key, got=value, fix="say `nodes = N` too")
    return {"federation.cohort": min(max(int(share * nodes), 2), nodes)}


def _which(key: str, value: Value, config: Config) -> Assigned:
    """0: no rows of clients are scored; more: those of a round's clients; 1: those of all."""
    del config
    share = _number(key, value)
    return {"evaluation.which": "global" if share == 0 else "all" if share == 1 else "cohort"}


def _steps(key: str, value: Value, config: Config) -> Assigned:
    """Steps a round; -1 leaves it to the epochs."""
    del config
    return {"method.budget.steps": value} if _number(key, value) > 0 else {}


def _epochs(key: str, value: Value, config: Config) -> Assigned:
    """Passes a round, where no number of steps is given: as for transformers' Trainer."""
    if _number(key, config.get(f"{_ARGUMENTS}.max-steps", 0) or 0) > 0:
        return {}
    return {"method.budget.epochs": int(_number(key, value))}


def _dora(key: str, value: Value, config: Config) -> Assigned:
    """Refused where it is wanted: its magnitudes do not add up."""
    del config
    return {"method.trainable.use_dora": True} if value else {}


_COMPUTED: Mapping[str, Callable[[str, Value, Config], Assigned]] = {
    "model.quantization": _quantization,
    "model.lora.peft-use-dora": _dora,
    "strategy.fraction-train": _cohort,
    "strategy.fraction-fit": _cohort,
    "strategy.fraction-evaluate": _which,
    f"{_ARGUMENTS}.max-steps": _steps,
    f"{_ARGUMENTS}.num-train-epochs": _epochs,
}


def _number(key: str, value: Value) -> float:
    try:
        return float(value)
    except ValueError as error:
        raise CotuneError(Code.CONFIG, "not a number", where=key, got=value) from error


def _written(value: Value) -> str:
    """As `--set` reads it: a text may be a list, `q_proj,v_proj`, which Flower's run config has no other form for."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        bare = value.strip() and not any(c.isspace() for c in value)
        return value if bare or value.startswith(("[", "{", '"', "'")) else json.dumps(value, ensure_ascii=False)
    return repr(value)


def _flat(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, Value]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, Value):
            yield f"{prefix}{key}", value
        else:
            raise CotuneError(
                Code.CONFIG, "Flower's run config has no arrays", where=f"{prefix}{key}", fix="write a,b as a text"
            )
