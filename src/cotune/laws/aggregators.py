"""The laws of aggregators."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cotune.core.change import Base, Change, Commit, Contribution, Origin, Server, Tensors
from cotune.core.contracts import Aggregator
from cotune.core.part import Capability
from cotune.core.seeds import derive
from cotune.core.spec import Scope
from cotune.core.state import Theta, digest
from cotune.core.view import NamedTensors
from cotune.laws.toy import CLIENTS, SPEC, close, layout_of, numbers, same
from cotune.noise import Pooled


def _aggregate(part: Aggregator, clients: Sequence[str], weights: Sequence[float], order: Sequence[int]) -> Commit:
    aux = {name: torch.zeros(shape) for name, (_, shape) in part.broadcast(SPEC).items()}
    server = Server(round=2, population=4, spec=SPEC, up=SPEC.shared, aux=aux)
    fold = part.init(Theta(numbers(20)), server)
    for i in order:
        change = _change(part, clients[i])
        fold = part.add(fold, Contribution(clients[i], weights[i], change, SPEC, numbers(derive(40, clients[i]))))
    return part.finish(fold)


def _change(part: Aggregator, client: str) -> Change:
    """What a client sends: tensors, or 100 ticks along each of two candidates where those are what it folds."""
    if Capability.POOL not in part.needs:
        return Tensors(Theta(numbers(derive(30, client))))
    scope = Scope(SPEC.names, SPEC.shared, SPEC.shared)
    which = torch.tensor([derive(30, client) % 16, derive(31, client) % 16], dtype=torch.int32)
    ticks = torch.full((2,), 100, dtype=torch.int32)
    return Pooled(Origin(Theta(numbers(20)), 1, 1.0, SPEC, scope), 2.0**-16, {"all": which}, {"all": ticks})


def effective(theta: NamedTensors, base: Base) -> dict[str, Tensor]:
    """What theta does to the model: scale · B A plus what is added to the backbone; other tensors as they are."""
    done = {}
    for module in ("one", "two"):
        product = SPEC[f"{module}.B"].scale * theta[f"{module}.B"].double() @ theta[f"{module}.A"].double()
        done[module] = product + (base.delta(module).double() if module in base.factors else 0.0)
    return {**done, "head": theta["head"].double()}


def keeps_layout(part: Aggregator) -> None:
    """It keeps theta's names, shapes and dtypes, and what it sends besides has the layout that it announces."""
    commit = _aggregate(part, CLIENTS, (1.0, 2.0, 3.0), (0, 1, 2))
    same("theta", layout_of(commit.theta), layout_of(numbers(0)))
    same("aux", layout_of(commit.aux), dict(part.broadcast(SPEC)))
    same("base", layout_of(commit.base.tensors()), dict(part.increment([SPEC] * 3)))
    for name, tensor in commit.theta.items():
        assert bool(torch.isfinite(tensor).all()), f"{name} is not finite"


def is_identity_for_one(part: Aggregator) -> None:
    """One client's model comes back: bit for bit where replies add up name by name, else to 1e-6."""
    commit, sent = _aggregate(part, CLIENTS, (7.0, 0.0, 0.0), (0,)), _change(part, CLIENTS[0]).dense()
    if Capability.FACTORS not in part.gives:
        same("theta", commit.theta.sha256(), Theta(sent).sha256())
    got, expected = effective(commit.theta, commit.base), effective(sent, Base())
    for name, tensor in expected.items():
        close(name, got[name], tensor, 1e-6)


def ignores_order(part: Aggregator) -> None:
    """The order in which replies are added does not matter."""
    weights = (1.0, 2.0, 3.0)
    first, second = (_aggregate(part, CLIENTS, weights, order) for order in ((0, 1, 2), (2, 0, 1)))
    ours, theirs = effective(first.theta, first.base), effective(second.theta, second.base)
    for name, tensor in ours.items():
        close(name, theirs[name], tensor, 1e-6)


def weighs_in_proportion(part: Aggregator) -> None:
    """Ten times every weight is the same round; another share is another round."""
    once, tenfold, other = (
        _aggregate(part, CLIENTS, weights, (0, 1, 2))
        for weights in ((1.0, 2.0, 3.0), (10.0, 20.0, 30.0), (3.0, 2.0, 1.0))
    )
    for name, tensor in effective(once.theta, once.base).items():
        close(name, effective(tenfold.theta, tenfold.base)[name], tensor, 1e-6)
    assert digest(effective(other.theta, other.base)) != digest(effective(once.theta, once.base)), (
        "weights do not count"
    )


def folds_name_by_name(part: Aggregator) -> None:
    """If it is elementwise, a round comes to theta alone, and each name by itself to the same bits as all at once."""
    if Capability.ELEMENTWISE not in part.gives:
        return
    weights = (1.0, 2.5, 3.0)
    whole = _aggregate(part, CLIENTS, weights, (0, 1, 2))
    same("what comes besides theta", (dict(whole.server), dict(whole.aux), bool(whole.base)), ({}, {}, False))
    for name in SPEC.shared:
        fold = part.init(Theta(numbers(20)).select([name]), Server(2, 4, SPEC, (name,)))
        for client, weight in zip(CLIENTS, weights, strict=True):
            change = Tensors(Theta(numbers(derive(30, client))).select([name]))
            fold = part.add(fold, Contribution(client, weight, change, SPEC))
        same(name, part.finish(fold).theta.sha256(), whole.theta.select([name]).sha256())


LAWS = (
    folds_name_by_name,
    keeps_layout,
    is_identity_for_one,
    ignores_order,
    weighs_in_proportion,
)
