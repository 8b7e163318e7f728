"""Answers that a causal model writes, held against the right ones as texts."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from cotune.core.contracts import Batch, Encoded
from cotune.task.best import first_best
from cotune.task.causal import collated, sums
from cotune.task.forms.form import Form, Question
from cotune.task.forms.ranked import shared
from cotune.task.letters import last
from cotune.task.squad import exact, f1
from cotune.task.tokens import opened, padded

END = "\n"  # what an answer ends with
TOO_LONG = "with an answer longer than the model, or max_tokens, allows"


@dataclass(frozen=True)
class Written(Form):
    """The answer is learned with the line end behind it, and written greedily: up to a line end, or `most` tokens.

    A prompt that is too long is cut on its left, so that an answer of `most` tokens fits behind it. Every token takes a
    pass over the whole row: whatever the model is, nothing is carried from one to the next.

    Attributes:
        most: tokens of an answer.
    """

    head: ClassVar[str] = "causal"
    metrics: ClassVar[tuple[str, ...]] = ("loss", "f1", "exact", "cut_short")

    most: int = 50

    def encode(self, questions: Sequence[Question], tokenizer: Any, limit: int) -> Encoded:
        """Each question as `input_ids` with the first right answer behind the prompt, which `asks` so many tokens."""
        prompts = opened([question.prompt for question in questions], tokenizer)
        told = self.learned(questions, tokenizer)
        examples, sources, cut = list[Mapping[str, Any]](), list[int](), 0
        for number, (question, (asked, _), (ids, special)) in enumerate(zip(questions, prompts, told, strict=True)):
            front, begin = max(1, special), max(1, shared(asked, ids))
            extra = max(0, max(len(asked) + self.most, len(ids)) - limit)
            if extra > begin - front or begin >= len(ids):
                continue
            cut += extra > 0
            kept = ids[:front] + ids[front + extra :]
            examples.append(
                {
                    "input_ids": array("i", kept),
                    "supervised": range(begin - extra, len(kept)),
                    "size": limit,
                    "asks": array("i", [*asked[:front], *asked[front + extra :]]),
                    "answers": tuple(answer.strip() for answer in question.options),
                }
            )
            sources.append(number)
        dropped = len(questions) - len(examples)
        return Encoded(examples, cut, {TOO_LONG: dropped} if dropped else {}, sources)

    def learned(self, questions: Sequence[Question], tokenizer: Any) -> list[tuple[list[int], int]]:
        """(ids of a prompt with the answer behind it, how many of them are special tokens before it) of each."""
        return opened([question.prompt + question.options[0] + END for question in questions], tokenizer)

    def collate(self, examples: Sequence[Mapping[str, Any]], tokenizer: Any) -> Batch:
        """What `causal.collated` makes."""
        return collated(examples, tokenizer)

    def losses(self, model: Callable[..., Any], batch: Batch) -> Tensor:
        """The mean over the answer's tokens of −log p (rows,), float32."""
        nll, tokens = sums(model, batch)
        return nll / tokens

    def scores(self, model: Callable[..., Any], batch: Batch) -> dict[str, Tensor]:
        """`loss` alone: what a model writes is read with its tokenizer, by `judged`."""
        return {"loss": self.losses(model, batch)}

    def judged(
        self, model: Callable[..., Any], batch: Batch, examples: Sequence[Mapping[str, Any]], tokenizer: Any
    ) -> dict[str, Tensor]:
        """`loss`, the best `f1` and `exact` match with a right answer, and whether there was no end: `cut_short`."""
        device = batch["input_ids"].device
        told = written(model, [one["asks"] for one in examples], tokenizer, self.most, device)
        said = [text.partition(END)[0].strip() for text, _ in told]
        pairs = list(zip(said, (one["answers"] for one in examples), strict=True))
        return {
            "loss": self.losses(model, batch),
            "f1": torch.tensor([max(f1(text, answer) for answer in answers) for text, answers in pairs]),
            "exact": torch.tensor([max(exact(text, answer) for answer in answers) for text, answers in pairs]),
            "cut_short": torch.tensor([float(not ended) for _, ended in told]),
        }


def _at_line_end(_: int, text: str) -> bool:
    return END in text


def written(
    model: Callable[..., Any],
    prompts: Sequence[Sequence[int]],
    tokenizer: Any,
    most: int,
    device: torch.device,
    *,
    done: Callable[[int, str], bool] = _at_line_end,
) -> list[tuple[str, bool]]:
    """(text, whether it came to an end) that a model writes behind each prompt, the likeliest token each time.

    Args:
        model: makes logits.
        prompts: token ids.
        tokenizer: of the model; an answer ends with its end of text, or where it is `done`.
        most: tokens of an answer.
        device: of the model.
        done: (number of the prompt, text so far) -> whether it is; at a line end, where nobody says.
    """
    told: list[list[int]] = [[] for _ in prompts]
    texts, open_ = [""] * len(prompts), list(range(len(prompts)))
    for _ in range(most):
        if not open_:
            break
        batch = padded([[*prompts[row], *told[row]] for row in open_], tokenizer)
        logits = last(model, {name: tensor.to(device) for name, tensor in batch.items()})
        going = []
        for row, token in zip(open_, first_best(logits).tolist(), strict=True):
            if token == tokenizer.eos_token_id:
                continue
            told[row].append(token)
            texts[row] = tokenizer.decode(told[row], skip_special_tokens=True, clean_up_tokenization_spaces=False)
            if not done(row, texts[row]):
                going.append(row)
        open_ = going
    return [(text, row not in open_) for row, text in enumerate(texts)]
