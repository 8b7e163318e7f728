"""What language modelling is, whatever the rows are: the next token at some positions of each example."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from cotune.core.contracts import Batch, Corpus, Task
from cotune.task.tokens import padded

IGNORED = -100  # the label of a position that nothing is learned from
_STEP = 16  # sizes of batches are multiples of it where they may be, so that there are few different ones


class Causal(Task):
    """A task that predicts tokens.

    An example is `input_ids`, the ascending positions in them that are `supervised` (never 0, as nothing comes before
    it), and `size`: the most tokens that it may have with padding. What is supervised is known by position, so the end
    of text counts even where padding has the same id.
    """

    head: ClassVar[str] = "causal"
    metrics: ClassVar[tuple[str, ...]] = ("loss", "nll", "tokens")
    ratios: ClassVar[Mapping[str, tuple[str, str]]] = {"perplexity": ("nll", "tokens")}
    rowwise: ClassVar[bool] = False

    def chance(self, corpus: Corpus, vocabulary: int) -> Mapping[str, float]:
        """The perplexity of a model to which every token is equally likely: how many there are."""
        return {**corpus.chance, "perplexity": float(vocabulary)}

    def collate(self, examples: Sequence[Mapping[str, Any]], tokenizer: Any) -> Batch:
        """As `collated`."""
        return collated(examples, tokenizer)

    def losses(self, model: Callable[..., Any], batch: Batch) -> Tensor:
        """The mean over a row's supervised tokens of −log p (rows,), float32."""
        nll, tokens = sums(model, batch)
        return nll / tokens

    def scores(self, model: Callable[..., Any], batch: Batch) -> dict[str, Tensor]:
        """`nll` (a sum over supervised tokens), `tokens` (how many they are) and `loss` (the mean), (rows,) float32."""
        nll, tokens = sums(model, batch)
        return {"loss": nll / tokens, "nll": nll, "tokens": tokens}


def collated(examples: Sequence[Mapping[str, Any]], tokenizer: Any) -> Batch:
    """`input_ids` and `attention_mask` (rows, longest), `labels` (rows, K) and `where` (rows, S).

    Labels are those of the last K positions, among them all that are supervised in any row; those that are not are
    IGNORED. `where` lists the columns of a row's supervised labels; what is left of S points at an ignored one.
    """
    longest = rounded(max(len(example["input_ids"]) for example in examples), examples[0]["size"])
    batch = padded([example["input_ids"] for example in examples], tokenizer, longest)
    last = rounded(longest - min(example["supervised"][0] for example in examples), longest - 1)
    most = rounded(max(len(example["supervised"]) for example in examples), last)
    labels = torch.full((len(examples), last), IGNORED)
    where = torch.zeros((len(examples), most), dtype=torch.long)
    first = longest - last
    for row, example in enumerate(examples):
        columns = torch.tensor([position - first for position in example["supervised"]])
        labels[row, columns] = batch["input_ids"][row, first + columns]
        where[row] = int((labels[row] == IGNORED).int().argmax())
        where[row, : len(columns)] = columns
    return {**batch, "labels": labels, "where": where}


def sums(model: Callable[..., Any], batch: Batch) -> tuple[Tensor, Tensor]:
    """Σ −log p over the supervised tokens of each row, and how many they are; float32 where it is needed alone."""
    labels, where, logits = batch["labels"], batch["where"], predictions(model, batch)
    if where.shape[1] < labels.shape[1]:
        labels = labels.gather(1, where)
        logits = logits.gather(1, where[..., None].expand(-1, -1, logits.shape[-1]))
    flat = functional.cross_entropy(
        logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none"
    )
    return flat.view(labels.shape).sum(1), (labels != IGNORED).sum(1).float()


def rounded(count: int, most: int) -> int:
    """`count`, or a little more: the next multiple of a step, but not above `most`."""
    return min(-(-count // _STEP) * _STEP, most)


def predictions(model: Callable[..., Any], batch: Batch) -> Tensor:
    """What predicts the last K tokens of each row (rows, K, vocabulary)."""
    count = batch["labels"].shape[1]
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    # It stands one place before them. A model that makes all logits is cut here.
    logits: Tensor = model(**inputs, logits_to_keep=count + 1).logits[:, -count - 1 : -1]
    return logits
