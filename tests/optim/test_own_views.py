"""In a round, steps write over a theta that nobody else holds, and over no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from tiny import experiment, play
from torch import Tensor

from cotune.core.contracts import Penalty
from cotune.core.view import NamedTensors, View
from cotune.optim.probe import Probe
from cotune.penalty import Proximal


class Watch(Penalty):
    """Looks at every step, and holds the views before them."""

    kind: ClassVar[str] = "watch"
    held: ClassVar[list[tuple[View, str]]] = []

    def __call__(self, tensors: NamedTensors, view: View) -> Tensor:
        return next(iter(tensors.values())).new_zeros(())

    def observe(self, before: View, after: View, gradient: NamedTensors | None) -> View:
        del gradient
        self.held.append((before, before.theta.sha256()))
        return after


def playing(folder: Path, penalty: Penalty) -> str:
    """The hash of theta after two rounds of MeZO."""
    chosen = experiment("mezo", federation={"rounds": 2}, method__optimizer__lr=0.01)
    method = chosen.method.model_copy(update={"penalties": (penalty,)})
    return play(chosen.model_copy(update={"method": method}), folder).theta_sha256


@pytest.fixture
def over(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """(step, whether it was written over the theta before it) of each step that is taken."""
    found, true = list[tuple[int, bool]](), Probe.step

    def noted(probe: Probe, *args: Any) -> Any:
        step = true(probe, *args)
        pairs = zip(probe.view.trained.values(), step.view.trained.values(), strict=True)
        found.append((probe.view.step, all(a.data_ptr() == b.data_ptr() for a, b in pairs)))
        return step

    monkeypatch.setattr(Probe, "step", noted)
    return found


def test_the_first_step_makes_a_theta_and_the_next_are_written_over_it(
    tmp_path: Path, over: list[tuple[int, bool]]
) -> None:
    playing(tmp_path, Proximal(mu=0.0))
    assert {step for step, written in over if written} == {step for step, _ in over if step} != set()


def test_a_part_that_looks_at_steps_has_the_views_as_they_were_and_the_run_is_the_same(
    tmp_path: Path, over: list[tuple[int, bool]]
) -> None:
    plain = playing(tmp_path / "plain", Proximal(mu=0.0))
    over.clear()
    Watch.held.clear()
    watched = playing(tmp_path / "watched", Watch())
    assert watched == plain
    assert not any(written for _, written in over)
    assert len(Watch.held) > 2
    assert all(view.theta.sha256() == digest for view, digest in Watch.held)
