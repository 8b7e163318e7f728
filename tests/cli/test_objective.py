"""Formulas of an objective, from docstrings."""

from __future__ import annotations

from typing import ClassVar

import pytest
from torch import Tensor

from cotune import aggregate, optim, penalty, recipe
from cotune.cli.objective import formula, objective, rule
from cotune.core.contracts import Penalty
from cotune.core.view import NamedTensors, View


class Mine(Penalty):
    """Keeps a client honest, as its own package says."""

    kind: ClassVar[str] = "mine"
    mu: float = 2.0

    def __call__(self, tensors: NamedTensors, view: View) -> Tensor:
        raise NotImplementedError


class Bracketed(Mine):
    """max(0, ‖B: A‖² − mu), nothing more."""


def test_an_objective_without_penalties_is_the_task_loss() -> None:
    assert objective(recipe("lora-fedavg")) == "mean task loss"


def test_a_penalty_adds_the_formula_of_its_docstring() -> None:
    assert objective(recipe("fedprox")) == "mean task loss + (mu / 2) · ‖θ − θ_anchor‖², mu = 0.01"


def test_fields_of_the_same_name_say_whose_they_are() -> None:
    method = recipe("fedprox", penalties=(penalty.Proximal(mu=0.5), Mine()))
    assert objective(method).endswith(f" + {__name__}:Mine, proximal.mu = 0.5, mine.mu = 2")


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (Mine(), None),
        (Bracketed(), "max(0, ‖B: A‖² − mu)"),
        (aggregate.Mean(), "Σ w_k θ_k / Σ w_k"),
        (optim.SGD(lr=0.1), "θ ← θ − lr · g"),
    ],
)
def test_a_formula_ends_at_the_first_comma_or_colon_outside_of_brackets(part: Penalty, expected: str | None) -> None:
    assert formula(part) == expected


def test_the_rule_of_a_part_carries_its_numbers() -> None:
    assert rule(optim.SGD(lr=0.1)) == "θ ← θ − lr · g, lr = 0.1, weight_decay = 0"
