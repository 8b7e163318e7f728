"""Needles in haystacks: four-choice questions about events that stand somewhere in a long text."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from cotune.core.contracts import Corpus, Row
from cotune.core.errors import Code, CotuneError
from cotune.core.events import Say, silent
from cotune.core.seeds import Purpose, Seeds, derive
from cotune.task.drawn import drawn, many
from cotune.task.letters import LETTERS, Choice, Read, asked
from cotune.task.needles import SYNTHETIC, TEMPLATES, Filler, dealt, fitted, haystack
from cotune.task.needles.templates import DEPTHS

Name = Literal["passkey", "uuid", "name-date", "phrase", "counter", "multi-key", "multi-value"]
Length = Annotated[int, Field(ge=64, le=2**24)]


class Needle(Choice):
    """Needles in haystacks: four-choice questions about events in a long text; a template is one client.

    Four events of a kind stand at depths 0.1, 0.3, 0.5 and 0.7 of synthetic or real filler; one of them is asked for,
    and the wrong options are the values of the others. A counter has eight events, evenly spread, and all of them
    decide. Lengths are in tokens of the model: as many sentences of filler as fit, so that a prompt is never longer and
    one more sentence would not fit. Rows of lengths that the model does not take are dropped and counted. The clients,
    the depths and the sizes are those of FedNL (appendix C.3, table 4); its long split is `long = [8192, 16384]`.

    Attributes:
        clients: the templates.
        lengths: of prompts, in tokens, in turn.
        long: lengths that only test rows have.
        rows: that each client trains on.
        held: rows that it holds back to score on, beside those, as a share of them; at least one, unless it is 0.
        test_rows: test rows of each template at each length; the depths take turns.
        leave_out: a template that nobody trains on, and that all test rows are of.
        filler: 'synthetic', or the reference of data with a column `text`.
        seed: of the rows, together with the experiment's.
    """

    kind: ClassVar[str] = "needle"
    version: ClassVar[int] = 1

    clients: Annotated[tuple[Name, ...], BeforeValidator(many), Field(min_length=1)] = (
        "passkey",
        "uuid",
        "name-date",
        "phrase",
        "counter",
        "multi-key",
        "multi-value",
    )
    lengths: Annotated[tuple[Length, ...], BeforeValidator(many), Field(min_length=1)] = (1024, 2048, 4096)
    long: Annotated[tuple[Length, ...], BeforeValidator(many)] = ()
    rows: Annotated[int, Field(ge=1, le=10**7)] = 750
    held: Annotated[float, Field(ge=0, le=1)] = 0.02
    test_rows: Annotated[int, Field(ge=0, le=10**6)] = 5
    leave_out: Name | None = None
    filler: Annotated[str, Field(min_length=1)] = SYNTHETIC
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    def load(self, seeds: Seeds, say: Say = silent) -> Corpus:
        """The rows of every template; a function of the data seed and the fields alone.

        Raises:
            CotuneError: E_CONFIG when no template is left to train on; E_DATA when the filler cannot be had.
        """
        named: list[str] = [name for name in TEMPLATES if name in self.clients and name != self.leave_out]
        if not named:
            what = "the only client is left out"
            raise CotuneError(Code.CONFIG, what, where="task.leave_out", got=self.leave_out, fix="name more clients")
        filler = Filler.of(self.filler, say)
        root = seeds.of(Purpose.DATA, self.kind, self.seed)

        def make(name: str, use: str, index: int, lengths: Sequence[int]) -> Row:
            return self._row(name, index, lengths, filler, derive(root, name, use, index))

        clients, test = dealt(self, make, named, named if self.leave_out is None else [self.leave_out])
        return drawn(
            clients,
            test,
            data=SYNTHETIC if self.filler == SYNTHETIC else f"synthetic events in {self.filler}",
            partition={"kind": "template", "leave_out": self.leave_out},
            chance={"accuracy": 1 / len(LETTERS)},
            identity=_content,
        )

    def prompt(self, row: Row, read: Read, limit: int) -> list[int] | None:
        """The ids of the haystack and the question, as long as the row is to be; None where that is too long."""
        if row["length"] > limit:
            return None
        question = asked(row["question"], row["options"])

        def make(sentences: Sequence[str]) -> str:
            return haystack(row["events"], row["places"], sentences, question)

        found = fitted(make, row["filler"].sentences(row["seed"]), read, row["length"])
        return found[1] if found else None

    def cell(self, row: Row) -> str:
        """`depth 0.3 · length 1024`; of a counter, all of whose events count, `every depth · length 1024`."""
        return f"{row['depth']} · length {row['length']}"

    def _row(self, name: str, index: int, lengths: Sequence[int], filler: Filler, seed: int) -> Row:
        """A row: lengths take turns, and for each of them the depths; templates begin with different ones."""
        draw = random.Random(derive(seed, "events"))
        turn = (index // len(lengths) + list(TEMPLATES).index(name)) % len(DEPTHS)
        hidden = TEMPLATES[name](draw, turn)
        gold, (answer, *others) = draw.randrange(len(LETTERS)), hidden.values
        draw.shuffle(others)
        return {
            "events": hidden.events,
            "places": hidden.places,
            "question": hidden.question,
            "options": (*others[:gold], answer, *others[gold:]),
            "gold": gold,
            "depth": f"depth {DEPTHS[turn]}" if hidden.places == DEPTHS else "every depth",
            "length": lengths[index % len(lengths)],
            "filler": filler,
            "seed": seed,
            "place": f"{name}, row {index + 1}",
        }


def _content(row: Row) -> tuple[str, object]:
    """What makes two rows the same: what is hidden and what is asked; then the rest, the seed for the filler."""
    said = json.dumps([row["events"], row["question"]], ensure_ascii=False)
    return said, [row[name] for name in ("options", "gold", "length", "seed")]
