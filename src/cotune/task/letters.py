"""Multiple choice by letter: a question with options A to D, and which of the four letters a model says next."""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from cotune.core.contracts import Batch, Corpus, Encoded, Row, Task
from cotune.core.errors import Code, CotuneError
from cotune.task.best import right, tied
from cotune.task.causal import rounded
from cotune.task.tokens import opened, padded

LETTERS = ("A", "B", "C", "D")
ANSWER = "Answer:"  # how every prompt ends
TOO_LONG = "longer than the model, or their own length, allows"

Read = Callable[[str], list[int]]


@dataclass(frozen=True)
class Letters:
    """What a tokenizer makes of ` A` to ` D` behind a prompt: tokens that all four begin with, and one that is theirs.

    Attributes:
        tokenizer: that makes the tokens.
        shared: ids between the prompt and the letter, such as the blank of a byte tokenizer; mostly none.
        ids: of the four letters.
    """

    tokenizer: Any
    shared: tuple[int, ...]
    ids: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Any) -> Letters:
        """The letters of a tokenizer.

        Raises:
            CotuneError: E_TOKENIZER when they do not differ in exactly one token, the last.
        """
        asked, *told = (ids for ids, _ in opened([ANSWER, *(f"{ANSWER} {letter}" for letter in LETTERS)], tokenizer))
        heads, last = {tuple(ids[:-1]) for ids in told}, [ids[-1] for ids in told if ids]
        known = {*last} - {tokenizer.unk_token_id}
        if len(heads) != 1 or len(known) < len(LETTERS) or told[0][: len(asked)] != asked:
            raise CotuneError(
                Code.TOKENIZER,
                "the letters A to D are not one token each",
                where=f"'{ANSWER}' with a letter behind it",
                got=f"{', '.join(str(len(ids) - len(asked)) for ids in told)} tokens, {len(known)} different and known",
                expected="the same tokens but for the last",
                fix="choose a model whose tokenizer knows single letters",
            )
        return cls(tokenizer, tuple(told[0][len(asked) : -1]), tuple(last))

    def read(self, prompt: str) -> list[int]:
        """The ids of a prompt after which the letter comes.

        Raises:
            CotuneError: E_TOKENIZER when the letter is another token behind this prompt.
        """
        ids, _ = opened([f"{prompt} {LETTERS[0]}"], self.tokenizer)[0]
        if ids[-len(self.shared) - 1 :] != [*self.shared, self.ids[0]]:
            raise CotuneError(
                Code.TOKENIZER, "a letter is another token behind another prompt", fix="choose another model"
            )
        return ids[:-1]


class Choice(Task):
    """A task whose answer is one of four letters; subclasses say what the prompts are.

    A row has `gold`, the number of the right option. A row that does not fit is dropped and counted: cut anywhere, it
    could lose what is asked for.
    """

    head: ClassVar[str] = "causal"
    rowwise: ClassVar[bool] = False  # at most one example of a row; `sources` says of which

    @property
    def metrics(self) -> tuple[str, ...]:
        """Those of `told`."""
        return ("loss", "accuracy", "letter_mass", "tied")

    @abstractmethod
    def prompt(self, row: Row, read: Read, limit: int) -> list[int] | None:
        """The ids of a row's prompt, at most `limit`; None where it does not fit. `read` makes ids of a text."""

    def chance(self, corpus: Corpus, vocabulary: int) -> Mapping[str, float]:
        """A quarter of the answers, and four tokens of the vocabulary."""
        return {**corpus.chance, "accuracy": 1 / len(LETTERS), "letter_mass": len(LETTERS) / vocabulary}

    def encode(self, rows: Sequence[Row], tokenizer: Any, limit: int) -> Encoded:
        """Each row that fits as `input_ids`, the four `letters` and `gold`.

        Raises:
            CotuneError: E_TOKENIZER as `Letters` does.
        """
        letters = Letters.of(tokenizer)
        examples, sources = list[Mapping[str, Any]](), list[int]()
        for number, row in enumerate(rows):
            ids = self.prompt(row, letters.read, limit)
            if ids is not None:
                # Four bytes an id: a list of Python's integers would be ten times as large.
                examples.append(
                    {"input_ids": array("i", ids), "letters": letters.ids, "gold": row["gold"], "size": limit}
                )
                sources.append(number)
        dropped = len(rows) - len(examples)
        return Encoded(examples, dropped={TOO_LONG: dropped} if dropped else {}, sources=sources)

    def collate(self, examples: Sequence[Mapping[str, Any]], tokenizer: Any) -> Batch:
        """`input_ids`, `attention_mask` (rows, longest), padded on the right; `letters` (rows, 4); `gold` (rows,)."""
        longest = rounded(max(len(example["input_ids"]) for example in examples), examples[0]["size"])
        return {
            **padded([example["input_ids"] for example in examples], tokenizer, longest),
            "letters": torch.tensor([example["letters"] for example in examples]),
            "gold": torch.tensor([example["gold"] for example in examples]),
        }

    def losses(self, model: Callable[..., Any], batch: Batch) -> Tensor:
        """−log p of the right letter among all tokens (rows,), float32."""
        return functional.cross_entropy(last(model, batch), _gold(batch), reduction="none")

    def scores(self, model: Callable[..., Any], batch: Batch) -> dict[str, Tensor]:
        """`loss`, `accuracy` among the four letters, their probability `letter_mass`, and two being `tied`, (rows,)."""
        return self.told(last(model, batch), batch)

    def told(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        """The scores of logits (rows, vocabulary) where the letter comes."""
        loss = functional.cross_entropy(logits, _gold(batch), reduction="none")
        four = logits.gather(1, batch["letters"])
        mass = (four.logsumexp(1) - logits.logsumexp(1)).exp()
        return {"loss": loss, "accuracy": right(four, batch["gold"]), "letter_mass": mass, "tied": tied(four)}


def asked(question: str, options: Sequence[str], mark: str = ")") -> str:
    """`Question: …`, a line for each option, `A) …`, and `Answer:`."""
    listed = [f"{letter}{mark} {option}" for letter, option in zip(LETTERS, options, strict=True)]
    return "\n".join([f"Question: {question}", *listed, ANSWER])


def last(model: Callable[..., Any], batch: Batch) -> Tensor:
    """Logits at the last token of each row (rows, vocabulary), float32; made at these places alone where that goes."""
    places, which = torch.unique(batch["attention_mask"].sum(1) - 1, return_inverse=True)
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    logits: Tensor = model(**inputs, logits_to_keep=places).logits
    if logits.shape[1] != len(places):  # a model that makes all
        logits = logits[:, places]
    return logits[torch.arange(len(which), device=which.device), which].float()


def _gold(batch: Batch) -> Tensor:
    """The id of the right letter (rows,)."""
    return batch["letters"].gather(1, batch["gold"][:, None])[:, 0]
