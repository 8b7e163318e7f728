"""What surrounds the events: sentences of our own grammar, or of a data set; endless, and drawn by seed."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from cotune.core.errors import Code, CotuneError
from cotune.core.events import Say
from cotune.core.seeds import derive
from cotune.task.prose import sentence
from cotune.task.table import read
from cotune.task.tabular import no_text

SYNTHETIC = "synthetic"
_ENDS = re.compile(r"(?<=[.!?])\s+")
_PARAGRAPH = 5  # sentences of synthetic prose, of which the first begins afresh


@dataclass(frozen=True)
class Filler:
    """A source of sentences.

    Attributes:
        pool: the sentences of a data set, in their order; empty for synthetic ones.
    """

    pool: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, reference: str, say: Say) -> Filler:
        """The filler that a name or a data reference with a column `text` stands for.

        Raises:
            CotuneError: E_DATA when the data has no column `text`, or no sentence in it, and as reading it does.
        """
        if reference == SYNTHETIC:
            return cls()
        cells = read(reference, say).cells("text", reference)
        pool = tuple(said for cell in cells if not no_text(cell) for said in _ENDS.split(" ".join(cell.split())))
        if not pool:
            raise CotuneError(Code.DATA, "no row has a text in column 'text'", where=reference)
        return cls(pool)

    def sentences(self, seed: int) -> Iterator[str]:
        """Sentences without an end; of a data set, those that follow each other from a drawn place on."""
        draw = random.Random(derive(seed, "filler"))
        if self.pool:
            start = draw.randrange(len(self.pool))
            yield from (self.pool[(start + number) % len(self.pool)] for number in count())
        yield from (sentence(draw, number % _PARAGRAPH) for number in count())
