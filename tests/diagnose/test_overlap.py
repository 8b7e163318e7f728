"""The overlap of spaces: drawn at random, one inside another, and those of matrices that lack directions."""

from __future__ import annotations

import math

import pytest
import torch

from cotune.diagnose.overlap import basis, overlap_squared


def test_spaces_drawn_at_random_overlap_as_the_floor_says() -> None:
    generator = torch.Generator().manual_seed(0)
    ours, theirs = (torch.randn(400, 32, r, generator=generator, dtype=torch.float64) for r in (4, 2))
    square, floor = overlap_squared(basis(ours), basis(theirs))
    assert floor.tolist() == [4 / 32] * 400
    assert float(square.mean()) == pytest.approx(4 / 32, rel=0.05)


def test_directions_that_a_matrix_lacks_are_none() -> None:
    columns = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    columns[:, 2] = columns[:, 0] - columns[:, 1]
    both = torch.stack([columns, torch.zeros(6, 3, dtype=torch.float64)])
    q, rank = basis(both)
    assert rank.tolist() == [2, 0]
    assert torch.allclose(q[0] @ (q[0].mT @ columns), columns)
    square, floor = overlap_squared(basis(columns), (q, rank))
    assert square.tolist() == pytest.approx([1.0, math.nan], nan_ok=True)
    assert floor.isnan().tolist() == [False, True]


def test_a_space_inside_another_overlaps_with_it_in_whole() -> None:
    columns = torch.randn(9, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    square, floor = overlap_squared(basis(columns), basis(columns[None, :, 1:3] * 1e-3))
    assert square.tolist() == pytest.approx([1.0])
    assert floor.tolist() == [4 / 9]
