"""Rows of a tensor that are moved by themselves: the same bits as in the whole, by every path."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from cotune.core.errors import Code, CotuneError
from cotune.noise import Path, apply_
from cotune.noise.stream import apply_runs_

PATHS: list[Path] = ["numpy", "torch", *(["compiled"] if find_spec("numba") else [])]  # type: ignore[list-item]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 7, 128, 200])
def test_runs_of_rows_are_moved_as_in_the_whole(path: Path, dtype: torch.dtype, width: int) -> None:
    theta = torch.randn((30, width), generator=torch.Generator().manual_seed(1), dtype=dtype)
    whole = apply_(theta.clone(), 0.01, 5, 3, 77)
    chosen = torch.tensor([0, 1, 2, 9, 28, 29])
    runs = [(slice(0, 3), 77), (slice(3, 4), 77 + 9 * width), (slice(4, 6), 77 + 28 * width)]
    assert torch.equal(apply_runs_(theta[chosen], runs, 0.01, 5, 3, path=path), whole[chosen])
    turned = theta[chosen].mT.contiguous().mT
    assert torch.equal(apply_runs_(turned, runs, 0.01, 5, 3, path=path), whole[chosen])


def test_what_no_stream_has_and_no_coefficient_is_refused() -> None:
    rows = torch.zeros(2, 3)
    for run, coefficient, seed, code in (
        ((slice(0, 2), -1), 0.1, 5, Code.COUNT),
        ((slice(0, 2), 0), float("nan"), 5, Code.SCALAR),
        ((slice(0, 2), 0), 0.1, -5, Code.SEED),
    ):
        with pytest.raises(CotuneError) as caught:
            apply_runs_(rows, [run], coefficient, seed, 1)
        assert caught.value.code is code
    assert not rows.any()
    kept = torch.full((2, 3), -0.0)
    apply_runs_(kept, [(slice(0, 2), 0)], 0.0, 5, 1)
    assert bool(kept.signbit().all())
