"""What a run says about differential privacy before it starts: a number, its unit, and what is outside of it."""

from __future__ import annotations

import json
import math
import sys

import pytest
from typed import BACKBONE

from cotune.cli.show import View, view
from cotune.privacy import epsilon

NOISY = 'method.optimizer={kind="private-zo", lr=1e-4, limit=20.0, sigma=6.0, directions=2}'
NONE = "no differential privacy: "
TASK = "synth:sentiment?clients=4&rows=96"
BUDGET = "method.budget={steps=10, batch=4}"


def shown(*sets: str, recipe: str = "mezo") -> View:
    return view(recipe, backbone=BACKBONE, task=TASK, sets=(NOISY, BUDGET, "federation.rounds=20", *sets))


def test_epsilon_is_that_of_the_client_whose_rows_take_part_most() -> None:
    found = shown()
    told = json.loads(found.json())
    assert found.plan is not None
    plan = found.plan
    fewest = min(plan.train_rows(info.id) for info in plan.clients)
    releases = 20 * 2 * math.ceil(10 / math.ceil(fewest / 4))
    assert (told["privacy"]["releases"], told["privacy"]["multiplier"]) == (releases, 3.0)
    assert told["privacy"]["epsilon"] == pytest.approx(epsilon(3.0, releases, 1e-5))
    text = found.text()
    assert (
        f"#   epsilon = {epsilon(3.0, releases, 1e-5):.4g} at delta = 1e-05 after 20 rounds, for one row that a" in text
    )
    assert "no gain from sampling" in text
    assert "#   not covered, though it goes up: how many rows a client has, the FLOPs" in text
    assert NONE not in text
    assert "scalars are not private" not in text


def test_a_client_that_is_asked_in_fewer_rounds_gives_away_less() -> None:
    always, seldom = (json.loads(shown(*sets).json())["privacy"]["epsilon"] for sets in ((), ("federation.cohort=1",)))
    assert seldom < always / 1.5


@pytest.mark.parametrize(
    ("sets", "why"),
    [
        (('method.optimizer.noise="reproducible"',), "reproducible noise is known to whoever knows the seed"),
        (("method.optimizer.sigma=0.0",), "sigma = 0 is no noise"),
        (("method.optimizer.sigma=1e-9",), "sigma is next to no noise"),
        (('method.penalties=[{kind="synaptic", c=0.1}]',), "penalty synaptic reads the rows by itself, without noise"),
    ],
)
def test_noise_that_hides_nothing_is_no_claim(sets: tuple[str, ...], why: str) -> None:
    text = shown(*sets).text()
    assert f"#   no claim: {why}\n" in text
    assert "epsilon = " not in text
    assert NONE in text


def test_a_group_without_noise_is_said_to_be_outside() -> None:
    group = 'federation.groups=[{match="domain-1", optimizer={kind="zo", lr=1e-4}}]'
    text = shown(group).text()
    assert "#   for 3 of 4 clients; the others are not covered" in text
    assert NONE in text
    assert "scalars are not private" in text


def test_a_method_without_noise_has_no_block() -> None:
    found = view("mezo", backbone=BACKBONE, task=TASK)
    assert "privacy" not in json.loads(found.json())
    assert "epsilon" not in found.text()


def test_without_the_accountant_no_number_is_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    text = shown().text()
    assert "epsilon is not known here: epsilon needs dp-accounting" in text
    assert "pip install 'cotune[dp]'" in text
    assert "epsilon = " not in text
    assert NONE in text


def test_a_task_that_may_drop_rows_is_said_to_be_counted_before_it_does() -> None:
    sets = (NOISY, BUDGET, "backbone.ref=random:llama?layers=1&hidden=16&heads=2")
    causal = view("mezo", task="synth:instructions?clients=4&rows=96", sets=sets).text()
    assert "every row is counted as one example" in causal
    assert "every row is counted as one example" not in shown().text()
