"""Strategies for Flower apps of one's own, and what their clients call. One file a strategy, one line here.

| strategy, on the server | on the client |
|---|---|
| `CheckedAvg`: FedAvg that refuses a bad reply | nothing |
| `SubspaceRegAvg` | `subspace_penalty`, added to the loss |
| `SVDRedistribute` | nothing; `fitted` for an adapter of smaller rank |
| `ZOReplay` | `zo_steps` in place of training, with `model_at` |
"""

from cotune.flower.strategy.checked import CheckedAvg
from cotune.flower.strategy.penalty import subspace_penalty
from cotune.flower.strategy.steps import model_at, zo_steps
from cotune.flower.strategy.subspace_reg_avg import SubspaceRegAvg
from cotune.flower.strategy.svd_redistribute import SVDRedistribute, fitted
from cotune.flower.strategy.zo_replay import ZOReplay

__all__ = [
    "CheckedAvg",
    "SVDRedistribute",
    "SubspaceRegAvg",
    "ZOReplay",
    "fitted",
    "model_at",
    "subspace_penalty",
    "zo_steps",
]
