"""FedSSI's importance against its algorithm in dense float64, round after round, with rounds that a client misses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotune.core.errors import Code, CotuneError
from cotune.core.seeds import Seeds
from cotune.core.spec import Entry, Role, Scope, Spec
from cotune.core.state import Personal, Private, Theta
from cotune.core.view import View
from cotune.optim import SGD
from cotune.penalty import Synaptic

Array = NDArray[np.float64]
SPEC = Spec((Entry("w", (2, 2), Role.FULL, "m"), Entry("b", (1,), Role.FULL, "m")))
SCOPE = Scope(SPEC.names, SPEC.names, SPEC.names)
PART = Synaptic(c=0.7, locality=0.8, surrogate_lr=0.05, surrogate_steps=4, damping=0.02)
PULLED = PART.model_copy(update={"locality": 0.1})  # theta pulls harder than the rows do: v climbs in places
RATES, STEPS, LR = (1.0, 0.75, 0.5), 3, 0.05

_draw = np.random.Generator(np.random.Philox(5))
_ROOT = _draw.normal(size=(5, 5))
CURVE, CENTRE = _ROOT @ _ROOT.T / 5 + np.eye(5) / 2, _draw.normal(size=5) * 2
DOWN = [_draw.normal(size=5) for _ in RATES]  # theta as it came down in each of the client's rounds


def flat(named: Mapping[str, Tensor], prefix: str = "") -> Array:
    return np.concatenate([named[prefix + name].double().numpy().reshape(-1) for name in ("w", "b")])


def named(values: Array) -> dict[str, Tensor]:
    numbers = torch.tensor(values)
    return {"w": numbers[:4].reshape(2, 2), "b": numbers[4:]}


def algorithm(part: Synaptic) -> Iterator[tuple[Array, Array, Array, Array]]:
    """v, s, Ω and where training arrives, number by number: the first round has no penalty, and starts v at theta."""
    v, omega = DOWN[0].copy(), np.zeros(5)
    q = (1 - part.locality) / (2 * part.locality)
    for theta, rate in zip(DOWN, RATES, strict=True):
        start, s = v.copy(), np.zeros(5)
        for _ in range(part.surrogate_steps):
            g = CURVE @ (v - CENTRE)
            step = -part.surrogate_lr * rate * (g + q * (v - theta))
            s -= g * step
            v = v + step
        w = theta.copy()
        for _ in range(STEPS):
            w = w - LR * rate * (CURVE @ (w - CENTRE) + 2 * part.c * omega * (w - theta))
        omega = omega + np.maximum(s, 0) / ((v - start) ** 2 + part.damping)
        yield v, s, omega, w


@dataclass(frozen=True)
class Bowl:
    """½ (θ − centre)ᵀ curve (θ − centre) for each of three rows, and the penalty, as in a round."""

    part: Synaptic
    view: View
    rows: int = 3

    def __call__(self, tensors: Mapping[str, Tensor]) -> Tensor:
        given = {**self.view.theta, **tensors}
        at = torch.cat([given["w"].reshape(-1), given["b"]]) - torch.tensor(CENTRE)
        return (at @ torch.tensor(CURVE) @ at / 2).expand(self.rows) + self.part(tensors, self.view)

    def microbatches(self) -> Iterator[Bowl]:
        return iter([replace(self, rows=2), replace(self, rows=1)])


def view(round_: int, private: Mapping[str, Private]) -> View:
    theta = Theta(named(DOWN[round_ - 1]))
    return View(round_, "ada", theta, Personal(), private, theta, {}, Seeds(), SPEC, SCOPE, rate=RATES[round_ - 1])


def play(part: Synaptic) -> Iterator[View]:
    """The same rounds through the part and plain descent."""
    private: Mapping[str, Private] = {}
    for round_ in range(1, len(RATES) + 1):
        here = view(round_, private)
        here = part.begin(here, Bowl(part, here))
        for _ in range(STEPS):
            here = SGD(lr=LR).step(here, None, Bowl(part, here)).view
        here = part.end(here)
        private = here.private
        yield here


@pytest.mark.parametrize("part", [PART, PULLED], ids=["loose", "pulled"])
def test_surrogate_importance_and_what_is_trained_are_those_of_the_algorithm(part: Synaptic) -> None:
    played, expected = list(play(part)), list(algorithm(part))
    for here, (v, _, omega, w) in zip(played, expected, strict=True):
        own = here.private["synaptic"]
        np.testing.assert_allclose(flat(own, "v/"), v, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(flat(own, "omega/"), omega, rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(flat(here.theta), w, rtol=1e-9, atol=1e-12)
        assert sorted(own) == ["omega/b", "omega/w", "v/b", "v/w"]
    assert flat(played[-1].private["synaptic"], "omega/").max() > 0.1
    assert any((s < 0).any() for _, s, _, _ in expected) == (part is PULLED), (
        "steps that raised a loss make nothing matter"
    )


def test_without_the_penalty_training_goes_elsewhere_and_the_surrogate_does_not() -> None:
    """The surrogate follows the task alone: the penalty is taken out of the objective that it is handed."""
    plain, held = list(play(PART.model_copy(update={"c": 0.0}))), list(play(PART))
    np.testing.assert_allclose(
        flat(plain[-1].private["synaptic"], "v/"), flat(held[-1].private["synaptic"], "v/"), rtol=1e-9
    )
    assert np.linalg.norm(flat(plain[-1].theta) - flat(held[-1].theta)) > 1e-2


def test_a_surrogate_held_hard_stays_at_theta_and_a_free_one_goes_to_the_clients_own_minimum() -> None:
    """The paper's two ends of λ, with as many steps as it takes."""
    many = {"surrogate_lr": 0.1, "surrogate_steps": 400}
    free, bound = (Synaptic(c=0.1, locality=locality, **many) for locality in (0.999999, 0.06))
    here = view(1, {})
    loose, tight = (flat(p.begin(here, Bowl(p, here)).private["synaptic"], "v/") for p in (free, bound))
    np.testing.assert_allclose(loose, CENTRE, atol=1e-4)
    q = (1 - 0.06) / (2 * 0.06)
    np.testing.assert_allclose(tight, np.linalg.solve(CURVE + q * np.eye(5), CURVE @ CENTRE + q * DOWN[0]), atol=1e-6)


