"""Six data sets of language understanding, asked by prompts: what zeroth-order methods are measured on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from cotune.core.contracts import Corpus, Row
from cotune.core.errors import Code, CotuneError
from cotune.core.events import Say, silent
from cotune.core.seeds import Purpose, Seeds
from cotune.task.asked import Asked
from cotune.task.benchmark import gold, words
from cotune.task.column import by_value
from cotune.task.divide import subset
from cotune.task.forms import Form, Masked, Question, Ranked, Written
from cotune.task.table import Table
from cotune.task.tabular import Parsed, no_text
from cotune.task.templates import DATASETS, Asks


class Prompted(Asked):
    """SST-2, RTE, WiC, MultiRC, BoolQ or SQuAD, asked by the prompts and label words of MeZO.

    Clients train on the split `train` and are tested on `validation`, as the labels of `test` are hidden. A class is
    a word behind the prompt: the loss is the cross-entropy over the words' mean log-probabilities, and the likelier one
    is the answer. SQuAD's answers are written, and scored by F1 and exact match against every right one; the loss is
    that of the first. The sizes are MeZO's: 1,000 rows to train on and 500 to choose by, which clients hold back, and
    1,000 to test on.

    Attributes:
        dataset: which; `data` follows from it where it is not given.
        form: 'causal', or 'masked' for a masked language model such as RoBERTa, at whose mask the word stands; the
            masked prompts of WiC, MultiRC and BoolQ are ours.
        shots: so many rows of each class instead of `limit`; what is held back is among them.
        answer_tokens: the most that a written answer has.
    """

    kind: ClassVar[str] = "prompted"
    version: ClassVar[int] = 1
    aside: ClassVar[tuple[str, ...]] = ("label", "answers")

    dataset: Literal["sst2", "rte", "wic", "multirc", "boolq", "squad"]
    data: str = ""
    form: Literal["causal", "masked"] = "causal"
    limit: Annotated[int, Field(ge=2)] = 1500
    test_limit: Annotated[int, Field(ge=1)] = 1000
    held: Annotated[float, Field(ge=0, lt=1)] = 1 / 3
    max_tokens: Annotated[int, Field(ge=2)] = 512
    shots: Annotated[int, Field(ge=1)] | None = None
    answer_tokens: Annotated[int, Field(ge=1, le=1000)] = 50

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and not given.get("data") and given.get("dataset") in DATASETS:
            return {**given, "data": DATASETS[str(given["dataset"])].data}
        return given

    @model_validator(mode="after")
    def _asked(self) -> Self:
        if self.form == "masked" and self._asks.masked is None:
            raise ValueError(f"{self.dataset} has no word to put at a mask: its answers are written")
        if self.shots is not None and not self._asks.words:
            raise ValueError(f"shots are rows of a class, and {self.dataset} has no classes")
        return self

    @property
    def trained(self) -> tuple[str, ...]:
        """`train`."""
        return ("train",)

    @property
    def tested(self) -> tuple[str, ...]:
        """`validation`."""
        return ("validation",)

    @property
    def way(self) -> Form:
        """Words ranked or put at a mask; answers written."""
        if not self._asks.words:
            return Written(self.answer_tokens)
        return Ranked() if self.form == "causal" else Masked()

    @property
    def _asks(self) -> Asks:
        return DATASETS[self.dataset]

    def parse(self, table: Table) -> Parsed:
        """The rows that have all their texts, each with those, and its `label` or its `answers`.

        Raises:
            CotuneError: E_LABEL for a label that is none of the classes, or hidden.
        """
        asks = self._asks
        label = next((name for name in asks.label if name in table.columns), None)
        needed = asks.columns if label is not None or not asks.words else (*asks.columns, asks.label[0])

        def read(cells: Row, place: str) -> Row | str:
            if reason := next(filter(None, (no_text(cells.get(column)) for column in asks.columns)), ""):
                return reason
            said = dict(zip(asks.columns, (text.strip() for text in words(cells, *asks.columns)), strict=True))
            if label is not None:
                return {**said, "label": gold(cells.get(label), len(asks.words), place)}
            answers = _answers(cells.get("answers"), place)
            return {**said, "answers": answers} if answers else "without an answer"

        parsed = self.useful(table, needed, "all its texts", read)
        labels = {number: row["label"] for number, row in parsed.rows.items()} if asks.words else {}
        return replace(parsed, labels=labels, names=tuple(word.strip() for word in asks.words))

    def used(self, parsed: Parsed, seeds: Seeds) -> list[int]:
        """Which rows are used at all: `limit`, or `shots` of each class.

        Raises:
            CotuneError: E_DATA when a class has fewer.
        """
        if self.shots is None:
            return super().used(parsed, seeds)
        kept, chosen = list(parsed.labels), list[int]()
        for label, places in sorted(by_value([parsed.labels[row] for row in kept]).items()):
            if len(places) < self.shots:
                got = f"{len(places)} of class {label}"
                raise CotuneError(
                    Code.DATA, "too few rows of a class", where="task.shots", got=got, expected=self.shots
                )
            some = subset(len(places), self.shots, seeds.of(Purpose.DATA, "shots", label))
            chosen += [kept[places[place]] for place in some]
        return sorted(chosen)

    def load(self, seeds: Seeds, say: Say = silent) -> Corpus:
        """The data, divided among the clients, and what the larger class alone scores."""
        corpus = super().load(seeds, say)
        if not corpus.labels:
            return corpus
        counts = corpus.facts["test"]["labels"]
        if not sum(counts):
            counts = [sum(column) for column in zip(*corpus.facts["labels"].values(), strict=True)]
        share = max(counts) / sum(counts)
        return replace(corpus, chance={name: share for name in self.metrics if name.startswith("accuracy")})

    def topic(self, row: Row) -> str:
        """The article of a question of SQuAD."""
        return str(row.get("title", ""))

    def question(self, row: Row) -> Question:
        """The prompt, and the words or the right answers behind it."""
        asks = self._asks
        if not asks.words:
            return Question(asks.prompt(row), tuple(f" {answer}" for answer in row["answers"]))
        if self.form == "causal" or asks.masked is None:
            return Question(asks.prompt(row), asks.words, row["label"])
        gap = asks.masked(row)
        return Question(gap.before, tuple(f" {word.strip()}" for word in asks.words), row["label"], gap.behind)


def _answers(cell: Any, place: str) -> tuple[str, ...]:
    """The texts of SQuAD's `answers`, each once; none where the question has no answer.

    Raises:
        CotuneError: E_DATA for a cell that is no table of texts.
    """
    found = cell.get("text") if isinstance(cell, Mapping) else None
    if not isinstance(found, list | tuple) or not all(isinstance(text, str) for text in found):
        what = "not a list of answers"
        raise CotuneError(Code.DATA, what, where=place, expected="a table with a list of texts, `text`")
    return tuple(dict.fromkeys(text.strip() for text in found if text.strip()))
