"""What the geometry of a round looks like when nobody learns: random updates of the same lengths, the same server."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from cotune.core.change import Contribution, Server, Tensors
from cotune.core.contracts import Aggregator, Corpus
from cotune.core.seeds import derive, torch_generator
from cotune.core.spec import Spec
from cotune.core.state import Theta
from cotune.diagnose.subspace import Subspace
from cotune.experiment import Experiment
from cotune.store import Run


@dataclass(frozen=True)
class Walk:
    """One round of a walk.

    Attributes:
        weights: client -> its share in the mean.
        length: of every client's update, all factors that train together.
        names: of the factors that train and go up.
    """

    weights: Mapping[str, float]
    length: float
    names: Sequence[str]


def simulated(run: Run) -> list[dict[str, float]]:
    """The numbers of diagnose/subspace.py, round by round, had the clients of a run moved at random.

    Start, layers, cohorts, weights and server are those of the run; each client's update points anywhere, and is as
    long as the clients' updates were in the mean in that round. No row of data and no loss has a part in it.
    """
    about = run.about
    experiment = Experiment.model_validate(about["experiment"])
    corpus = Corpus({}, (), about["head"], tuple(about["labels"]), {})
    plan = experiment.blueprint().sketch(corpus)
    factors = [entry for pair in plan.spec.pairs.values() for entry in pair]
    spec = Spec(tuple(factors))
    start = Theta({entry.name: plan.start[entry.name] for entry in factors})
    walks = [
        Walk(one.weights, _length(one.diagnostics), plan.method.trainable.scope(spec, one.round).up)
        for one in run.rounds
    ]
    return walk(start, spec, plan.method.aggregator, walks, experiment.seeds.seed)


def walk(start: Theta, spec: Spec, aggregator: Aggregator, walks: Sequence[Walk], seed: int) -> list[dict[str, float]]:
    """The numbers of each round of clients that move at random and a server that aggregates them as it always does.

    Args:
        start: the factors before the first round.
        spec: their table.
        aggregator: of the server.
        walks: one a round.
        seed: of the directions.
    """
    theta, found = start, []
    for number, one in enumerate(walks, start=1):
        fold = aggregator.init(theta, Server(number, len(one.weights), spec, tuple(one.names)))
        measured = Subspace(theta, spec, one.names)
        for client, weight in sorted(one.weights.items()):
            sent = moved(theta, one.names, one.length, derive(seed, "no data", number, client))
            fold = aggregator.add(fold, Contribution(client, weight, Tensors(sent), spec))
            measured.add(client, sent, weight, spec)
        commit = aggregator.finish(fold)
        found.append(measured.finish(commit.theta, commit.base).numbers)
        theta = commit.theta
    return found


def moved(theta: Theta, names: Sequence[str], length: float, seed: int) -> Theta:
    """The named tensors after a step of a length in a direction that is drawn uniformly, all of them together."""
    generator = torch_generator(seed)
    steps = {name: torch.randn(theta[name].shape, generator=generator, dtype=torch.float64) for name in names}
    size = math.sqrt(math.fsum(float(step.square().sum()) for step in steps.values()))
    return Theta({name: (theta[name].double() + length / size * step).float() for name, step in steps.items()})


def _length(diagnostics: Mapping[str, float]) -> float:
    """Σ w ‖Δ_k‖ / Σ w of the factors: the length of the mean update over how much of it was left."""
    return diagnostics["update_lora"] / diagnostics.get("agreement_lora", 1.0)
