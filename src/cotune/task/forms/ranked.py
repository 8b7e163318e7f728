"""Options ranked by a causal model: how likely it is to go on with each of them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from cotune.core.contracts import Batch, Encoded
from cotune.task.best import right, tied
from cotune.task.causal import collated, sums
from cotune.task.forms.form import Choosing, Question
from cotune.task.tokens import opened

TOO_LONG = "with an option longer than the model, or max_tokens, allows"


@dataclass(frozen=True)
class Ranked(Choosing):
    """The mean log-probability of an option's tokens behind the prompt.

    Prompt and option are made into tokens together; the option begins where its tokens part from those of the prompt
    alone, so none of its characters is left out. A prompt that is too long is cut on its left, the same for all
    options of a row. Beside the mean, options are ranked by the sum, and by the sum a byte of the option's UTF-8.
    """

    head: ClassVar[str] = "causal"
    metrics: ClassVar[tuple[str, ...]] = ("loss", "accuracy", "accuracy_sum", "accuracy_byte", "tied")

    def encode(self, questions: Sequence[Question], tokenizer: Any, limit: int) -> Encoded:
        """Each question with its options one after the other in `input_ids`, and where each `begins` and `ends`."""
        prompts = opened([question.prompt for question in questions], tokenizer)
        told = iter(opened([q.prompt + option for q in questions for option in q.options], tokenizer))
        examples, sources, cut = list[Mapping[str, Any]](), list[int](), 0
        for number, (question, (asked, _)) in enumerate(zip(questions, prompts, strict=True)):
            whole = [next(told) for _ in question.options]
            front = max(1, *(special for _, special in whole))
            begins = [max(1, shared(asked, ids)) for ids, _ in whole]
            extra = max(0, max(len(ids) for ids, _ in whole) - limit)
            spare = min(begins) - front
            if extra > spare or any(begin >= len(ids) for begin, (ids, _) in zip(begins, whole, strict=True)):
                continue
            cut += extra > 0
            kept = [ids[:front] + ids[front + extra :] for ids, _ in whole]
            ends = [0]
            for ids in kept:
                ends.append(ends[-1] + len(ids))
            examples.append(
                {
                    "input_ids": array("i", [token for ids in kept for token in ids]),
                    "ends": tuple(ends),
                    "begins": tuple(begin - extra for begin in begins),
                    "bytes": tuple(len(option.strip().encode("utf-8", "surrogatepass")) for option in question.options),
                    "gold": question.gold,
                    "size": limit,
                }
            )
            sources.append(number)
        dropped = len(questions) - len(examples)
        return Encoded(examples, cut, {TOO_LONG: dropped} if dropped else {}, sources)

    def collate(self, examples: Sequence[Mapping[str, Any]], tokenizer: Any) -> Batch:
        """What `causal.collated` makes, each (rows, options, …); `bytes` (rows, options); `gold` (rows,)."""
        options = [
            {"input_ids": [*one["input_ids"][start:end]], "supervised": range(begin, end - start), "size": one["size"]}
            for one in examples
            for begin, (start, end) in zip(one["begins"], pairwise(one["ends"]), strict=True)
        ]
        flat = collated(options, tokenizer)
        return {
            **{name: tensor.view(len(examples), -1, tensor.shape[1]) for name, tensor in flat.items()},
            "bytes": torch.tensor([one["bytes"] for one in examples]),
            "gold": torch.tensor([one["gold"] for one in examples]),
        }

    def numbers(self, model: Callable[..., Any], batch: Batch) -> Tensor:
        """The mean log-probability of each option's tokens (rows, options), float32."""
        total, tokens = self._sums(model, batch)
        return total / tokens

    def scores(self, model: Callable[..., Any], batch: Batch) -> dict[str, Tensor]:
        """Those of the mean, and `accuracy_sum` and `accuracy_byte` by the other two rankings."""
        total, tokens = self._sums(model, batch)
        mean, gold = total / tokens, batch["gold"]
        return {
            "loss": functional.cross_entropy(mean, gold, reduction="none"),
            "accuracy": right(mean, gold),
            "accuracy_sum": right(total, gold),
            "accuracy_byte": right(total / batch["bytes"].clamp(min=1), gold),
            "tied": tied(mean),
        }

    def _sums(self, model: Callable[..., Any], batch: Batch) -> tuple[Tensor, Tensor]:
        """Σ log p over each option's tokens, and how many they are, (rows, options)."""
        shape = batch["input_ids"].shape[:2]
        flat = {name: tensor.flatten(0, 1) for name, tensor in batch.items() if name not in ("gold", "bytes")}
        nll, tokens = sums(model, flat)
        return -nll.view(shape), tokens.view(shape)


def shared(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two rows begin with alike."""
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
