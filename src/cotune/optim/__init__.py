"""How a client moves its tensors. One file an optimizer, one line here."""

from collections.abc import Mapping

from cotune.core.contracts import Optimizer
from cotune.optim.adamw import AdamW
from cotune.optim.private_zo import PrivateZO
from cotune.optim.scaffold import Scaffold
from cotune.optim.sgd import SGD
from cotune.optim.split_zo import SplitZO
from cotune.optim.zo import ZO

KINDS: Mapping[str, type[Optimizer]] = {
    "adamw": AdamW,
    "private-zo": PrivateZO,
    "scaffold": Scaffold,
    "sgd": SGD,
    "split-zo": SplitZO,
    "zo": ZO,
}

__all__ = ["KINDS", "SGD", "ZO", "AdamW", "Optimizer", "PrivateZO", "Scaffold", "SplitZO"]
