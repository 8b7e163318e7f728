"""The folder of a paper: its experiments, its numbers, and what the published setting will need, before it starts."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from cotune import resolve
from cotune.backbone import Backbone
from cotune.core.errors import Code, CotuneError
from cotune.core.part import Capability
from cotune.core.reference import parse
from cotune.diagnose import mean_interval
from cotune.estimate import Estimate, estimate, measured_flops
from cotune.experiment import Experiment
from cotune.method import Method
from cotune.report.html import duration, scaled

PAPERS = "papers"


def folder(source: str) -> Path:
    """Where the files of a paper are: in the installed package, or in the repository around it.

    Raises:
        CotuneError: E_CONFIG when they are in neither.
    """
    package = Path(str(resources.files("cotune")))
    for place in (package / PAPERS / source, package.parents[1] / PAPERS / source):
        if place.is_dir():
            return place
    raise CotuneError(Code.CONFIG, "the files of the paper are not installed", where=f"{PAPERS}/{source}")


def expected(source: str) -> dict[str, Any]:
    """The paper's numbers, and the sizes of its models."""
    return tomllib.loads((folder(source) / "expected.toml").read_text("utf-8"))


def experiment(source: str, file: str) -> Experiment:
    """One experiment of the published setting."""
    return resolve.load(str(folder(source) / file))


def shapes(experiment: Experiment, numbers: Mapping[str, Any]) -> Experiment:
    """The experiment on a model of the published sizes without weights, of which nothing is fetched."""
    known = numbers["models"][experiment.backbone.ref]["shapes"]
    return experiment.model_copy(update={"backbone": experiment.backbone.model_copy(update={"ref": known})})


def needed(experiment: Experiment, numbers: Mapping[str, Any], texts: int = 1) -> Iterator[str]:
    """Lines of memory and time, from shapes alone; the time is that of the matrix products at this machine's speed.

    Args:
        experiment: of the published setting.
        numbers: of the paper, with the sizes of its models.
        texts: that the model reads for each row; of multiple choice, as many as there are options.
    """
    batch, tokens = texts * experiment.method.budget.batch, _longest(experiment)
    backbone = shapes(experiment, numbers).backbone
    cost = deep(experiment.method, backbone, experiment.task.head, (batch, tokens))
    speed = measured_flops(backbone.threads, backbone.device)
    yield (
        f"{experiment.name}: {experiment.backbone.ref}, {scaled(cost.whole.parameters)} parameters, "
        f"{scaled(cost.whole.trained)} numbers train"
    )
    if Capability.REPLAY in experiment.method.optimizer.gives:
        theta = scaled(cost.whole.weight_bytes + 4 * cost.whole.trained, "B")
        yield f"  memory: {theta} for weights and theta, and what a pass without gradients holds"
        yield (
            f"  time: at least {duration(cost.whole.forward_flops / speed)} a pass, of which a step takes several, at "
            f"the {scaled(speed, 'FLOP/s')} of one thread here; data and model come from the hub"
        )
        return
    yield (
        f"  memory: {scaled(cost.recomputed_bytes, 'B')} for a batch of {batch} × {tokens:,} tokens, layers run again "
        f"in the backward pass ({scaled(cost.whole.training_bytes, 'B')} if they were not); weights "
        f"{scaled(cost.whole.weight_bytes, 'B')} of it"
    )
    each = cost.whole.step_flops / speed
    steps = _steps(experiment)
    whole = f", so {duration(each * steps)} for {steps:,} client-steps" if steps else ""
    yield (
        f"  time: at least {duration(each)} a step at the {scaled(speed, 'FLOP/s')} of one thread here{whole}; "
        "data and model come from the hub"
    )


@dataclass(frozen=True)
class Deep:
    """The cost of a batch on a model of many equal layers.

    Attributes:
        whole: all of it.
        recomputed_bytes: of training where layers keep their inputs alone, and one at a time runs again.
    """

    whole: Estimate
    recomputed_bytes: int


def deep(method: Method, backbone: Backbone, head: str, shape: tuple[int, int]) -> Deep:
    """cost(1) + (layers − 1) · (cost(2) − cost(1)), which is exact and takes seconds.

    Args:
        method: what trains.
        backbone: a `random:` reference with its `layers`.
        head: of the task.
        shape: (rows, tokens).
    """
    options = dict(parse(backbone.ref).options)
    layers = int(options["layers"])
    one, two = (
        estimate(method, backbone.model_copy(update={"ref": _with_layers(backbone.ref, count)}), head, 0, shape)
        for count in (1, 2)
    )
    names = [field.name for field in fields(Estimate)]
    each = {name: getattr(two, name) - getattr(one, name) for name in names}
    whole = Estimate(**{name: getattr(one, name) + (layers - 1) * each[name] for name in names})
    rows, tokens = shape
    inputs = (layers - 1) * rows * tokens * int(options["hidden"]) * getattr(torch, backbone.dtype).itemsize
    return Deep(whole, whole.training_bytes - (layers - 1) * each["kept_bytes"] + inputs)


def _with_layers(ref: str, count: int) -> str:
    return re.sub(r"(?<=[?&]layers=)\d+", str(count), ref)


def _longest(experiment: Experiment) -> int:
    """Tokens of the longest training row."""
    task: Any = experiment.task
    return int(max(task.lengths)) if hasattr(task, "lengths") else int(task.max_tokens)


def _steps(experiment: Experiment) -> int | None:
    """Of all clients in all rounds, where the task says how many rows there are before it is read."""
    task: Any = experiment.task
    if not hasattr(task, "rows"):
        return None
    return experiment.federation.rounds * len(task.clients) * experiment.method.budget.count(int(task.rows))


def wilson(percent: float, n: int) -> tuple[float, float]:
    """The ends, in per cent, of the 95 % interval of a share of `n` questions that was printed in per cent."""
    right = round(percent / 100 * n)
    _, low, high = mean_interval([1.0] * right + [0.0] * (n - right))
    return 100 * low, 100 * high
