"""Subspace-Reg on the server of a Flower app (arXiv 2606.22724)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from cotune.aggregate import ProductSVD
from cotune.core.contracts import Layout
from cotune.core.spec import Spec
from cotune.flower.strategy.checked import LOG, CheckedAvg
from cotune.flower.strategy.penalty import ANCHOR, BASIS, MU, REDUCTION, RIDGE, terms
from cotune.flower.strategy.table import paired
from cotune.penalty.pairs import Reduction


class SubspaceRegAvg(CheckedAvg):
    """B A = the best rank-r form of Σ n_k B_k A_k / Σ n_k with Bᵀ B = I; what is no LoRA factor is averaged.

    It takes FedAvg's place in an app that trains a LoRA adapter: one array a tensor, by PEFT's names. The config of a
    round tells nodes what their penalty needs (`subspace_penalty`, in a training loop of their own); without it the
    method is the ablation mu = 0. Not for Flower's wrappers of differential privacy: their noise is that of a mean.
    """

    def __init__(
        self,
        *,
        mu: float = 0.1,
        ridge: float = 1e-5,
        basis: float = 0.01,
        reduction: Reduction = "mean-pairs",
        cap: float | None = None,
        restore: bool = False,
        **settings: Any,
    ) -> None:
        """Take the recipe's strengths.

        Args:
            mu: of the pull towards the product that came down.
            ridge: of the ridge on both factors; the paper's λ.
            basis: of the pull towards the B that came down; the paper's α.
            reduction: whether a penalty is the mean over pairs or their sum.
            cap: the largest ‖B A‖ of a layer, without PEFT's alpha / r; a longer one is shortened.
            restore: lengthen both factors alike to make up for what truncation cut off.
            settings: CheckedAvg's and FedAvg's.

        Raises:
            CotuneError: E_CONFIG for strengths that no penalty takes.
        """
        super().__init__(aggregator=ProductSVD(split="orthonormal-b", cap=cap, restore=restore), **settings)
        self._config = {MU: mu, RIDGE: ridge, BASIS: basis, REDUCTION: reduction, ANCHOR: self.arrayrecord_key}
        terms(self._config)

    def table(self, layout: Layout) -> Spec:
        """Pairs of factors, and the rest."""
        return paired(layout)

    def told(self) -> Mapping[str, float | str]:
        """The strengths, and the name of the record that is the anchor."""
        return self._config

    def summary(self) -> None:
        """Flower's summary, and the strengths."""
        super().summary()
        LOG.log(logging.INFO, "\t└──> Subspace-Reg: %s", ", ".join(f"{k} = {v}" for k, v in self._config.items()))
