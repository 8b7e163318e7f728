"""Words in a gap: which of several words a masked language model puts there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from cotune.core.contracts import Batch, Encoded
from cotune.core.errors import Code, CotuneError
from cotune.task.forms.form import Choosing, Question
from cotune.task.tokens import bare, opened, padded

TOO_LONG = "longer behind the gap than the model, or max_tokens, allows"


@dataclass(frozen=True)
class Masked(Choosing):
    """The logit of each option, a single token, at the mask between the prompt and what stands behind.

    A prompt that is too long is cut on its left.
    """

    head: ClassVar[str] = "masked"

    def encode(self, questions: Sequence[Question], tokenizer: Any, limit: int) -> Encoded:
        """Each question as `input_ids` with a mask at `gap`, its options as `words`.

        Raises:
            CotuneError: E_TOKENIZER when there is no mask, or the options are not one token each, all different.
        """
        if tokenizer.mask_token_id is None:
            raise CotuneError(Code.TOKENIZER, "the tokenizer has no mask", fix="choose a masked language model")
        known: dict[tuple[str, ...], tuple[int, ...]] = {}
        front, tail = _around(tokenizer)
        examples, sources, cut = list[Mapping[str, Any]](), list[int](), 0
        for number, question in enumerate(questions):
            if question.options not in known:
                known[question.options] = _words(question.options, tokenizer)
            before, after = (bare(text, tokenizer) if text else [] for text in (question.prompt, question.behind))
            extra = max(0, len(front) + len(before) + 1 + len(after) + len(tail) - limit)
            if extra > len(before):
                continue
            cut += extra > 0
            before = [*front, *before[extra:]]
            examples.append(
                {
                    "input_ids": [*before, tokenizer.mask_token_id, *after, *tail],
                    "gap": len(before),
                    "words": known[question.options],
                    "gold": question.gold,
                }
            )
            sources.append(number)
        dropped = len(questions) - len(examples)
        return Encoded(examples, cut, {TOO_LONG: dropped} if dropped else {}, sources)

    def collate(self, examples: Sequence[Mapping[str, Any]], tokenizer: Any) -> Batch:
        """`input_ids`, `attention_mask` (rows, longest), padded on the right; `gap`, `gold` (rows,); `words`."""
        batch = padded([one["input_ids"] for one in examples], tokenizer)
        return {**batch, **{name: torch.tensor([one[name] for one in examples]) for name in ("gap", "words", "gold")}}

    def numbers(self, model: Callable[..., Any], batch: Batch) -> Tensor:
        """The logit of each word in the gap (rows, options), float32."""
        logits: Tensor = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        rows = torch.arange(len(logits), device=logits.device)
        return logits[rows, batch["gap"]].gather(1, batch["words"]).float()


def _around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens that the tokenizer puts before a text, and those behind."""
    ((ids, front),) = opened(["a"], tokenizer)
    made: list[int] = list(tokenizer("a", return_attention_mask=False, verbose=False)["input_ids"])
    return made[:front], made[len(ids) :]


def _words(options: Sequence[str], tokenizer: Any) -> tuple[int, ...]:
    """The one token of each option.

    Raises:
        CotuneError: E_TOKENIZER when one has several, or two have the same.
    """
    made = [bare(option, tokenizer) for option in options]
    found = {ids[0] for ids in made if len(ids) == 1} - {tokenizer.unk_token_id}
    if len(found) < len(options):
        raise CotuneError(
            Code.TOKENIZER,
            "label words are not one token each",
            where=", ".join(option.strip() for option in options),
            got=f"{', '.join(str(len(ids)) for ids in made)} tokens, {len(found)} different and known",
            fix="choose a model whose tokenizer knows them",
        )
    return tuple(ids[0] for ids in made)
