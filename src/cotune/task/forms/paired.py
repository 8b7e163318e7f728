"""Options chosen by an encoder: a head that gives each pair of prompt and option one number."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor

from cotune.core.contracts import Batch, Encoded
from cotune.core.errors import Code, CotuneError
from cotune.task.forms.form import Choosing, Question
from cotune.task.forms.ranked import TOO_LONG
from cotune.task.tokens import padded, whole

SEGMENTS = "token_type_ids"


@dataclass(frozen=True)
class Paired(Choosing):
    """One number of a multiple-choice head for the prompt and an option as a pair of texts.

    A prompt that is too long is cut on its left, the same for all options of a row.
    """

    head: ClassVar[str] = "multiple-choice"

    def encode(self, questions: Sequence[Question], tokenizer: Any, limit: int) -> Encoded:
        """Each question with its pairs one after the other in `input_ids` and `segments`, and where each `ends`.

        Raises:
            CotuneError: E_TOKENIZER for a tokenizer that does not say which of two texts a token is of.
        """
        if not getattr(tokenizer, "is_fast", False):
            raise CotuneError(Code.TOKENIZER, "pairs of texts need a fast tokenizer", got=type(tokenizer).__name__)
        examples, sources, cut = list[Mapping[str, Any]](), list[int](), 0
        for number, question in enumerate(questions):
            first = [whole(question.prompt)] * len(question.options)
            made = tokenizer(first, [whole(option.strip()) for option in question.options], verbose=False)
            rows = [list(ids) for ids in made["input_ids"]]
            extra = max(0, max(map(len, rows)) - limit)
            mine = [[place for place, text in enumerate(made.sequence_ids(i)) if text == 0] for i in range(len(rows))]
            if extra >= min(map(len, mine)) and extra:
                continue
            cut += extra > 0
            segments = made.get(SEGMENTS)
            gone = [frozenset(places[:extra]) for places in mine]
            ends = [0]
            for ids in rows:
                ends.append(ends[-1] + len(ids) - extra)
            kept = [(i, place) for i, ids in enumerate(rows) for place in range(len(ids)) if place not in gone[i]]
            examples.append(
                {
                    "input_ids": array("i", [rows[i][place] for i, place in kept]),
                    "segments": segments and array("b", [segments[i][place] for i, place in kept]),
                    "ends": tuple(ends),
                    "gold": question.gold,
                }
            )
            sources.append(number)
        dropped = len(questions) - len(examples)
        return Encoded(examples, cut, {TOO_LONG: dropped} if dropped else {}, sources)

    def collate(self, examples: Sequence[Mapping[str, Any]], tokenizer: Any) -> Batch:
        """`input_ids`, `attention_mask` (rows, options, longest), padded on the right; `gold` (rows,).

        Of tokenizers that tell the two texts, `token_type_ids` too.
        """

        def parts(name: str) -> list[list[int]]:
            return [[*one[name][start:end]] for one in examples for start, end in pairwise(one["ends"])]

        batch = padded(parts("input_ids"), tokenizer)
        if examples[0]["segments"] is not None:
            longest = batch["input_ids"].shape[1]
            batch[SEGMENTS] = torch.tensor([[*row, *[0] * (longest - len(row))] for row in parts("segments")])
        return {
            **{name: tensor.view(len(examples), -1, tensor.shape[1]) for name, tensor in batch.items()},
            "gold": torch.tensor([one["gold"] for one in examples]),
        }

    def numbers(self, model: Callable[..., Any], batch: Batch) -> Tensor:
        """What the head says of each pair (rows, options), float32."""
        logits: Tensor = model(**{name: tensor for name, tensor in batch.items() if name != "gold"}).logits
        return logits.float()
