"""What a task makes of data: rows divided among clients, and rows as token ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

Row = Mapping[str, Any]
Batch = dict[str, Tensor]
Identity = Callable[[Row], tuple[str, object]]


def text_and_label(row: Row) -> tuple[str, object]:
    """The text of a row, and its label where it has one."""
    return row["text"], row.get("label", "")


@dataclass(frozen=True)
class Split:
    """A client's rows: to train on, and held back to score on."""

    train: Sequence[Row]
    held: Sequence[Row]


@dataclass(frozen=True)
class Corpus:
    """A task's data, divided.

    Attributes:
        clients: id -> rows; a client may be empty.
        test: rows that no client holds.
        head: the kind of model head that the task needs, as `Task.head` says it.
        labels: class names, in the order of their numbers; empty where there are none.
        chance: metric -> what guessing scores.
        facts: counts worth reporting: rows read, skipped by reason, per-client label counts.
        strata: what the division says of each test row, '' for nothing; empty where it says nothing of any.
        identity: what makes two rows the same, and what else their hashes cover.
    """

    clients: Mapping[str, Split]
    test: Sequence[Row]
    head: str
    labels: tuple[str, ...]
    chance: Mapping[str, float]
    facts: Mapping[str, Any] = field(default_factory=dict)
    strata: Sequence[str] = ()
    identity: Identity = field(default=text_and_label, compare=False, repr=False)

    def cells(self, number: int, cell: str) -> tuple[str, ...]:
        """The strata of a test row: `cell`, which the task says, and the one that the division says; both or none."""
        return tuple(stratum for stratum in (cell, self.strata[number] if self.strata else "") if stratum)

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels that a head tells apart by itself; none where they are words that a language model says."""
        return self.labels if self.head == "classification" else ()


@dataclass(frozen=True)
class Encoded:
    """Rows as token ids.

    Attributes:
        examples: what is batched; a long row may make several, and one without a use none.
        truncated: rows that were cut to fit.
        dropped: reason -> rows that make no example.
        sources: the number of the row behind each example; None where nobody asks.
    """

    examples: Sequence[Mapping[str, Any]]
    truncated: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    sources: Sequence[int] | None = None

    def first(self, count: int | None) -> Encoded:
        """The same with at most `count` examples."""
        return replace(self, examples=self.examples[:count], sources=self.sources and self.sources[:count])
