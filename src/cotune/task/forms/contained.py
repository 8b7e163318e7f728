"""Answers of several values that a causal model writes: which of them stand in what it wrote, wherever."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from cotune.core.contracts import Batch
from cotune.task.forms.form import Question
from cotune.task.forms.written import Written, written
from cotune.task.tokens import ended, opened


@dataclass(frozen=True)
class Contained(Written):
    """Every option is a value that is right: all are learned in their order, and looked for in what is written.

    What is learned is ` A, B, C` and the end of text, where the tokenizer has one. What is written has `most` tokens or
    comes to an end of text before; a line end is none. It also stops where all values stand in it, as more of it could
    change no score.
    """

    metrics: ClassVar[tuple[str, ...]] = ("loss", "accuracy", "cut_short")

    most: int = 128

    def learned(self, questions: Sequence[Question], tokenizer: Any) -> list[tuple[list[int], int]]:
        """The ids of each prompt with all its values and the end of text, and those before it, as `opened` does."""
        texts = [f"{question.prompt} {', '.join(question.options)}" for question in questions]
        return [(ended(ids, tokenizer), special) for ids, special in opened(texts, tokenizer)]

    def judged(
        self, model: Callable[..., Any], batch: Batch, examples: Sequence[Mapping[str, Any]], tokenizer: Any
    ) -> dict[str, Tensor]:
        """`loss`, `accuracy` = Σ [value in answer] / values, and `cut_short`: neither ended nor all values there."""
        values = [one["answers"] for one in examples]

        def all_there(row: int, text: str) -> bool:
            return share(values[row], text) == 1.0

        prompts, device = [one["asks"] for one in examples], batch["input_ids"].device
        told = written(model, prompts, tokenizer, self.most, device, done=all_there)
        shares = [share(some, text) for some, (text, _) in zip(values, told, strict=True)]
        return {
            "loss": self.losses(model, batch),
            "accuracy": torch.tensor(shares),
            "cut_short": torch.tensor([float(not done) for _, done in told]),
        }


def share(values: Sequence[str], text: str) -> float:
    """Σ [value in text] / values, whatever the case of letters; RULER (Hsieh et al. 2024) scores its needles so."""
    low = text.lower()
    return sum(value.lower() in low for value in values) / len(values)
