"""Needles in the structure of RULER: values in haystacks of three kinds, which a model writes down."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from cotune.core.contracts import Corpus, Encoded, Row
from cotune.core.events import Say, silent
from cotune.core.seeds import Purpose, Seeds, derive
from cotune.task.asked import Formed
from cotune.task.drawn import drawn, many
from cotune.task.forms import Contained, Question
from cotune.task.letters import TOO_LONG, Read
from cotune.task.needle import Length
from cotune.task.needles import SUITE, SYNTHETIC, Filler, buried, dealt, fitted, hay, needles
from cotune.task.tokens import opened

Name = Literal["single-1", "single-2", "single-3", "multikey-1", "multikey-2", "multikey-3", "multivalue", "multiquery"]
_BANDS = 4  # of depth, in which rows are counted together


class Ruler(Formed):
    """Needles in the structure of RULER (Hsieh et al. 2024): values in haystacks, written down; a task is one client.

    As there: the eight tasks; keys of words or UUIDs, values of seven digits or version-4 UUIDs; haystacks of `noise`
    (five short sentences, line by line), `essay`, and `needle` (lines of the same form with other keys); needles at 40
    depths of an essay, between its sentences, and at any line of the others; as much haystack as leaves 128 tokens of
    the length for the answer; and the score: the share of the right values that the answer contains, whatever their
    case. **Not as there**: the wording, the words and the essays, which are ours and synthetic, so that scores compare
    with no published ones; an essay grows by sentences, not by words; and there are rows to train on. What is learned
    is the values after the answer's first words, then the end of text.

    Guessing scores nothing; of multikey-1, any of the four values that stand there is the right one in a quarter of
    the rows. Lengths that the model does not take are dropped and counted.

    Attributes:
        clients: which of the eight.
        lengths: of prompt and answer, in tokens, in turn.
        long: lengths that only test rows have.
        rows: that each client trains on.
        held: rows that it holds back to score on, beside those, as a share of them; at least one, unless it is 0.
        test_rows: test rows of each task at each length.
        answer_tokens: the most that an answer has; each takes a pass over the whole row.
        filler: of essays: 'synthetic', or the reference of data with a column `text`.
        seed: of the rows, together with the experiment's.
    """

    kind: ClassVar[str] = "ruler"
    version: ClassVar[int] = 1

    clients: Annotated[tuple[Name, ...], BeforeValidator(many), Field(min_length=1)] = (
        "single-1",
        "single-2",
        "single-3",
        "multikey-1",
        "multikey-2",
        "multikey-3",
        "multivalue",
        "multiquery",
    )
    lengths: Annotated[tuple[Length, ...], BeforeValidator(many), Field(min_length=1)] = (1024, 2048, 4096)
    long: Annotated[tuple[Length, ...], BeforeValidator(many)] = ()
    rows: Annotated[int, Field(ge=1, le=10**7)] = 750
    held: Annotated[float, Field(ge=0, le=1)] = 0.02
    test_rows: Annotated[int, Field(ge=0, le=10**6)] = 5
    answer_tokens: Annotated[int, Field(ge=1, le=10**4)] = 128
    filler: Annotated[str, Field(min_length=1)] = SYNTHETIC
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    @property
    def way(self) -> Contained:
        """How a row is asked: its values are written down."""
        return Contained(self.answer_tokens)

    def load(self, seeds: Seeds, say: Say = silent) -> Corpus:
        """The rows of every task; a function of the data seed and the fields alone.

        Raises:
            CotuneError: E_DATA when the filler cannot be had.
        """
        named: list[str] = [name for name in SUITE if name in self.clients]
        filler = Filler.of(self.filler, say)
        root = seeds.of(Purpose.DATA, self.kind, self.seed)

        def make(name: str, use: str, index: int, lengths: Sequence[int]) -> Row:
            seed = derive(root, name, use, index)
            return {
                "needles": needles(SUITE[name], random.Random(derive(seed, "needles"))),
                "task": name,
                "length": lengths[index % len(lengths)],
                "filler": filler,
                "seed": seed,
                "place": f"{name}, row {index + 1}",
            }

        clients, test = dealt(self, make, named, named)
        return drawn(
            clients,
            test,
            data=SYNTHETIC if self.filler == SYNTHETIC else f"synthetic needles in {self.filler}",
            partition={"kind": "task"},
            chance={"accuracy": 0.0},
            identity=_content,
        )

    def cell(self, row: Row) -> str:
        """`single-1 · length 1024 · depth 0.25 to 0.5`; `every depth` where several needles are asked for."""
        depth = row["needles"].depth
        band = min(int(depth * _BANDS), _BANDS - 1) if depth is not None else 0
        where = "every depth" if depth is None else f"depth {band / _BANDS:g} to {(band + 1) / _BANDS:g}"
        return f"{row['task']} · length {row['length']} · {where}"

    def encode(self, rows: Sequence[Row], tokenizer: Any, limit: int) -> Encoded:
        """Each row that fits, as `Contained` makes it."""

        def read(text: str) -> list[int]:
            return opened([text], tokenizer)[0][0]

        questions = [(number, self.question(row, read, limit)) for number, row in enumerate(rows)]
        fit = [(number, question) for number, question in questions if question is not None]
        made = self.way.encode([question for _, question in fit], tokenizer, limit)
        dropped = Counter(made.dropped)
        dropped[TOO_LONG] += len(rows) - len(fit)
        return replace(made, dropped=+dropped, sources=[fit[source][0] for source in made.sources or ()])

    def question(self, row: Row, read: Read, limit: int) -> Question | None:
        """The prompt with as much haystack as fits before an answer, and the right values; None where it is too long.

        Args:
            row: of the task.
            read: the ids of a text.
            limit: how many tokens the model takes.
        """
        if row["length"] > limit:
            return None
        sought, hidden = SUITE[row["task"]], row["needles"]

        def make(units: Sequence[str]) -> str:
            return "\n".join((hidden.about, buried(sought, hidden, units), hidden.question))

        units = hay(sought, row["seed"], hidden, row["filler"])
        found = fitted(make, units, read, row["length"] - self.answer_tokens)
        return Question(found[0], hidden.values) if found else None


def _content(row: Row) -> tuple[str, object]:
    """What makes two rows the same: what is hidden and what is asked; then the rest, the seed for the haystack."""
    hidden = row["needles"]
    said = json.dumps([hidden.events, hidden.question], ensure_ascii=False)
    return said, [*hidden.values, row["length"], row["seed"]]
