"""Multiple choice on a table of one's own: question, four options, and which of them is right."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, ClassVar

from pydantic import Field

from cotune.core.contracts import Corpus, Row
from cotune.core.events import Say, silent
from cotune.core.seeds import Seeds
from cotune.task import letters
from cotune.task.benchmark import choices, words
from cotune.task.divide import Identity
from cotune.task.letters import LETTERS, Read, asked
from cotune.task.table import Table
from cotune.task.tabular import Parsed, Tabular, no_text


class Choice(letters.Choice, Tabular):
    """Questions with four options, answered by the letter of the right one.

    The columns are `question`, `choices` (a list of four texts) and `answer` (a number from 0). The prompt is the
    question, a line for each option, and `Answer:`; the loss is that of the right letter's token.

    Attributes:
        max_tokens: the most tokens of a prompt; longer ones are dropped and counted.
    """

    kind: ClassVar[str] = "choice"
    version: ClassVar[int] = 1

    max_tokens: Annotated[int, Field(ge=2)] = 256

    @property
    def identity(self) -> Identity:
        """What makes two rows the same: question and options, and the right one."""
        return lambda row: (json.dumps([row["question"], row["options"]], ensure_ascii=False), row["gold"])

    def parse(self, table: Table) -> Parsed:
        """The rows that have a question: question, options, `gold`.

        Raises:
            CotuneError: E_LABEL for an answer that is none of the four; E_DATA for what is no list of four options.
        """

        def read(cells: Row, place: str) -> Row | str:
            return no_text(*words(cells, "question")) or choices(cells, len(LETTERS), place)

        parsed = self.useful(table, ("question", "choices", "answer"), "a question", read)
        labels = {number: row["gold"] for number, row in parsed.rows.items()}
        return replace(parsed, labels=labels, names=LETTERS)

    def load(self, seeds: Seeds, say: Say = silent) -> Corpus:
        """The data, divided among the clients; guessing is right in one of four rows."""
        return replace(super().load(seeds, say), labels=(), chance={"accuracy": 1 / len(LETTERS)})

    def prompt(self, row: Row, read: Read, limit: int) -> list[int] | None:
        """The ids of the question with its options; None where they are too many."""
        ids = read(asked(row["question"], row["options"]))
        return ids if len(ids) <= min(limit, self.max_tokens) else None
