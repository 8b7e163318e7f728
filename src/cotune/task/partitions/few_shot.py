"""Some clients with a handful of rows beside others with plenty."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from cotune.core.contracts import Row
from cotune.core.errors import Code, CotuneError
from cotune.core.seeds import derive, numpy_generator
from cotune.task.column import by_class
from cotune.task.dealing import deal, enough, numbered
from cotune.task.partition import Clients, Partition, classed


class FewShot(Partition):
    """A few rows for each of the first clients, and the rest shuffled and dealt evenly to the others.

    Attributes:
        clients: how many, those with few rows among them.
        few: clients with few rows, the first by number.
        shots: rows that each of those has; what it holds back to be scored on is among them.
        of: 'class' for so many rows of each class, 'client' for so many in all.
        by: the column that holds the classes; None for the label.
    """

    kind: ClassVar[str] = "few-shot"

    clients: Clients
    few: Annotated[int, Field(ge=1)] = 1
    shots: Annotated[int, Field(ge=1)]
    of: Literal["class", "client"] = "class"
    by: str | None = None

    @model_validator(mode="after")
    def _some_have_more(self) -> Self:
        if self.few >= self.clients:
            raise ValueError(f"few = {self.few} of {self.clients} clients: at least one takes the rest")
        if self.of == "client" and self.by is not None:
            raise ValueError("by names classes, and of = 'client' has none")
        return self

    @property
    def column(self) -> str | None:
        """`by`."""
        return self.by

    @property
    def labelled(self) -> bool:
        """Where rows of each class are counted, and nothing else is named."""
        return self.of == "class" and self.by is None

    def split(self, rows: Sequence[Row], labels: Sequence[Hashable], seed: int) -> dict[str, list[int]]:
        """Client id -> positions.

        Raises:
            CotuneError: E_DATA when a class has too few rows, or when the rest are fewer than the other clients.
        """
        groups = [list(range(len(rows)))]
        if self.of == "class":
            groups = sorted(by_class(classed(rows, labels, self.by)).values(), key=len, reverse=True)
        given = self.few * self.shots
        generator = numpy_generator(derive(int(seed), "few-shot"))
        parts: list[list[int]] = [[] for _ in range(self.clients)]
        rest: list[int] = []
        for group in groups:
            if len(group) < given:
                got = f"a class of {len(group)} rows" if self.of == "class" else f"{len(group)} rows"
                expected = f"at least {given}, {self.shots} for each of {self.few}"
                raise CotuneError(
                    Code.DATA, "too few rows for this partition", where="few-shot", got=got, expected=expected
                )
            order = generator.permutation(group).tolist()
            deal(order[:given], parts, range(self.few))
            rest += order[given:]
        others = range(self.few, self.clients)
        enough(len(rest), len(others), 1, "few-shot, the other clients")
        deal(generator.permutation(rest).tolist(), parts, others)
        return numbered([sorted(part) for part in parts])
