"""What the server makes of replies. One file an aggregator, one line here."""

from collections.abc import Mapping

from cotune.aggregate.control import MeanControl
from cotune.aggregate.mean import Mean
from cotune.aggregate.pool import Pool
from cotune.aggregate.product_svd import ProductSVD
from cotune.aggregate.residual import Residual
from cotune.aggregate.rotation import Rotation
from cotune.aggregate.stack import Stack
from cotune.core.contracts import Aggregator

KINDS: Mapping[str, type[Aggregator]] = {
    "mean": Mean,
    "mean-control": MeanControl,
    "pool": Pool,
    "product-svd": ProductSVD,
    "residual": Residual,
    "rotation": Rotation,
    "stack": Stack,
}

__all__ = ["KINDS", "Aggregator", "Mean", "MeanControl", "Pool", "ProductSVD", "Residual", "Rotation", "Stack"]
