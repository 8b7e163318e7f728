"""SVD redistribution, which is FlexLoRA (arXiv 2402.11505), on the server of a Flower app."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord

from cotune.aggregate import ProductSVD
from cotune.core.change import Contribution, Tensors
from cotune.core.contracts import Layout
from cotune.core.errors import Code, CotuneError
from cotune.core.spec import Entry, Spec
from cotune.core.state import Theta
from cotune.flower.strategy.arrays import layout_of, read, record_of, tensors_of
from cotune.flower.strategy.checked import CheckedAvg, Round, wide
from cotune.flower.strategy.table import paired
from cotune.trainable import LoRA


class SVDRedistribute(CheckedAvg):
    """B A = the best rank-r form of Σ n_k s_k B_k A_k / (s Σ n_k), with √σ in both factors; the rest is averaged.

    It takes FedAvg's place in an app that trains a LoRA adapter: one array a tensor, by PEFT's names. Nodes may hold
    factors of a smaller rank, with the same alpha, where `mixed_ranks` says so: `fitted` makes theirs of what comes
    down, and they send what they have. s is alpha / r, or alpha / √r. Not for Flower's wrappers of differential
    privacy: their noise is that of a mean.
    """

    def __init__(self, *, mixed_ranks: bool = False, stabilised: bool = False, **settings: Any) -> None:
        """Take CheckedAvg's and FedAvg's settings.

        Args:
            mixed_ranks: take factors of smaller ranks.
            stabilised: PEFT's `use_rslora`: s is alpha / √r.
            settings: the others'.
        """
        super().__init__(aggregator=ProductSVD(split="balanced"), **settings)
        self._mixed, self._stabilised = mixed_ranks, stabilised

    def table(self, layout: Layout) -> Spec:
        """Pairs of factors, and the rest."""
        return _scaled(paired(layout), self._stabilised)

    def contribution(self, round_: Round, node: int, weight: float, record: ArrayRecord) -> Contribution:
        """A node's arrays at its own rank.

        Raises:
            CotuneError: what is wrong with them.
        """
        axes = {entry.name: entry.rank_axis for entry in round_.spec} if self._mixed else {}
        shorter = {name: axis for name, axis in axes.items() if axis is not None}
        sent = {name: wide(tensor) for name, tensor in read(record, round_.layout, shorter).items()}
        for module, (b, a) in round_.spec.pairs.items():
            if sent[b.name].shape[1] != sent[a.name].shape[0]:
                got = f"{tuple(sent[b.name].shape)} {tuple(sent[a.name].shape)}"
                raise CotuneError(Code.SHAPE, "factors of two ranks", where=module, got=got)
        own = Spec(tuple(_at_rank(entry, tuple(sent[entry.name].shape)) for entry in round_.spec))
        return Contribution(str(node), weight, Tensors(Theta(sent)), own)


def fitted(arrays: ArrayRecord, rank: int, *, stabilised: bool = False) -> ArrayRecord:
    """The arrays of a node whose adapter has a smaller rank and the same alpha: the leading directions.

    Args:
        arrays: as they came down.
        rank: of the node's adapter.
        stabilised: PEFT's `use_rslora`.
    """
    spec = _scaled(paired(layout_of(arrays)), stabilised)
    tensors = tensors_of(arrays)
    least = {entry.shape[entry.rank_axis] for entry in spec if entry.rank_axis is not None}
    if not 0 < rank <= min(least):
        raise CotuneError(Code.CONFIG, "no such rank in the arrays", got=rank, expected=f"1 to {min(least)}")
    theta = LoRA(rank=rank).fit(Theta(tensors), spec.ranked(rank))
    return record_of({name: theta[name] for name in tensors})


def _scaled(spec: Spec, stabilised: bool) -> Spec:
    """The power of r by which the scale falls, where factors are stabilised."""
    return Spec(tuple(replace(entry, falls=0.5) for entry in spec)) if stabilised else spec


def _at_rank(entry: Entry, shape: tuple[int, ...]) -> Entry:
    """The entry of a node that holds a factor of this shape, with the scale that alpha gives it there."""
    axis = entry.rank_axis
    if axis is None or shape == entry.shape:
        return entry
    return replace(entry, shape=shape, scale=entry.scale * (entry.shape[axis] / shape[axis]) ** entry.falls)
