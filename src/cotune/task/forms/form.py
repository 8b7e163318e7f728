"""What every way of asking has: questions as token ids, a loss, scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import functional

from cotune.core.contracts import Batch, Encoded
from cotune.task.best import right, tied


@dataclass(frozen=True)
class Question:
    """What a row asks.

    Attributes:
        prompt: what stands before the answer.
        options: possible answers, each with the blank that parts it from the prompt; where an answer is written, all
            that are right.
        gold: the number of the right one.
        behind: what stands after the answer, where a word is missing in the middle.
    """

    prompt: str
    options: tuple[str, ...]
    gold: int = 0
    behind: str = ""


class Form(ABC):
    """A way of asking: a frozen value."""

    head: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]]

    @abstractmethod
    def encode(self, questions: Sequence[Question], tokenizer: Any, limit: int) -> Encoded:
        """Questions as examples of at most `limit` tokens a sequence; those that cannot be cut to fit are dropped."""

    @abstractmethod
    def collate(self, examples: Sequence[Mapping[str, Any]], tokenizer: Any) -> Batch:
        """Examples as one padded batch."""

    @abstractmethod
    def losses(self, model: Callable[..., Any], batch: Batch) -> Tensor:
        """Training losses (rows,), float32."""

    @abstractmethod
    def scores(self, model: Callable[..., Any], batch: Batch) -> dict[str, Tensor]:
        """Metric -> (rows,) float32."""

    def judged(
        self, model: Callable[..., Any], batch: Batch, examples: Sequence[Mapping[str, Any]], tokenizer: Any
    ) -> dict[str, Tensor]:
        """All of `metrics` -> (rows,) float32."""
        del examples, tokenizer
        return self.scores(model, batch)


class Choosing(Form):
    """A way of asking that gives every option a number: the loss is the cross-entropy of their softmax."""

    metrics: ClassVar[tuple[str, ...]] = ("loss", "accuracy", "tied")

    @abstractmethod
    def numbers(self, model: Callable[..., Any], batch: Batch) -> Tensor:
        """A number for every option (rows, options), float32."""

    def losses(self, model: Callable[..., Any], batch: Batch) -> Tensor:
        """−log softmax of the right option's number (rows,), float32."""
        return functional.cross_entropy(self.numbers(model, batch), batch["gold"], reduction="none")

    def scores(self, model: Callable[..., Any], batch: Batch) -> dict[str, Tensor]:
        """`loss`, `accuracy`, and whether the two best options are `tied`."""
        numbers = self.numbers(model, batch)
        loss = functional.cross_entropy(numbers, batch["gold"], reduction="none")
        return {"loss": loss, "accuracy": right(numbers, batch["gold"]), "tied": tied(numbers)}
