"""Every kind of division. One file a kind, one line here; the four oldest are together in task/partition.py."""

from collections.abc import Mapping

from cotune.task.partition import Dirichlet, Iid, Natural, Partition, Sizes
from cotune.task.partitions.alone import Alone
from cotune.task.partitions.classes import Classes
from cotune.task.partitions.domains import Domains
from cotune.task.partitions.few_shot import FewShot
from cotune.task.partitions.long_tail import LongTail
from cotune.task.partitions.quantity import Quantity

PARTITIONS: Mapping[str, type[Partition]] = {
    "alone": Alone,
    "classes": Classes,
    "dirichlet": Dirichlet,
    "domains": Domains,
    "few-shot": FewShot,
    "iid": Iid,
    "long-tail": LongTail,
    "natural": Natural,
    "quantity": Quantity,
    "sizes": Sizes,
}

__all__ = ["PARTITIONS", "Alone", "Classes", "Domains", "FewShot", "LongTail", "Quantity"]
