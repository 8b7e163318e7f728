"""Data and how a model is trained and scored on it. One file a task, one line here."""

from collections.abc import Mapping

from cotune.core.contracts import Task
from cotune.task.choice import Choice
from cotune.task.classify import Classify
from cotune.task.hellaswag import HellaSwag
from cotune.task.mmlu import MMLU
from cotune.task.needle import Needle
from cotune.task.partition import Dirichlet, Iid, Natural, Partition, Sizes
from cotune.task.partitions import PARTITIONS, Alone, Classes, Domains, FewShot, LongTail, Quantity
from cotune.task.prompted import Prompted
from cotune.task.recall import Recall
from cotune.task.ruler import Ruler
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
    "ruler": Ruler,
    "sft": SFT,
    "text": Text,
}

__all__ = [
    "KINDS",
    "MMLU",
    "PARTITIONS",
    "SFT",
    "Alone",
    "Choice",
    "Classes",
    "Classify",
    "Dirichlet",
    "Domains",
    "FewShot",
    "HellaSwag",
    "Iid",
    "LongTail",
    "Natural",
    "Needle",
    "Partition",
    "Prompted",
    "Quantity",
    "Recall",
    "Ruler",
    "Sizes",
    "Task",
    "Text",
    "recall_stream",
]
