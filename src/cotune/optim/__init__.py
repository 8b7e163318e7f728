"""How a client moves its tensors. One file an optimizer, one line here."""

from collections.abc import Mapping

from cotune.core.contracts import Optimizer
from cotune.optim.adamw import AdamW
from cotune.optim.scaffold import Scaffold
from cotune.optim.sgd import SGD

KINDS: Mapping[str, type[Optimizer]] = {
    "adamw": AdamW,
    "scaffold": Scaffold,
    "sgd": SGD,
}

__all__ = ["KINDS", "SGD", "AdamW", "Optimizer", "Scaffold"]
