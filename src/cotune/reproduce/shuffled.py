"""Whose rules: every client's own model on every client's rows, from what the clients of a local run keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cotune.backbone.bind import bind
from cotune.experiment import Experiment
from cotune.export.reopen import reopen
from cotune.export.whose import of_client
from cotune.objective import score
from cotune.store import Run


def shuffled(runs: Sequence[Run]) -> dict[str, Any]:
    """Client i's model on client j's held-back rows and on the test rows, one run a seed.

    Returns:
        `clients`; `held[i][j]` and `unseen[i]`, means over seeds; `own` and `others`, the means of the diagonal and of
        what is beside it; `by_seed`, both under each seed; `n` rows of a client.
    """
    found = [_matrix(run) for run in runs]
    held, unseen = np.mean([one[1] for one in found], axis=0), np.mean([one[2] for one in found], axis=0)
    return {
        "clients": found[0][0],
        "held": held.tolist(),
        "unseen": unseen.tolist(),
        **_apart(held),
        "by_seed": [_apart(one[1]) for one in found],
        "n": found[0][3],
    }


def _apart(held: Any) -> dict[str, float]:
    count = len(held)
    own = float(np.trace(held)) / count
    return {"own": own, "others": (float(np.sum(held)) - count * own) / (count * (count - 1))}


def _matrix(run: Run) -> tuple[list[str], Any, Any, int]:
    """Clients; (clients, clients) accuracies on held-back rows; (clients,) on test rows; rows of a client."""
    experiment = Experiment.model_validate(run.about["experiment"])
    setup, state = reopen(run, experiment.blueprint())
    corpus = experiment.task.load(experiment.seeds)
    names = sorted(corpus.clients)

    def encoded(rows: Any) -> Any:
        return experiment.task.encode(rows, setup.backbone.tokenizer, setup.backbone.limit).examples

    held, test = {name: encoded(corpus.clients[name].held) for name in names}, encoded(corpus.test)
    table, unseen = np.zeros((len(names), len(names))), np.zeros(len(names))
    for i, name in enumerate(names):
        tensors = of_client(setup, state, experiment.backbone, run, name).trained.tensors
        with bind(setup.backbone.model, tensors, setup.spec, state.base) as bound:
            for j, other in enumerate(names):
                table[i, j] = float(score(bound, tensors, setup, held[other])["accuracy"].double().mean())
            unseen[i] = float(score(bound, tensors, setup, test)["accuracy"].double().mean())
    return names, table, unseen, len(held[names[0]])
