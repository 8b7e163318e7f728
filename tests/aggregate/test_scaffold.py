"""SCAFFOLD's two halves together, against Algorithm 1 option II in dense float64, with partial participation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotune.aggregate import Mean, MeanControl
from cotune.core.change import Contribution, Server, Tensors
from cotune.core.seeds import Seeds
from cotune.core.spec import Entry, Role, Scope, Spec
from cotune.core.state import Personal, Private, Theta
from cotune.core.view import View
from cotune.optim import SGD, Scaffold
from cotune.wire import TensorsUplink

Array = NDArray[np.float64]
CLIENTS = ("ada", "bo", "cy", "dan")
COHORTS = (("ada", "bo"), ("bo", "cy", "dan"), ("ada", "dan"))
WEIGHTS = dict(zip(CLIENTS, (5.0, 1.0, 2.0, 8.0), strict=True))
SPEC = Spec((Entry("w", (2, 2), Role.FULL, "m"), Entry("b", (1,), Role.FULL, "m")))
SCOPE = Scope(SPEC.names, SPEC.names, SPEC.names)
STEPS, LR, RATES = 4, 0.1, (1.0, 0.75, 0.5)

_draw = np.random.Generator(np.random.Philox(3))
_ROOTS = {client: _draw.normal(size=(5, 5)) for client in CLIENTS}
CURVES = {client: root @ root.T / 5 + np.eye(5) / 2 for client, root in _ROOTS.items()}
CENTRES = {client: _draw.normal(size=5) * 2 for client in CLIENTS}
START = _draw.normal(size=5)


def flat(named: Mapping[str, Tensor]) -> Array:
    return np.concatenate([named[name].double().numpy().reshape(-1) for name in ("w", "b")])


def named(values: Array) -> dict[str, Tensor]:
    numbers = torch.tensor(values).float()
    return {"w": numbers[:4].reshape(2, 2), "b": numbers[4:]}


def algorithm(weights: Mapping[str, float]) -> Iterator[tuple[Array, Array, dict[str, Array]]]:
    """Algorithm 1, option II, global step 1: x, c and every c_i after each round."""
    x, c = START.copy(), np.zeros(5)
    own = {client: np.zeros(5) for client in CLIENTS}
    for cohort, rate in zip(COHORTS, RATES, strict=True):
        arrived, differences = {}, {}
        for client in cohort:
            y, lr = x.copy(), LR * rate
            for _ in range(STEPS):
                slope = CURVES[client] @ (y - CENTRES[client])
                y = y - lr * (slope - own[client] + c)
            fresh = own[client] - c + (x - y) / (STEPS * lr)
            arrived[client], differences[client], own[client] = y, fresh - own[client], fresh
        x = np.average([arrived[k] for k in cohort], axis=0, weights=[weights[k] for k in cohort])
        c = c + len(cohort) / len(CLIENTS) * np.mean([differences[k] for k in cohort], axis=0)
        yield x, c, own


@dataclass(frozen=True)
class Bowl:
    """½ (θ − centre)ᵀ curve (θ − centre), the same for every row."""

    client: str
    rows: int = 2

    def __call__(self, tensors: Mapping[str, Tensor]) -> Tensor:
        at = torch.cat([tensors["w"].reshape(-1), tensors["b"]]) - torch.tensor(CENTRES[self.client]).float()
        return (at @ torch.tensor(CURVES[self.client]).float() @ at / 2).expand(self.rows)

    def microbatches(self) -> Iterator[Bowl]:
        yield replace(self, rows=1)
        yield replace(self, rows=1)


def view(client: str, round_: int, theta: Theta, private: Mapping[str, Private], aux: Mapping[str, Tensor]) -> View:
    rate = RATES[round_ - 1]
    return View(round_, client, theta, Personal(), private, theta, aux, Seeds(), SPEC, SCOPE, rate=rate)


def play(
    optimizer: Scaffold | SGD, aggregator: MeanControl | Mean, weights: Mapping[str, float]
) -> Iterator[tuple[Theta, Mapping[str, Tensor], Mapping[str, Mapping[str, Private]]]]:
    """The same rounds through the parts."""
    theta: Theta = Theta(named(START))
    aux: Mapping[str, Tensor] = {n: torch.zeros(shape) for n, (_, shape) in aggregator.broadcast(SPEC).items()}
    private: dict[str, Mapping[str, Private]] = {client: {} for client in CLIENTS}
    for round_, cohort in enumerate(COHORTS, start=1):
        fold = aggregator.init(theta, Server(round_, len(CLIENTS), SPEC, SCOPE.up, {}, aux))
        for client in cohort:
            here, objective = view(client, round_, theta, private[client], aux), Bowl(client)
            here = optimizer.begin(here, objective)
            for _ in range(STEPS):
                here = optimizer.step(here, None, objective).view
            here = optimizer.end(here)
            private[client] = here.private
            change = Tensors(Theta(TensorsUplink().pack(here, ())["theta"]))
            fold = aggregator.add(fold, Contribution(client, weights[client], change, SPEC, here.outbox))  # type: ignore[arg-type]
        commit = aggregator.finish(fold)  # type: ignore[arg-type]
        theta, aux = commit.theta, commit.aux
        yield theta, aux, dict(private)


@pytest.mark.parametrize("weights", [dict.fromkeys(CLIENTS, 1.0), WEIGHTS])
def test_theta_and_every_control_variate_are_those_of_the_algorithm(weights: Mapping[str, float]) -> None:
    played = list(play(Scaffold(lr=LR), MeanControl(), weights))
    assert len(played) == len(COHORTS)
    for (theta, aux, private), (x, c, own) in zip(played, algorithm(weights), strict=True):
        np.testing.assert_allclose(flat(theta), x, rtol=2e-5, atol=2e-6)
        np.testing.assert_allclose(flat(aux), c, rtol=2e-4, atol=2e-5)
        for client in CLIENTS:
            mine = private[client].get("scaffold")
            got = np.zeros(5) if mine is None else flat(mine)
            np.testing.assert_allclose(got, own[client], rtol=2e-4, atol=2e-5)


def test_the_control_plain_descent_and_mean_go_elsewhere() -> None:
    weights = dict.fromkeys(CLIENTS, 1.0)
    plain = [flat(theta) for theta, _, _ in play(SGD(lr=LR), Mean(), weights)]
    expected = [x for x, _, _ in algorithm(weights)]
    np.testing.assert_allclose(plain[0], expected[0], rtol=2e-5, atol=2e-6)  # all control variates are zero at first
    assert np.linalg.norm(plain[1] - expected[1]) > 1e-2


def test_control_variates_are_counted_by_clients_and_not_by_rows() -> None:
    """Line 17 of the algorithm: c takes the mean over clients, whatever the weights of theta."""
    alike, by_rows = (list(play(Scaffold(lr=LR), MeanControl(), w)) for w in (dict.fromkeys(CLIENTS, 1.0), WEIGHTS))
    np.testing.assert_array_equal(flat(alike[0][1]), flat(by_rows[0][1]))
    assert np.linalg.norm(flat(alike[0][0]) - flat(by_rows[0][0])) > 1e-2


def begun(client: str = "ada") -> View:
    aux = named(np.arange(5.0))
    start = view(client, 1, Theta(named(START)), {}, aux)
    return Scaffold(lr=LR).begin(start, Bowl(client))


def test_a_client_without_a_control_variate_starts_at_zero_and_one_with_it_keeps_it() -> None:
    here = begun()
    assert not any(bool(tensor.any()) for tensor in here.private["scaffold"].values())
    kept = here.keep("scaffold", Private(named(np.ones(5))))
    assert flat(Scaffold(lr=LR).begin(kept, Bowl("ada")).private["scaffold"]).tolist() == [1.0] * 5


def test_what_goes_up_is_the_difference_and_has_the_layout_announced() -> None:
    part, here = Scaffold(lr=LR), begun()
    after = part.end(part.step(here, None, Bowl("ada")).view)
    fresh, old = flat(after.private["scaffold"]), flat(here.private["scaffold"])
    np.testing.assert_allclose(flat(after.outbox), fresh - old, rtol=1e-6)
    announced = {name: ("float32", tuple(tensor.shape)) for name, tensor in after.outbox.items()}
    assert announced == part.outbox(SPEC, SCOPE) == MeanControl().broadcast(SPEC)


def test_a_personal_tensor_takes_a_plain_step() -> None:
    part, here = Scaffold(lr=LR), begun()
    theta = here.theta.select(("w",))
    mixed = replace(
        here,
        theta=theta,
        anchor=theta,
        personal=Personal({"b": here.theta["b"]}),
        scope=Scope(("w", "b"), ("w",), ("w",)),
    )
    mixed = part.begin(replace(mixed, private={}), Bowl("ada"))
    assert list(mixed.private["scaffold"]) == ["w"]
    step = part.step(mixed, None, Bowl("ada"))
    assert step.gradient is not None
    torch.testing.assert_close(step.view.personal["b"], here.theta["b"] - LR * step.gradient["b"])
    corrected = step.gradient["w"] + here.aux["w"]
    torch.testing.assert_close(step.view.theta["w"], here.theta["w"] - LR * corrected)
    assert list(part.end(step.view).outbox) == ["w"]


def test_names_that_did_not_go_up_keep_their_control_variate() -> None:
    old = named(np.arange(5.0))
    server = Server(1, 4, SPEC, ("b",), {}, old)
    fold = MeanControl().init(Theta(named(START)), server)
    up = {"b": torch.ones(1)}
    fold = MeanControl().add(fold, Contribution("ada", 3.0, Tensors(Theta(up)), SPEC, {"b": torch.full((1,), 2.0)}))
    commit = MeanControl().finish(fold)
    assert torch.equal(commit.aux["w"], old["w"])
    assert float(commit.aux["b"]) == float(old["b"]) + 2.0 / 4
    assert torch.equal(commit.theta["w"], named(START)["w"])
