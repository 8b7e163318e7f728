"""What the server makes of replies. One file an aggregator, one line here."""

from collections.abc import Mapping

from cotune.aggregate.control import MeanControl
from cotune.aggregate.mean import Mean
from cotune.core.contracts import Aggregator

KINDS: Mapping[str, type[Aggregator]] = {
    "mean": Mean,
    "mean-control": MeanControl,
}

__all__ = ["KINDS", "Aggregator", "Mean", "MeanControl"]
