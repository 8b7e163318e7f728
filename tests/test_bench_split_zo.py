"""The benchmark of FedSPZO's step: its counts are those of the formulas, and its bytes those of what is alive."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from cotune.bench.benchmark import measured
from cotune.bench.split_zo import SplitStep, _forward, _gradient, _peak
from cotune.trainable import Full, LoRA

WIDE = SplitStep(layers=4, hidden=192, heads=4, vocab=263, length=32)


def test_quick_judges_nothing_and_counts_the_passes_that_the_methods_say() -> None:
    result = measured("split-zo", quick=True)
    figures: dict[str, Any] = {figure["name"]: figure for figure in result["figures"]}
    assert len(figures) == len(result["figures"]) == 22, "no name twice"
    assert {figure["goal"] for figure in figures.values()} == {None, 0.99, 5.0, 1 / 1.15}
    assert all(figure["met"] is None for figure in figures.values())
    for said in ("8 tokens", "16 tokens"):
        assert figures[f"a step of {said}, FLOPs · against P₁ (2 F₁ + 4 P_s F₂)"]["ratio"] == pytest.approx(1)
        decomfl, mezo = (figures[f"a step of {said}, FLOPs · against {peer}"]["rival"] for peer in ("decomfl", "mezo"))
        assert decomfl == pytest.approx(3 * mezo), "5 + 1 passes, and 2"


def test_the_settings_are_those_of_the_paper_where_it_says_them() -> None:
    whole = SplitStep()
    assert (whole.short * whole.length, whole.long * whole.length) == (128, 1024)
    assert whole._ours.layer([0] * whole.layers) == 9


def test_what_is_alive_is_theta_and_what_a_pass_makes() -> None:
    with WIDE._begun(Full(), 1) as (view, objective):
        theta = 4 * sum(t.numel() for t in view.trained.values()) / 2**20
        forward = _peak(view, objective, partial(_forward, view, objective))
        step = _peak(view, objective, partial(WIDE._ours.step, view, None, objective))
        first = _peak(view, objective, partial(WIDE._ours.step, replace(view, own=False), None, objective))
        gradient = _peak(view, objective, partial(_gradient, view, objective))
    largest = 4 * max(t.numel() for t in view.trained.values()) / 2**20
    assert theta < forward < 1.1 * theta
    assert forward < step < min(1.15 * forward, forward + largest + 0.2)
    assert 2 * theta < first < 2.1 * theta
    assert 2 * theta < gradient


def test_beside_factors_what_is_frozen_is_alive_too() -> None:
    with WIDE._begun(LoRA(rank=2), 1) as (view, objective):
        frozen = {n: p.numel() for n, p in objective.bound.model.named_parameters() if n not in view.trained}
        gradient = _peak(view, objective, partial(_gradient, view, objective))
    assert 4 * sum(frozen.values()) / 2**20 < gradient
