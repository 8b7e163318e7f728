"""Data and how a model is trained and scored on it. One file a task, one line here."""

from collections.abc import Mapping

from cotune.core.contracts import Task
from cotune.task.choice import Choice
from cotune.task.classify import Classify
from cotune.task.hellaswag import HellaSwag
from cotune.task.mmlu import MMLU
from cotune.task.needle import Needle
from cotune.task.partition import PARTITIONS, Dirichlet, Iid, Natural, Partition, Sizes
from cotune.task.prompted import Prompted
from cotune.task.recall import Recall
from cotune.task.sft import SFT
from cotune.task.story import recall_stream
from cotune.task.text import Text

KINDS: Mapping[str, type[Task]] = {
    "choice": Choice,
    "classify": Classify,
    "hellaswag": HellaSwag,
    "mmlu": MMLU,
    "needle": Needle,
    "prompted": Prompted,
    "recall": Recall,
    "sft": SFT,
    "text": Text,
}

__all__ = [
    "KINDS",
    "MMLU",
    "PARTITIONS",
    "SFT",
    "Choice",
    "Classify",
    "Dirichlet",
    "HellaSwag",
    "Iid",
    "Natural",
    "Needle",
    "Partition",
    "Prompted",
    "Recall",
    "Sizes",
    "Task",
    "Text",
    "recall_stream",
]
