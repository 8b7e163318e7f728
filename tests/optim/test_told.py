"""What coefficients tell: which slopes a limit cut, and how much of the gradient whoever knows the seeds reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from cotune.core.seeds import derive
from cotune.core.view import View
from cotune.laws.toy import OBJECTIVE, SPEC, view
from cotune.noise import Trace, signs
from cotune.optim import ZO, SplitZO

LIMIT = 0.5


def named(part: ZO | SplitZO, here: View, steps: int) -> dict[str, Tensor]:
    """The coefficients of some steps at the same place, as they are sent."""
    rows: dict[str, list[Tensor]] = {}
    for step in range(steps):
        trace = part.step(replace(here, step=step), None, OBJECTIVE).trace
        assert isinstance(trace, Trace)
        for key, tensor in trace.coefficients.items():
            rows.setdefault(f"{trace.kind}/{key}", []).append(tensor)
    return {name: torch.stack(tensors) for name, tensors in rows.items()}


@pytest.mark.parametrize("tick", [0.0, 2.0**-22])
@pytest.mark.parametrize(
    "part", [ZO(lr=0.01, directions=3, largest=LIMIT), SplitZO(lr=0.01, lr_back=0.03, again=2, largest=LIMIT)], ids=repr
)
def test_slopes_that_the_limit_cut_are_counted(part: ZO | SplitZO, tick: float) -> None:
    rate, here = 0.7, replace(view(), rate=0.7, directions=5, tick=tick)
    free = named(part.model_copy(update={"largest": None}), here, 20)
    rates = {"0": part.lr, "1": getattr(part, "lr_back", part.lr), "all": part.lr}
    beyond = 0
    for name, tensor in free.items():
        unit = rate * rates[name.partition("/")[2]] / tensor.shape[1]
        beyond += int((tensor.abs() / unit > LIMIT).sum())
    assert 0 < beyond < sum(tensor.numel() for tensor in free.values())
    assert part.describe([named(part, here, 20)], rate)["cut_slopes"] == beyond
    assert "cut_slopes" not in part.model_copy(update={"largest": None}).describe([free], rate)


def test_the_candidates_of_a_pool_are_no_slopes() -> None:
    part, sent = SplitZO(lr=0.01, again=2), named(SplitZO(lr=0.01, again=2), replace(view(), directions=5), 3)
    more: Mapping[str, Tensor] = {**sent, "candidate/0": torch.full((3, 1), 9), "candidate/1": torch.full((3, 4), 9)}
    assert part.describe([more]) == part.describe([sent]) != {}


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_scalars_and_seeds_hold_their_share_of_the_gradient(share: float) -> None:
    """Z6: of a gradient of d numbers, s slopes hold s / d of the energy; "scalars only" is not privacy."""
    here, d = view(), sum(entry.numel for entry in SPEC)
    steps = round(share * d)
    mean = {name: torch.stack([target[name] for target in OBJECTIVE.targets]).mean(0) for name in SPEC.names}
    gradient = torch.cat([(here.theta[name] - mean[name]).flatten() for name in SPEC.names]).double()
    found = []
    for seed in range(1, 17):
        slopes = -named(ZO(lr=1.0), replace(here, directions=seed), steps)["sign/all"].double().flatten()
        rows = []
        for step in range(steps):
            at, row = {0: 0, 1: 0}, []
            for entry in SPEC:
                row.append(signs(derive(seed, step), entry.block * 2**32, at[entry.block], entry.numel).double())
                at[entry.block] += entry.numel
            rows.append(torch.cat(row))
        read = torch.linalg.pinv(torch.stack(rows)) @ slopes
        found.append(float(read.square().sum() / gradient.square().sum()))
    assert sum(found) / len(found) == pytest.approx(share, abs=0.06)
