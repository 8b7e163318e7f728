"""HellaSwag: which of four endings goes on from what happens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

from cotune.core.contracts import Corpus, Row
from cotune.core.events import Say, silent
from cotune.core.seeds import Seeds
from cotune.task.asked import Asked
from cotune.task.benchmark import gold, texts, words
from cotune.task.forms import Form, Paired, Question, Ranked
from cotune.task.partition import Dirichlet, Partition
from cotune.task.table import Table
from cotune.task.tabular import Parsed

ENDINGS = 4
_TITLE, _BRACKETS, _BLANKS = " [title]", re.compile(r"\[.*?\]"), re.compile(r" {2,}")


class HellaSwag(Asked):
    """HellaSwag (Zellers et al. 2019): the ending, of four, that goes on from a description or a WikiHow step.

    Clients train on the split `train` and are tested on `validation`, whose labels are published; where nothing else is
    said, ten of them, by Dirichlet 0.3 over `activity_label`, as in the released runs of Subspace-Reg LoRA. Strata of
    the test are `indomain` and `zeroshot`.

    Attributes:
        form: 'causal' ranks endings by the mean log-probability of their tokens, and beside it by the sum and by the
            sum a byte, which harnesses call acc and acc_norm (some divide by characters); 'choice' trains a
            multiple-choice head of an encoder.
        wording: 'harness' puts `activity_label: ` before the context, begins its second part with a capital, and
            leaves out what stands in brackets; 'paper' is that of Subspace-Reg LoRA, without these three. Numbers by
            one wording do not compare with numbers by the other.
    """

    kind: ClassVar[str] = "hellaswag"
    version: ClassVar[int] = 1
    aside: ClassVar[tuple[str, ...]] = ("label", "stratum")

    data: str = "Rowan/hellaswag"
    form: Literal["causal", "choice"] = "causal"
    wording: Literal["harness", "paper"] = "harness"

    @property
    def trained(self) -> tuple[str, ...]:
        """`train`."""
        return ("train",)

    @property
    def tested(self) -> tuple[str, ...]:
        """`validation`: the labels of `test` are hidden."""
        return ("validation",)

    @property
    def way(self) -> Form:
        """Endings ranked by a causal model, or pairs with a head."""
        return Ranked() if self.form == "causal" else Paired()

    def usual(self) -> Partition:
        """Ten clients, whose activities differ."""
        return Dirichlet(clients=10, alpha=0.3, by="activity_label", minimum=8)

    def parse(self, table: Table) -> Parsed:
        """The rows that have a context: activity, both parts of the context, endings and label.

        Raises:
            CotuneError: E_LABEL for a label that is none of the four, or hidden; E_DATA for what is no row.
        """

        def read(cells: Row, place: str) -> Row | str:
            first, second, whole = words(cells, "ctx_a", "ctx_b", "ctx")
            activity, stratum = words(cells, "activity_label", "split_type")
            if not (first or whole).strip():
                return "without a context"
            return {
                "activity": activity,
                "context": (first, second) if first.strip() else (whole, ""),
                "endings": texts(cells.get("endings"), ENDINGS, place),
                "label": gold(cells.get("label"), ENDINGS, place),
                "stratum": stratum,
            }

        return self.useful(table, ("endings", "label"), "a context", read)

    def load(self, seeds: Seeds, say: Say = silent) -> Corpus:
        """The data, divided among the clients; guessing is right in one of four rows."""
        chance = {name: 1 / ENDINGS for name in self.metrics if name.startswith("accuracy")}
        return replace(super().load(seeds, say), chance=chance)

    def question(self, row: Row) -> Question:
        """The context, and each ending behind a blank."""
        clean = _harness if self.wording == "harness" else _paper
        return Question(
            prompt=clean(_context(row, self.wording)),
            options=tuple(f" {clean(ending)}" for ending in row["endings"]),
            gold=row["label"],
        )

    def topic(self, row: Row) -> str:
        """The activity."""
        return str(row["activity"])

    def cell(self, row: Row) -> str:
        """`indomain` or `zeroshot`: whether training rows have activities of the same kind."""
        return str(row["stratum"])


def _context(row: Mapping[str, Any], wording: str) -> str:
    first, second = row["context"]
    if wording == "paper":
        return f"{first} {second}"
    activity = f"{row['activity']}: " if row["activity"] else ""
    return f"{activity}{first} {second.capitalize()}"


def _paper(text: str) -> str:
    """One line: WikiHow's mark of a title as the end of a sentence, and single blanks."""
    return _BLANKS.sub(" ", text.replace(_TITLE, ". ")).strip()


def _harness(text: str) -> str:
    """The harness's own order: the same mark, then without what stands in brackets, then two blanks as one, once."""
    return _BRACKETS.sub("", text.strip().replace(_TITLE, ". ")).replace("  ", " ")
