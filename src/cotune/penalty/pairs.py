"""The low-rank pairs of a client, beside those that came down, and how a sum over pairs is taken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from cotune.core.view import NamedTensors, View
from cotune.linalg import Factors

# mean-pairs: the terms of the pairs are averaged, as in the released runs of Subspace-Reg; sum: they are added.
Reduction = Literal["mean-pairs", "sum"]


class Pair(NamedTuple):
    """A module's factors (B, A) as they are, as they came down, and the factor in front of their product."""

    here: Factors
    anchor: Factors
    scale: float


def anchored(tensors: NamedTensors, view: View) -> Iterator[Pair]:
    """The pairs of which both factors travel and at least one trains; one that does not train is at its anchor."""
    for b, a in view.spec.pairs.values():
        if b.name in view.anchor and a.name in view.anchor and (b.name in tensors or a.name in tensors):
            reference = view.anchor[b.name], view.anchor[a.name]
            here = tensors.get(b.name, reference[0]), tensors.get(a.name, reference[1])
            yield Pair(here, reference, b.scale)


def reduced(terms: Sequence[Tensor], reduction: Reduction) -> Tensor:
    """The mean or the sum of 0-dim terms; 0 where there is none."""
    if not terms:
        return torch.zeros(())
    stack = torch.stack(list(terms))
    return stack.mean() if reduction == "mean-pairs" else stack.sum()
