"""Text classification: rows with a text and a label, scored by cross-entropy and accuracy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from cotune.core.contracts import Batch, Corpus, Encoded, Row
from cotune.core.events import Say, silent
from cotune.core.seeds import Seeds
from cotune.task.best import right
from cotune.task.divide import label_counts
from cotune.task.labels import numbered
from cotune.task.table import Table
from cotune.task.tabular import Parsed, Tabular
from cotune.task.tokens import encoded, padded


class Classify(Tabular):
    """Text classification: a text and one of C labels a row.

    Attributes:
        text: the column of texts.
        label: the column of labels: integers from 0, booleans, or names, which are numbered in sorted order.
        classes: how many classes there are when some may have no rows.
        max_tokens: longer texts are cut on the right.
    """

    kind: ClassVar[str] = "classify"
    version: ClassVar[int] = 1
    head: ClassVar[str] = "classification"
    metrics: ClassVar[tuple[str, ...]] = ("loss", "accuracy")

    text: str = "text"
    label: str = "label"
    classes: Annotated[int, Field(ge=2)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] = 128

    def parse(self, table: Table) -> Parsed:
        """The rows that have a text, each with `text`, `label` (its class number) and `place`."""
        found = self.texts(table, self.text)
        cells, kept = table.cells(self.label, self.data), list(found.rows)
        numbers, names = numbered(
            [cells[row] for row in kept],
            lambda position: table.place(kept[position]),
            table.names.get(self.label, ()),
            self.classes,
        )
        labels = dict(zip(kept, numbers, strict=True))
        rows = {row: {**content, "label": labels[row]} for row, content in found.rows.items()}
        return Parsed(rows, found.skipped, labels, names)

    def load(self, seeds: Seeds, say: Say = silent) -> Corpus:
        """The data, divided among the clients, with its counts of labels and what the larger class alone scores."""
        corpus = super().load(seeds, say)
        classes = len(corpus.labels)
        labels = {name: label_counts([*s.train, *s.held], classes) for name, s in corpus.clients.items()}
        held_out = label_counts(corpus.test, classes)
        scored = held_out if corpus.test else [sum(counts) for counts in zip(*labels.values(), strict=True)]
        test = {**corpus.facts["test"], "labels": held_out}
        return replace(
            corpus,
            chance={"accuracy": max(scored) / sum(scored)},
            facts={**corpus.facts, "labels": labels, "test": test},
        )

    def encode(self, rows: Sequence[Row], tokenizer: Any, limit: int) -> Encoded:
        """Each row as `input_ids` with special tokens, cut on the right to min(limit, max_tokens), and its `label`."""
        ids, truncated = encoded([row["text"] for row in rows], tokenizer, min(limit, self.max_tokens))
        examples = [{"input_ids": one, "label": row["label"]} for one, row in zip(ids, rows, strict=True)]
        return Encoded(examples, truncated)

    def collate(self, examples: Sequence[Mapping[str, Any]], tokenizer: Any) -> Batch:
        """`input_ids` and `attention_mask` (rows, longest), padded on the right, and `labels` (rows,)."""
        batch = padded([example["input_ids"] for example in examples], tokenizer)
        return {**batch, "labels": torch.tensor([example["label"] for example in examples], dtype=torch.long)}

    def losses(self, model: Callable[..., Any], batch: Batch) -> Tensor:
        """Cross-entropy (rows,), float32."""
        return functional.cross_entropy(self._logits(model, batch), batch["labels"], reduction="none")

    def scores(self, model: Callable[..., Any], batch: Batch) -> dict[str, Tensor]:
        """`loss` and `accuracy` (rows,), float32; the lower class wins a tie."""
        logits = self._logits(model, batch)
        loss = functional.cross_entropy(logits, batch["labels"], reduction="none")
        return {"loss": loss, "accuracy": right(logits, batch["labels"])}

    def _logits(self, model: Callable[..., Any], batch: Batch) -> Tensor:
        logits: Tensor = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        return logits.float()
