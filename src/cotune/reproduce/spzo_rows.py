"""The rows of `spzo-prompted`: what each is, which six settings it may choose from, and what a step of it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from cotune import resolve
from cotune.backbone import Backbone
from cotune.core.seeds import Seeds
from cotune.cuts import PEER
from cotune.experiment import Experiment
from cotune.federation import Evaluation, Federation
from cotune.method import Method
from cotune.optim import SplitZO
from cotune.reproduce.books import Books
from cotune.task import Iid

SPZO, LONGER, POOR, UNIFORM = "fedspzo", "fedspzo, longer", "fedspzo cut 1", "fedspzo one lr"
DECOMFL, FEDZO, MEZO, LORA = "decomfl", "fedzo", "mezo", "lora-fedavg"
LAYERS = 4
ZEROTH = (SPZO, DECOMFL, FEDZO, MEZO)


class Size(BaseModel):
    """How large the setting is.

    Attributes:
        data: of the passages, with a text and a book.
        rows: passages used, of train and test.
        test: that no client has.
        tokens: of a passage; the rest is cut off.
        clients: that rows are dealt to.
        cohort: of a round.
        steps: of a client in a round.
        batch: rows of a step.
        passes: of a batch through the whole model, of all clients in all rounds: every row is given as many rounds as
            that pays for, first-order rows as if a step were three passes.
        front: learning rates of the front half that the split rows choose from.
        back: of the back half, in every combination.
        rates: that the other zeroth-order rows choose from.
        first: that first-order rows choose from.
        batches: of the probe.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: str = "pkg:kjv"
    rows: int = 1200
    test: int = 240
    tokens: int = 32
    clients: int = 8
    cohort: int = 2
    steps: int = 5
    batch: int = 16
    passes: float = 300
    front: tuple[float, ...] = (1e-4, 5e-4)
    back: tuple[float, ...] = (2e-3, 5e-3, 1.2e-2)
    rates: tuple[float, ...] = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
    first: tuple[float, ...] = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2)
    batches: int = 50


@dataclass(frozen=True)
class Entrant:
    """A row of the race.

    Attributes:
        settings: what it chooses from, by name; one alone is not searched for.
        passes: of a client-step, through the whole model.
        times: how many times as many rounds it is given.
    """

    settings: Mapping[str, Method]
    passes: float
    times: int = 1

    def rounds(self, size: Size) -> int:
        """As many as its passes pay for."""
        return max(1, round(self.times * size.passes / (self.passes * size.steps * size.cohort)))


def ground(size: Size, method: Method, rounds: int, seed: int, **evaluation: Any) -> Experiment:
    """An experiment of the setting."""
    task = Books(
        data=size.data,
        limit=size.rows,
        test=size.test,
        max_tokens=size.tokens,
        partition=Iid(clients=size.clients),
    )
    return Experiment(
        name="spzo",
        method=method,
        task=task,
        backbone=Backbone(ref="builtin:tiny-llama"),
        federation=Federation(rounds=rounds, cohort=size.cohort),
        evaluation=Evaluation(**evaluation),
        seeds=Seeds(seed=seed),
    )


def recipe(name: str, size: Size, **overrides: Any) -> Method:
    """A recipe at this size, its learning rate falling to nothing over the rounds."""
    given = {"steps": size.steps, "batch": size.batch, "budget.schedule": "linear", **overrides}
    return resolve.recipe(name, **given)


def searched(size: Size) -> dict[str, Entrant]:
    """The rows that choose among six settings of their own."""
    return {
        SPZO: Entrant(_halves(size, 3), cost(3, 1, 2)),
        DECOMFL: Entrant(_rates("decomfl", size), PEER + 1),
        MEZO: Entrant(_rates("mezo", size), 2),
        LORA: Entrant({f"{lr:g}": recipe("lora-fedavg", size, lr=lr) for lr in size.first}, 3),
        POOR: Entrant(_halves(size, 1), cost(1, 1, 2)),
        UNIFORM: Entrant(_rates("fedspzo", size, cut=3), cost(3, 1, 2)),
    }


def settled(size: Size, chosen: Mapping[str, Method]) -> dict[str, Entrant]:
    """The rows that choose nothing: FedZO at DeComFL's rate, and FedSPZO with one option changed, at its own rates."""
    optimizer, rate = chosen[SPZO].optimizer, chosen[DECOMFL].optimizer.model_dump()["lr"]
    assert isinstance(optimizer, SplitZO)
    # Along signs, as all rows here: the sphere's estimate has no less variance, and takes longer to draw. Then FedZO is
    # DeComFL but for the clients' own directions and for what travels, which is why it needs no search of its own.
    own = {"": recipe("fedzo", size, lr=rate, direction="sign", largest=100.0)}

    def changed(passes: float, **options: Any) -> Entrant:
        other = optimizer.model_copy(update=options)
        return Entrant({"": chosen[SPZO].model_copy(update={"optimizer": other})}, passes)

    behind = 1 - 3 / LAYERS
    return {
        FEDZO: Entrant(own, PEER + 1),
        "cut 2": changed(cost(2, 1, 2), cut=2),
        "P_s = 1": changed(cost(3, 1, 1), again=1),
        "P_s = 4": changed(cost(3, 1, 4), again=4),
        "P_1 = 2": changed(cost(3, 2, 2), directions=2),
        "independent blocks": changed(2 + (1 - behind) + 8 * behind, independent_blocks=True),
        LONGER: Entrant({"": chosen[SPZO]}, cost(3, 1, 2), times=4),
    }


def cost(cut: int, directions: int, again: int) -> float:
    """P₁ (2 F₁ + 4 P_s F₂) in passes through the whole of a model whose layers cost alike."""
    return directions * (2 * cut / LAYERS + 4 * again * (1 - cut / LAYERS))


def _halves(size: Size, cut: int) -> dict[str, Method]:
    return {
        f"{lr:g} / {back:g}": recipe("fedspzo", size, lr=lr, lr_back=back, cut=cut)
        for lr in size.front
        for back in size.back
    }


def _rates(name: str, size: Size, **overrides: Any) -> dict[str, Method]:
    one = {"lr_back": None} if name == "fedspzo" else {}
    return {f"{lr:g}": recipe(name, size, lr=lr, **one, **overrides) for lr in size.rates}
