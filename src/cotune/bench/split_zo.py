"""A step of FedSPZO against those of its peers, and the room that it takes beside a forward pass.

A step is one after the first of a round: it is written over the theta it began with, which nobody else holds. The first
makes a new one. Live bytes are those of tensors: of theta, or, beside factors, of what is frozen, and of all that is
made on the way. Not among them are frozen weights that theta stands in for, and what kernels take for themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Self

import torch
from pydantic import Field

from cotune import resolve
from cotune.backbone import Backbone
from cotune.backbone.bind import bind
from cotune.backbone.cut import ahead, blocks
from cotune.bench.benchmark import Benchmark
from cotune.bench.measure import Figure, compared, interleaved
from cotune.core.contracts import Optimizer, Trainable
from cotune.core.seeds import Seeds, derive, torch_generator
from cotune.core.spec import Scope
from cotune.core.view import View
from cotune.diagnose.flops import counting
from cotune.diagnose.live import LiveBytes
from cotune.objective import StepObjective
from cotune.optim import SplitZO
from cotune.task import Classify
from cotune.trainable import Full, LoRA

BYTES = 256  # ids of the byte tokenizer that are no special token lie below
SHARE = 0.2  # of a step's time that may go to perturbing and stepping, where a step has few tokens
WITHIN = 1.15  # how much more room a step may take than a forward pass
STILL = 2.0**-20  # the rate of steps that are timed: theta is written, and stays where it is
PAPER = {"factors": 3.9 / 1.75, "every weight": 4.9 / 1.75}  # GB of back-propagation over FedSPZO's, RoBERTa-large


class SplitStep(Benchmark):
    """FLOPs, seconds and live bytes of a step of `fedspzo`, against its peers, a forward pass and back-propagation.

    The model is a random roberta that classifies, and every weight of it trains; steps are those of the recipes.

    Attributes:
        layers: of the model.
        hidden: its width.
        heads: of its attention.
        vocab: rows of its embedding.
        length: tokens of a row.
        short: rows of a step in which perturbing weighs most.
        long: rows of one in which passes do.
        rank: of the factors that back-propagation trains.
        repeats: of every measurement of time.
        few: repeats of what takes long.
        seed: of weights, tokens and directions.
    """

    layers: int = Field(default=12, ge=2)
    hidden: int = Field(default=512, ge=1)
    heads: int = Field(default=8, ge=1)
    vocab: int = Field(default=8192, ge=263)
    length: int = Field(default=128, ge=1)
    short: int = Field(default=1, ge=1)
    long: int = Field(default=8, ge=1)
    rank: int = Field(default=16, ge=1)
    repeats: int = Field(default=5, ge=1)
    few: int = Field(default=1, ge=1)
    seed: int = Field(default=0, ge=0)

    @classmethod
    def quick(cls) -> Self:
        """A small model and short rows."""
        return cls(layers=2, hidden=32, heads=2, vocab=263, length=8, long=2, repeats=1)

    def figures(self) -> Iterator[Figure]:
        """For few rows a step and for many: FLOPs, seconds, the share of them that is no pass, and live bytes."""
        for rows in (self.short, self.long):
            said = f"{rows * self.length:,} tokens"
            with self._begun(Full(), rows) as (view, objective):
                yield from self._flops(said, view, objective)
                yield from self._times(said, view, objective, SHARE if rows == self.short else None)
                forward = _peak(view, objective, partial(_forward, view, objective))
                step = _peak(view, objective, partial(self._ours.step, view, None, objective))
                first = _peak(view, objective, partial(self._ours.step, replace(view, own=False), None, objective))
                rooms = {"every weight": _peak(view, objective, partial(_gradient, view, objective))}
            with self._begun(LoRA(rank=self.rank, targets=("query", "key", "value")), rows) as (view, objective):
                rooms["factors"] = _peak(view, objective, partial(_gradient, view, objective))
            name = f"a step of {said}, live · against"
            yield compared(f"{name} a forward pass", [step], [forward], "MiB", 1 / WITHIN)
            for what, ratio in PAPER.items():
                yield compared(f"{name} the gradient of {what} (paper: {ratio:.2f})", [step], [rooms[what]], "MiB")
            yield compared(f"the first step of {said}, live · against a forward pass", [first], [forward], "MiB")

    def _flops(self, said: str, view: View, objective: StepObjective) -> Iterator[Figure]:
        part, (front, back) = self._ours, _halves(view, objective)
        ours = _flops(partial(part.step, view, None, objective))
        formula = part.directions * (2 * _flops(front) + 4 * part.again * _flops(back))
        name = f"a step of {said}, FLOPs · against"
        yield compared(f"{name} P₁ (2 F₁ + 4 P_s F₂)", [ours], [formula], "GFLOP", 0.99)
        for peer in ("decomfl", "mezo"):  # fedzo has as many passes as decomfl
            rival = _flops(partial(_recipe(peer).step, _whole(view), None, objective))
            yield compared(f"{name} {peer}", [ours], [rival], "GFLOP")

    def _times(self, said: str, view: View, objective: StepObjective, share: float | None) -> Iterator[Figure]:
        part, (front, back) = self._ours, _halves(view, objective)

        def passes() -> None:
            for _ in range(2 * part.directions):
                front()
                for _ in range(2 * part.again):
                    back()

        def steps(peer: str) -> Callable[[], object]:
            return partial(_recipe(peer).step, _whole(view), None, objective)

        ours = partial(part.step, view, None, objective)
        jobs: dict[str, Callable[[], object]] = {"passes": passes, "ours": ours}
        times = interleaved({**jobs, "decomfl": steps("decomfl"), "mezo": steps("mezo")}, self.repeats)
        apart = interleaved({"ours": ours, "fedzo": steps("fedzo")}, self.few)
        name = f"a step of {said}, time · against"
        for peer in ("decomfl", "mezo"):
            yield compared(f"{name} {peer}", times["ours"], times[peer], "seconds")
        yield compared(f"{name} fedzo", apart["ours"], apart["fedzo"], "seconds")
        beside = [step - only for step, only in zip(times["ours"], times["passes"], strict=True)]
        name, goal = f"a step of {said}, time without its passes · against with them", share and 1 / share
        yield compared(name, beside, times["ours"], "seconds", goal)

    @contextmanager
    def _begun(self, trainable: Trainable, rows: int) -> Iterator[tuple[View, StepObjective]]:
        """A client before a step, its theta in two halves, and the objective."""
        sizes = f"layers={self.layers}&hidden={self.hidden}&heads={self.heads}&vocab={self.vocab}"
        loaded = Backbone(ref=f"random:roberta?{sizes}").load("classification", 2, self.seed)
        theta, personal, spec = trainable.attach(loaded, self.seed, "all")
        layer = self._ours.layer(ahead(loaded.model, {entry.name: entry.numel for entry in spec}))
        spec = spec.halved(blocks(loaded.model, layer))
        scope = Scope(spec.names, spec.shared, spec.shared)
        view = View(1, "1", theta, personal, {}, theta, {}, Seeds(seed=self.seed), spec, scope, rate=STILL, own=True)
        generator = torch_generator(derive(self.seed, "rows"))
        ids = torch.randint(BYTES, (rows, self.length), generator=generator)
        labels = torch.randint(2, (rows,), generator=generator)
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
        with bind(loaded.model, view.tensors, spec) as bound:
            yield view, StepObjective(bound, Classify(data="synth:sentiment"), (), view, (batch,), layer)

    @property
    def _ours(self) -> SplitZO:
        part = _recipe("fedspzo")
        assert isinstance(part, SplitZO)
        return part


def _recipe(name: str) -> Optimizer:
    return resolve.recipe(name).optimizer


def _whole(view: View) -> View:
    """The view with theta in one block, as peers take it."""
    return replace(view, spec=view.spec.halved(dict.fromkeys(view.spec.names, 0)))


def _halves(view: View, objective: StepObjective) -> tuple[Callable[[], object], Callable[[], object]]:
    """A pass through the front half and one through the back half, at theta."""
    with torch.no_grad():
        halfway = objective.front(view.trained)
    return (
        torch.no_grad()(partial(objective.front, view.trained)),
        torch.no_grad()(partial(objective.back, view.trained, halfway)),
    )


def _flops(job: Callable[[], object]) -> float:
    with counting() as counter:
        job()
    return int(counter.get_total_flops()) / 1e9


def _peak(view: View, objective: StepObjective, job: Callable[[], object]) -> float:
    """The most MiB that are alive at once: what the model computes with, and what the job makes."""
    held = {**dict(objective.bound.model.named_parameters()), **view.trained}
    live = LiveBytes(held.values())
    with live:
        job()
    return live.peak / 2**20


@torch.no_grad()
def _forward(view: View, objective: StepObjective) -> None:
    objective(view.trained)


def _gradient(view: View, objective: StepObjective) -> None:
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in view.trained.items()}
    torch.autograd.grad(objective(leaves).mean(), list(leaves.values()))
