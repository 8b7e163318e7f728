"""Language modelling: documents in windows, and every token but a document's first is predicted once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from cotune.core.contracts import Encoded, Row
from cotune.task.causal import Causal
from cotune.task.table import Table
from cotune.task.tabular import Parsed, Tabular
from cotune.task.tokens import ended, opened

TOO_SHORT = "fewer than 2 tokens"


class Text(Causal, Tabular):
    """Language modelling of documents, each cut into windows of `max_tokens`.

    Rows, scores and weights count windows. The end of text is put behind a document where the tokenizer has such a
    token, and whatever the tokenizer puts before a text stands before a document.

    Attributes:
        text: the column of documents.
        stride: tokens from the start of one window to that of the next; None for one less than a window, so that its
            first token, which nothing in it predicts, is the last of the window before. What two windows share is
            supervised in the first and context in the second.
        max_tokens: the most tokens of a window.
    """

    kind: ClassVar[str] = "text"
    version: ClassVar[int] = 1

    max_tokens: Annotated[int, Field(ge=2)] = 256
    text: str = "text"
    stride: Annotated[int, Field(ge=1)] | None = None

    def parse(self, table: Table) -> Parsed:
        """The rows that have a text, as `text` and `place`."""
        return self.texts(table, self.text)

    def encode(self, rows: Sequence[Row], tokenizer: Any, limit: int) -> Encoded:
        """The windows of every document that has two tokens, in order."""
        size = min(limit, self.max_tokens)
        examples: list[Mapping[str, Any]] = []
        short = 0
        for ids, _ in opened([row["text"] for row in rows], tokenizer):
            windows = list(cut(ended(ids, tokenizer), size, self.stride))
            short += not windows
            examples += windows
        return Encoded(examples, dropped={TOO_SHORT: short} if short else {})


def cut(ids: Sequence[int], size: int, stride: int | None = None) -> Iterator[dict[str, Any]]:
    """The windows of a document: each token but the first is supervised in exactly one, the last may be short."""
    step = min(stride or size - 1, size - 1)
    start, done = 0, 1
    while size > 1 and done < len(ids):
        window = ids[start : start + size]
        yield {"input_ids": window, "supervised": range(done - start, len(window)), "size": size}
        start, done = start + step, start + size
