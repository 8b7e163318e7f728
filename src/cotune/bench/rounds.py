"""What a round spends on saying where its products lie to each other, beside all else that it does."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch

from cotune import resolve
from cotune.backbone import Backbone
from cotune.checkpoint import FileJournal
from cotune.core.change import Base
from cotune.core.seeds import derive, torch_generator
from cotune.core.state import Theta
from cotune.core.view import Budget
from cotune.diagnose.subspace import Subspace
from cotune.engine import InlineEngine
from cotune.experiment import Experiment
from cotune.federation import Evaluation, Federation
from cotune.round import server_round
from cotune.server import Desk
from cotune.task import Classify

MINILM = "random:bert?layers=6&hidden=384&heads=12&intermediate=1536"  # the shapes of MiniLM-L6, random weights
STEPS, ROWS, TOKENS = 4, 8, 32  # of a client's round: as little as in any paper, so that all else weighs most


def smallest_round(backbone: str, clients: int, repeats: int, seed: int) -> tuple[list[float], list[float]]:
    """Seconds of process time of the diagnostics, and of whole rounds that have them, of `subspace-reg`.

    Args:
        backbone: a reference.
        clients: of every round, each with four steps of eight rows of synthetic text.
        repeats: rounds that are timed, after one that is not.
        seed: of the experiment.
    """
    method = resolve.recipe("subspace-reg", budget=Budget(steps=STEPS, batch=ROWS))
    data = f"synth:sentiment?clients={clients}&rows={2 * ROWS * STEPS * clients}"
    experiment = Experiment(
        method=method,
        task=Classify(data=data, max_tokens=TOKENS),
        backbone=Backbone(ref=backbone),
        federation=Federation(rounds=repeats + 1),
        evaluation=Evaluation(which="none"),
    )
    setup = experiment.blueprint().build()
    ours, rounds = [], []
    with tempfile.TemporaryDirectory() as place:
        engine = InlineEngine(setup, Path(place) / "clients")
        desk = Desk(setup, {info.id: info for info in engine.clients()}, FileJournal(Path(place) / "journal"))
        state, theta = desk.opening(), setup.start
        for _ in range(repeats + 1):
            theta, start = state.theta, time.process_time()
            state = server_round(desk, state, engine).state
            rounds.append(time.process_time() - start)
            replies = [_near(state.theta, derive(seed, "reply", client)) for client in range(clients)]
            start = time.process_time()
            fold = Subspace(theta, setup.spec, setup.spec.shared)
            for client, reply in enumerate(replies):
                fold.add(f"{client:05d}", reply, 1.0, setup.spec)
            fold.finish(state.theta, Base())
            ours.append(time.process_time() - start)
    return ours[1:], rounds[1:]


def _near(theta: Theta, seed: int) -> Theta:
    """A client's theta: what it is does not change how long it takes to look at it."""
    g = torch_generator(seed)
    return Theta({name: tensor + 1e-3 * torch.randn(tensor.shape, generator=g) for name, tensor in theta.items()})
