"""Tasks whose rows are questions, asked in one of several forms; published data sets of such rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field
from torch import Tensor

from cotune.core.contracts import Batch, Encoded, Row, Task
from cotune.task.benchmark import Benchmark
from cotune.task.forms import Form, Question


class Formed(Task):
    """A task that leaves to a form how a model learns and is scored; subclasses say which, and what is asked in it."""

    rowwise: ClassVar[bool] = False  # at most one example of a row; `sources` says of which

    @property
    @abstractmethod
    def way(self) -> Form:
        """How a question is asked."""

    @property
    def head(self) -> str:
        """The head that the form needs."""
        return self.way.head

    @property
    def metrics(self) -> tuple[str, ...]:
        """What the form scores."""
        return self.way.metrics

    def collate(self, examples: Sequence[Mapping[str, Any]], tokenizer: Any) -> Batch:
        """Examples as one padded batch."""
        return self.way.collate(examples, tokenizer)

    def losses(self, model: Callable[..., Any], batch: Batch) -> Tensor:
        """Training losses (rows,), float32."""
        return self.way.losses(model, batch)

    def scores(self, model: Callable[..., Any], batch: Batch) -> dict[str, Tensor]:
        """Metric -> (rows,) float32; of what a model writes, the loss alone."""
        return self.way.scores(model, batch)

    def judged(
        self, model: Callable[..., Any], batch: Batch, examples: Sequence[Mapping[str, Any]], tokenizer: Any
    ) -> dict[str, Tensor]:
        """Metric -> (rows,) float32, with what an answer that the model writes comes to."""
        return self.way.judged(model, batch, examples, tokenizer)


class Asked(Formed, Benchmark):
    """A benchmark whose rows are questions; subclasses say what they are, and the form in which they are asked.

    Attributes:
        max_tokens: the most tokens of a sequence; a prompt is cut on its left, and the row counted.
    """

    max_tokens: Annotated[int, Field(ge=2)] = 256

    @abstractmethod
    def question(self, row: Row) -> Question:
        """What a row asks."""

    def encode(self, rows: Sequence[Row], tokenizer: Any, limit: int) -> Encoded:
        """Each row that fits, as its form makes it."""
        return self.way.encode([self.question(row) for row in rows], tokenizer, min(limit, self.max_tokens))
