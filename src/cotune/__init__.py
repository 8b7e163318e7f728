"""Fine-tune one language model across many clients that may not pool their data, and send as little as possible.

`run`, `recipe`, `Method`, `Experiment`, and one room for each kind of part. Names load on first use, so that importing
the package, and the command line, do not pay for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cotune import aggregate, backbone, optim, penalty, personalize, task, trainable, wire
    from cotune.backbone import Backbone
    from cotune.comparison import Comparison, compare
    from cotune.core.errors import CotuneError
    from cotune.core.part import Part
    from cotune.core.seeds import Seeds
    from cotune.core.view import Budget
    from cotune.experiment import Experiment
    from cotune.export import attach_memory
    from cotune.federation import Evaluation, Federation, Group
    from cotune.generation import converse, generate
    from cotune.method import Method
    from cotune.resolve import recipe, run
    from cotune.store import Run

_ROOMS = ("aggregate", "backbone", "optim", "penalty", "personalize", "task", "trainable", "wire")
_NAMES = {
    "Backbone": "cotune.backbone",
    "Budget": "cotune.core.view",
    "Comparison": "cotune.comparison",
    "CotuneError": "cotune.core.errors",
    "Evaluation": "cotune.federation",
    "Experiment": "cotune.experiment",
    "Federation": "cotune.federation",
    "Group": "cotune.federation",
    "Method": "cotune.method",
    "Part": "cotune.core.part",
    "Run": "cotune.store",
    "Seeds": "cotune.core.seeds",
    "attach_memory": "cotune.export",
    "compare": "cotune.comparison",
    "converse": "cotune.generation",
    "generate": "cotune.generation",
    "recipe": "cotune.resolve",
    "run": "cotune.resolve",
}

__all__ = [
    "Backbone",
    "Budget",
    "Comparison",
    "CotuneError",
    "Evaluation",
    "Experiment",
    "Federation",
    "Group",
    "Method",
    "Part",
    "Run",
    "Seeds",
    "aggregate",
    "attach_memory",
    "backbone",
    "compare",
    "converse",
    "generate",
    "optim",
    "penalty",
    "personalize",
    "recipe",
    "run",
    "task",
    "trainable",
    "wire",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"cotune.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'cotune' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
