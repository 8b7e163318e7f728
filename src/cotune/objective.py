"""How rows meet the model: the objective of a step, the order of batches, and scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from cotune.backbone.bind import Bound
from cotune.backbone.cut import Back, Front, Halfway, split
from cotune.core.contracts import Batch, Optimizer, Penalty, Task
from cotune.core.errors import Code, CotuneError
from cotune.core.seeds import Purpose, derive, torch_generator
from cotune.core.view import Budget, NamedTensors, View
from cotune.diagnose.flops import FlopMeter
from cotune.setup import Setup

SCORE_BATCH, SCORE_TOKENS = 32, 4096  # the most rows scored at once, and their tokens with padding
Examples = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class StepObjective:
    """Task losses of one step's rows plus Σ penalties, as a function of the trained tensors; in halves at `layer`."""

    bound: Bound
    task: Task
    penalties: tuple[Penalty, ...]
    view: View
    batches: tuple[Batch, ...]
    layer: int | None = None

    def __call__(self, tensors: NamedTensors) -> Tensor:
        """Losses (rows,), float32; the penalties are in each of them, so that their mean is the objective."""
        model = partial(self.bound, tensors)
        return self._penalised(torch.cat([self.task.losses(model, batch) for batch in self.batches]), tensors)

    def front(self, tensors: NamedTensors) -> list[Halfway]:
        """What the front half arrives at, a batch at a time."""
        half, _ = self._halves(tensors)
        found = []
        for batch in self.batches:
            try:
                self.task.losses(partial(_leave, half), batch)
            except _Left as left:
                found.append(left.halfway)
        return found

    def back(self, tensors: NamedTensors, halfway: Sequence[Halfway]) -> Tensor:
        """Losses (rows,) of the back half from there: `back(t, front(t))` is the objective at t, bit for bit.

        Raises:
            CotuneError: E_CONFLICT for a task that runs the model more than once a batch.
        """
        _, half = self._halves(tensors)
        losses = []
        for batch, arrived in zip(self.batches, halfway, strict=True):
            waiting = [arrived]
            losses.append(self.task.losses(partial(_go_on, half, waiting), batch))
        return self._penalised(torch.cat(losses), tensors)

    def _halves(self, tensors: NamedTensors) -> tuple[Front, Back]:
        if self.layer is None:
            raise CotuneError(Code.CONFLICT, "the optimizer says nowhere where to cut the model", where="objective")
        self.bound.place(tensors)
        return split(self.bound.model, self.layer)

    def _penalised(self, losses: Tensor, tensors: NamedTensors) -> Tensor:
        for penalty in self.penalties:
            losses = losses + penalty(tensors, self.view)
        return losses

    def microbatches(self) -> Iterator[StepObjective]:
        """One objective a batch."""
        return (replace(self, batches=(batch,)) for batch in self.batches)

    @property
    def rows(self) -> int:
        """How many rows the step has."""
        return sum(_rows(batch) for batch in self.batches)


class _Left(BaseException):  # not an Exception: no task may take it for a failure
    def __init__(self, halfway: Halfway) -> None:
        super().__init__()
        self.halfway = halfway


def _leave(half: Front, **inputs: Any) -> NoReturn:
    """In the place of the model: run the front half of it, and leave the task."""
    raise _Left(half(inputs))


def _go_on(half: Back, waiting: list[Halfway], **inputs: Any) -> Any:
    """In the place of the model: the back half of the one pass that waits."""
    if not waiting:
        raise CotuneError(Code.CONFLICT, "a task that runs the model more than once a batch is not cut")
    return half(waiting.pop(), inputs)


def step_flops(objective: StepObjective, optimizer: Optimizer, state: Any, meter: FlopMeter) -> int:
    """The FLOPs of the step on `objective`; the steps that are counted are thrown away.

    Rows do not mix in a model, so the first row of a batch is counted, and multiplied by the rows.
    """
    total, view = 0, replace(objective.view, own=False)
    for batch in objective.batches:
        shapes = tuple((name, *tensor.shape[1:]) for name, tensor in sorted(batch.items()))
        row = replace(objective, batches=({name: tensor[:1] for name, tensor in batch.items()},))
        key = (optimizer, objective.view.spec.digest, objective.view.scope.train, shapes)
        total += _rows(batch) * meter.count(key, partial(optimizer.step, view, state, row))
    return total


def _rows(batch: Batch) -> int:
    return next(iter(batch.values())).shape[0]


def batch_order(view: View, rows: int, budget: Budget) -> Iterator[tuple[tuple[int, ...], ...]]:
    """For each step, the row numbers of its batches: whole passes in a derived order, the last short batch kept."""

    def stream() -> Iterator[tuple[int, ...]]:
        if not rows:
            raise CotuneError(Code.COUNT, "no rows to train on", where=f"client {view.client}")
        epoch = 0
        while True:
            generator = torch_generator(derive(view.seed(Purpose.BATCHES), epoch))
            order = torch.randperm(rows, generator=generator).tolist()
            for start in range(0, rows, budget.batch):
                yield tuple(order[start : start + budget.batch])
            epoch += 1

    batches = stream()
    for _ in range(budget.count(rows)):
        yield tuple(next(batches) for _ in range(budget.accumulate))


def to_device(batch: Batch, device: str) -> Batch:
    """The batch where the model is."""
    return {name: tensor.to(device) for name, tensor in batch.items()}


def score(
    bound: Bound, tensors: NamedTensors, setup: Setup, examples: Examples, task: Task | None = None
) -> dict[str, Tensor]:
    """Metric -> (rows,) float32 in the order of `examples`, without gradients; by the setup's task, or by another.

    Rows of like length share a batch, which saves padding and changes no score.
    """
    task, backbone = task or setup.task, setup.backbone
    lengths = [len(example["input_ids"]) for example in examples]
    order = sorted(range(len(examples)), key=lengths.__getitem__)
    scores = {name: torch.zeros(len(examples)) for name in task.metrics}
    with torch.no_grad(), setup.frozen.over():
        while order:
            chosen = order[:SCORE_BATCH]
            while len(chosen) * lengths[chosen[-1]] > SCORE_TOKENS and len(chosen) > 1:
                chosen.pop()
            order = order[len(chosen) :]
            some = [examples[i] for i in chosen]
            batch = to_device(task.collate(some, backbone.tokenizer), backbone.device)
            for name, values in task.judged(partial(bound, tensors), batch, some, backbone.tokenizer).items():
                scores[name][chosen] = values.float().cpu()
    return scores


def mean_scores(scores: Mapping[str, Tensor]) -> tuple[float, ...]:
    """The mean of each metric, NaN where there are no rows."""
    return tuple(float(values.double().mean()) for values in scores.values())
