"""Where zeroth-order descent should cut a model, from exact gradients and counted passes: measured before it is run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from cotune.backbone.bind import bind
from cotune.backbone.cut import Front, places
from cotune.backbone.layers import layers
from cotune.core.contracts import Batch
from cotune.core.view import Budget, View
from cotune.diagnose.energy import Cut, best
from cotune.diagnose.flops import counting
from cotune.objective import StepObjective, batch_order, to_device
from cotune.optim.gradient import gradient
from cotune.setup import Setup

BATCHES = 50
PEER = 5  # directions of the forward differences that DeComFL and FedZO take


@dataclass(frozen=True)
class Cuts:
    """Every cut of a model that has something to train on both sides.

    Attributes:
        cuts: by layer.
        batches: how many the energies are means over.
        frozen: layers in front of everything that trains; they run once a row, and are not counted.
    """

    cuts: tuple[Cut, ...]
    batches: int
    frozen: int

    @property
    def best(self) -> Cut | None:
        """The cut that saves most; None where the model cannot be cut."""
        return best(list(self.cuts)) if self.cuts else None

    def plain(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "batches": self.batches,
            "frozen_layers": self.frozen,
            "best": self.best.layer if self.best else None,
            "cuts": [
                {
                    "layer": cut.layer,
                    "front": {"numbers": cut.front_numbers, "flops": cut.front_flops, "energy": cut.front_energy},
                    "back": {"numbers": cut.back_numbers, "flops": cut.back_flops, "energy": cut.back_energy},
                    "energy_ratio": cut.energy_ratio,
                    "saving": cut.saving(1),
                    "again": cut.again,
                    "saving_there": cut.saving(cut.again),
                    "saving_over_forward": cut.saving(cut.again, PEER),
                }
                for cut in self.cuts
            ],
        }


def measure(setup: Setup, batches: int = BATCHES) -> Cuts:
    """‖∇‖² of each half at theta's start, the mean over batches that clients would train on, and the cost of a pass.

    Clients take turns, each with the batches of its first round. The gradient is exact, by back-propagation.

    Raises:
        CotuneError: what a step of a first-order method raises, E_MODEL for a model whose layers cannot be told.
    """
    model, first = setup.backbone.model, setup.frozen.layers
    energies, seen = dict.fromkeys(setup.spec.names, 0.0), 0
    tensors = {name: tensor.to(setup.backbone.device) for name, tensor in {**setup.start, **setup.personal}.items()}
    some: Batch | None = None
    with bind(model, tensors, setup.spec) as bound, setup.frozen.over():
        for view, batch in _batches(setup, batches):
            objective = StepObjective(bound, setup.task, setup.method.penalties, view, (batch,))
            for name, slope in gradient(view, objective)[0].items():
                energies[name] += float(slope.double().square().sum())
            some, seen = some or batch, seen + 1
    if some is None:
        return Cuts((), 0, first)
    passes = _passes(setup, {name: tensor[:1] for name, tensor in some.items()})
    found = list[Cut]()
    known = places(model)
    for layer in range(first + 1, len(passes) - 1):
        numbers, energy = {0: 0, 1: 0}, {0: 0.0, 1: 0.0}
        for entry in setup.spec:
            half = int(known[entry.name] >= layer)
            numbers[half] += entry.numel
            energy[half] += energies[entry.name] / seen
        if all(numbers.values()):
            front, back = passes[layer] - passes[first], passes[-1] - passes[layer]
            found.append(Cut(layer, numbers[0], numbers[1], front, back, energy[0], energy[1]))
    return Cuts(tuple(found), seen, first)


def _batches(setup: Setup, count: int) -> Iterator[tuple[View, Batch]]:
    """The first batches of the clients in turn, each with its client's view of round 1."""
    task, words, streams = setup.task, setup.backbone.tokenizer, []
    budget = Budget(steps=count, batch=setup.method.budget.batch)
    for info in setup.clients:
        if not info.rows:
            continue
        scope = setup.method.scope(setup.spec, 1)
        view = View(1, info.id, setup.start, setup.personal, {}, setup.start, {}, setup.seeds, setup.spec, scope)
        view = view.to(setup.backbone.device)
        examples = setup.encoded(info.id)[0].examples
        streams.append((view, examples, batch_order(view, len(examples), budget)))
    for turn in range(count if streams else 0):
        view, examples, order = streams[turn % len(streams)]
        yield view, to_device(task.collate([examples[i] for i in next(order)[0]], words), setup.backbone.device)


def _passes(setup: Setup, row: Batch) -> list[int]:
    """FLOPs of a row's pass up to each layer, and of the whole; every layer runs."""
    model, found = setup.backbone.model, [0]

    def leave(half: Front, **inputs: object) -> object:
        with counting() as counter:
            half(inputs)
        raise _Counted(int(counter.get_total_flops()))

    for layer in range(1, len(layers(model))):
        with torch.no_grad():
            try:
                setup.task.losses(partial(leave, Front(model, layer)), row)
            except _Counted as counted:
                found.append(counted.flops)
    with torch.no_grad(), counting() as whole:
        setup.task.losses(model, row)
    return [*found, int(whole.get_total_flops())]


class _Counted(BaseException):  # not an Exception: no task may take it for a failure
    def __init__(self, flops: int) -> None:
        super().__init__()
        self.flops = flops
