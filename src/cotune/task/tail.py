"""The long tail: which rows are of classes that few clients have, and who has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cotune.core.contracts import Row, Split
from cotune.core.record import HEAD, TAIL
from cotune.task.column import by_class
from cotune.task.partition import Partition


@dataclass(frozen=True)
class Tail:
    """What a division whose rare classes few clients have says of rows; of another division there is nothing to say.

    Attributes:
        rare: class of the tail -> its positions among the rows that were divided.
        own: `head` or `tail`, of each row that was divided.
        test: the same of each test row, '' for a class that nobody has.
    """

    rare: Mapping[Hashable, Sequence[int]]
    own: Sequence[str] = ()
    test: Sequence[str] = ()

    @classmethod
    def of(cls, partition: Partition, own: Sequence[Hashable], test: Sequence[Hashable]) -> Tail:
        """The tail that a partition makes of rows of the classes `own`; `test` are the classes of the test rows."""
        rare = partition.rare(own)
        if not rare:
            return cls({})
        groups = by_class(own)
        strata = {name: TAIL if name in rare else HEAD for name in groups}
        return cls(
            {name: rows for name, rows in groups.items() if name in rare},
            _each(groups, strata, len(own)),
            _each(by_class(test), strata, len(test)),
        )

    def facts(
        self, by: str | None, names: Sequence[str], rows: Sequence[Row], clients: Mapping[str, Split]
    ) -> dict[str, Any]:
        """`tail` for the facts of a corpus: rare class -> who has it, and how many rows are of head and tail.

        Args:
            by: the column of the classes; None for the label.
            names: of labels, which are numbers.
            rows: that were divided.
            clients: what each kept of them.
        """
        if not self.rare:
            return {}
        place = {id(row): number for number, row in enumerate(rows)}  # a client's rows are the same objects
        kept = {client: [place[id(row)] for row in (*s.train, *s.held)] for client, s in clients.items()}
        owner = {number: client for client, numbers in kept.items() for number in numbers}
        holders = {
            str(name) if by is not None or not isinstance(name, int) else names[name]: sorted(
                {owner[number] for number in numbers if number in owner}
            )
            for name, numbers in self.rare.items()
        }
        counts = {client: Counter(self.own[number] for number in numbers) for client, numbers in kept.items()}
        return {
            "tail": {
                "by": by or "label",
                "classes": holders,
                "clients": {client: {HEAD: count[HEAD], TAIL: count[TAIL]} for client, count in counts.items()},
                "test": {HEAD: self.test.count(HEAD), TAIL: self.test.count(TAIL), "other": self.test.count("")},
            }
        }


def _each(groups: Mapping[Hashable, Sequence[int]], strata: Mapping[Hashable, str], count: int) -> list[str]:
    """The stratum of each of `count` rows, '' for a class that has none."""
    found = [""] * count
    for name, rows in groups.items():
        for row in rows:
            found[row] = strata.get(name, "")
    return found