def test_a_first_round_has_no_penalty_and_what_is_important_is_held_harder_later() -> None:
    first = view(1, {})
    assert float(PART(named(CENTRE), PART.begin(first, Bowl(PART, first)))) == 0.0
    later = view(2, {"synaptic": Private({"omega/w": torch.tensor([[1.0, 0.0], [0.0, 0.0]]).double()})})
    step = {name: tensor.clone() for name, tensor in later.anchor.items()}
    step["w"] = step["w"] + 1.0
    assert float(PART(step, later)) == pytest.approx(PART.c)


def test_only_what_travels_has_a_surrogate_and_names_that_rest_keep_their_importance() -> None:
    here = next(play(PART))
    resting = replace(view(2, here.private), scope=Scope(("b",), ("b",), SPEC.names))
    after = PART.end(PART.begin(resting, Bowl(PART, resting)))
    old, new = here.private["synaptic"], after.private["synaptic"]
    assert torch.equal(new["omega/w"], old["omega/w"])
    assert torch.equal(new["v/w"], old["v/w"])
    assert not torch.equal(new["omega/b"], old["omega/b"])


def test_a_surrogate_that_runs_away_is_refused_with_its_client() -> None:
    wild = Synaptic(c=0.1, surrogate_lr=1e30, surrogate_steps=40)
    with pytest.raises(CotuneError, match="the surrogate of client ada, round 1") as caught:
        wild.begin(view(1, {}), Bowl(wild, view(1, {})))
    assert caught.value.code is Code.NONFINITE
