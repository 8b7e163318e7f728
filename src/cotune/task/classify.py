"""Text classification: rows with a text and a label, scored by cross-entropy and accuracy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import torch
from pydantic import BeforeValidator, Field, SerializeAsAny, StrictInt
from torch import Tensor
from torch.nn import functional

from cotune.core.contracts import Batch, Corpus, Encoded, Row, Task
from cotune.core.errors import Code, CotuneError
from cotune.core.events import Say, silent
from cotune.core.part import resolve
from cotune.core.seeds import Purpose, Seeds
from cotune.task.column import is_missing
from cotune.task.divide import duplicates, held_back, held_out, label_counts, manifest, subset
from cotune.task.labels import numbered
from cotune.task.partition import PARTITIONS, Iid, Natural, Partition
from cotune.task.table import Table, read
from cotune.task.tokens import encoded, padded

_TIE = 1e-5  # logits nearer than this are equal, and the lower class number wins


class Classify(Task):
    """Text classification: a text and one of C labels a row.

    Attributes:
        data: the reference of the data.
        text: the column of texts.
        label: the column of labels: integers from 0, booleans, or names, which are numbered in sorted order.
        classes: how many classes there are when some may have no rows.
        partition: how rows are divided; None follows the source where that is divided already (a folder: one file is
            one client), else ten even clients.
        test: rows, or as a float the share of rows, that no client gets.
        group: rows that share a value of this column are never on both sides of the test split.
        held: the share of its rows that each client holds back to score on: at least one of two, none of one.
        max_tokens: longer texts are cut on the right.
        limit: rows used at all, drawn by seed.
        test_limit: held-out rows used, drawn by seed.
    """

    kind: ClassVar[str] = "classify"
    version: ClassVar[int] = 1
    metrics: ClassVar[tuple[str, ...]] = ("loss", "accuracy")

    data: str
    text: str = "text"
    label: str = "label"
    classes: Annotated[int, Field(ge=2)] | None = None
    partition: Annotated[
        SerializeAsAny[Partition] | None, BeforeValidator(lambda value: resolve("partition", PARTITIONS, value))
    ] = None
    test: Annotated[StrictInt, Field(ge=0)] | Annotated[float, Field(ge=0, lt=1)] = 0.2
    group: str | None = None
    held: Annotated[float, Field(ge=0, lt=1)] = 0.2
    max_tokens: Annotated[int, Field(ge=1)] = 128
    limit: Annotated[int, Field(ge=2)] | None = None
    test_limit: Annotated[int, Field(ge=1)] | None = None

    def load(self, seeds: Seeds, say: Say = silent) -> Corpus:
        """The data, divided among the clients; a function of the data seed alone.

        A row has `text`, `label` (its class number) and `place` (where it was read, for errors). `say` is told one line
        before a download.

        Raises:
            CotuneError: E_DATA for data that cannot be read, is empty or cannot be divided as asked; E_LABEL for a
                label that is none of the classes.
        """
        table = read(self.data, say)
        kept, skipped = self._kept(table)
        cells = table.cells(self.label, self.data)
        numbers, names = numbered(
            [cells[row] for row in kept],
            lambda position: table.place(kept[position]),
            table.names.get(self.label, ()),
            self.classes,
        )
        labels = dict(zip(kept, numbers, strict=True))
        used = [kept[position] for position in subset(len(kept), self.limit, seeds.of(Purpose.DATA, "limit"))]
        partition = self.partition or (Natural(key=table.owner) if table.owner else Iid(clients=10))
        groups = None if self.group is None else self._filled(table, self.group, used)
        if partition.column is not None:
            self._filled(table, partition.column, used)

        def rows(positions: Sequence[int]) -> list[Row]:
            return [{"text": table.rows[p][self.text], "label": labels[p], "place": table.place(p)} for p in positions]

        shared, out = held_out(len(used), self.test, seeds.of(Purpose.DATA, "test"), groups)
        chosen = subset(len(out), self.test_limit, seeds.of(Purpose.DATA, "test_limit"))
        test = rows([used[out[position]] for position in chosen])
        mine = [used[position] for position in shared]
        parts = partition.split(
            [table.rows[row] for row in mine], [labels[row] for row in mine], seeds.of(Purpose.DATA, "partition")
        )
        clients = {
            client: held_back(
                rows([mine[position] for position in part]), self.held, seeds.of(Purpose.DATA, "held", client)
            )
            for client, part in parts.items()
        }
        scored = label_counts(test or rows(mine), len(names))
        return Corpus(
            clients=clients,
            test=test,
            head="classification",
            labels=names,
            chance={"accuracy": max(scored) / sum(scored)},
            facts={
                **table.facts,
                "data": self.data,
                "rows": len(table) + sum(table.skipped.values()),
                "skipped": {**table.skipped, **skipped},
                "used": len(used),
                "partition": partition.model_dump(mode="json"),
                "empty_clients": [name for name, s in clients.items() if not s.train and not s.held],
                "sizes": {name: {"train": len(s.train), "held": len(s.held)} for name, s in clients.items()},
                "labels": {name: label_counts([*s.train, *s.held], len(names)) for name, s in clients.items()},
                "test": {"rows": len(test), "unused": len(out) - len(test), "labels": label_counts(test, len(names))},
                "duplicates": duplicates(clients, test),
                "manifest": {name: manifest([*s.train, *s.held]) for name, s in clients.items()},
                "test_manifest": manifest(test),
            },
        )

    def _kept(self, table: Table) -> tuple[list[int], dict[str, int]]:
        """The rows that have a text, and how many have none, by reason."""
        kept: list[int] = []
        skipped: Counter[str] = Counter()
        for row, cell in enumerate(table.cells(self.text, self.data)):
            if isinstance(cell, str):
                reason = "" if cell.strip() else "whitespace" if cell else "empty"
            else:
                reason = "missing" if is_missing(cell) else "not text"
            if reason:
                skipped[reason] += 1
            else:
                kept.append(row)
        if not kept:
            got = ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items()))
            raise CotuneError(Code.DATA, "no row has a text", where=f"{self.data}, column '{self.text}'", got=got)
        return kept, dict(sorted(skipped.items()))

    def _filled(self, table: Table, column: str, used: Sequence[int]) -> list[object]:
        """The cells of a column that every used row must have."""
        cells = table.cells(column, self.data)
        for row in used:
            if is_missing(cells[row]):
                raise CotuneError(Code.DATA, f"no value in column '{column}'", where=table.place(row), fix="fill it in")
        return [cells[row] for row in used]

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
        best = logits >= logits.amax(dim=-1, keepdim=True) - _TIE
        classes = torch.arange(logits.shape[-1], device=logits.device)
        guess = torch.where(best, classes, logits.shape[-1]).amin(dim=-1)
        return {"loss": loss, "accuracy": (guess == batch["labels"]).float()}

    def _logits(self, model: Callable[..., Any], batch: Batch) -> Tensor:
        logits: Tensor = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        return logits.float()
