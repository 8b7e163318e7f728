"""A fold that keeps low-rank pairs as pairs, and averages everything else as `mean` does.

Scale is folded in here, before any sum: a client of rank r_k counts with w_k · s_k / s, s being the factor that the
server's spec puts in front of the product, so that Σ w_k s_k B_k A_k = s · Σ (w_k s_k / s) B_k A_k.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cotune.aggregate.mean import Mean, WeightedSum
from cotune.core.change import Contribution, Server
from cotune.core.errors import Code, CotuneError
from cotune.core.spec import Role
from cotune.core.state import Theta
from cotune.linalg import Factors


@dataclass(frozen=True)
class Products:
    """The fold.

    Attributes:
        rest: of the names that are averaged: all but the pairs of which both factors went up.
        server: what the round started with.
        pairs: module -> every client's (B_k, A_k), as they were sent: as much memory as the replies.
        counts: module -> w_k s_k / s of each.
    """

    rest: WeightedSum
    server: Server
    pairs: dict[str, list[Factors]]
    counts: dict[str, list[float]]

    def shares(self, module: str) -> list[float]:
        """w_k s_k / (s Σ w) of each pair of a module."""
        return [count / self.rest.weight for count in self.counts[module]]


def begin(theta: Theta, server: Server, *, both: bool = False) -> Products:
    """The empty fold of a round that started from `theta`.

    Args:
        theta: the global one.
        server: what the aggregator knows.
        both: whether the aggregator has no use for pairs of which one factor stays.

    Raises:
        CotuneError: E_CONFLICT when a factor goes up whose partner the server does not have, or does not get though it
            asks for both.
    """
    whole = []
    for module, pair in server.spec.pairs.items():
        up = [entry.name for entry in pair if entry.name in server.up]
        if len(up) == 1 and (both or not all(entry.name in theta for entry in pair)):
            raise CotuneError(
                Code.CONFLICT,
                "one factor of a pair goes up alone, and the aggregator multiplies both",
                where=module,
                got=up[0],
                fix="train and share both factors, or choose the aggregator 'mean'",
            )
        whole += [module] if len(up) == 2 else []
    names = {entry.name for module in whole for entry in server.spec.pairs[module]}
    rest = replace(server, up=tuple(name for name in server.up if name not in names))
    return Products(Mean().init(theta, rest), server, {m: [] for m in whole}, {m: [] for m in whole})


def add(fold: Products, contribution: Contribution) -> Products:
    """The fold with one more client; a smaller rank is filled up with zeros where a factor went up alone."""
    sent, spec, own = contribution.change.dense(), fold.server.spec, contribution.spec
    for module, pairs in fold.pairs.items():
        b, a = spec.pairs[module]
        pairs.append((sent[b.name], sent[a.name]))
        fold.counts[module].append(contribution.weight * own[b.name].scale / b.scale)
    for name, total in fold.rest.total.items():
        axis, tensor = spec[name].rank_axis, sent[name].double()
        gain = own[name].scale / spec[name].scale if spec[name].role is Role.FACTOR_B else 1.0
        target = total if axis is None else total.narrow(axis, 0, tensor.shape[axis])
        target.add_(tensor, alpha=contribution.weight * gain)
    return replace(fold, rest=replace(fold.rest, weight=fold.rest.weight + contribution.weight))
