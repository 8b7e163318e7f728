"""Supervised fine-tuning: a prompt and a completion, or a conversation; only what is to be said is learned."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from cotune.core.contracts import Encoded, Row
from cotune.core.errors import Code, CotuneError
from cotune.task.causal import Causal
from cotune.task.chat import ASSISTANT, PLAIN, Tokens, is_conversation, plain, templated
from cotune.task.divide import Identity
from cotune.task.table import Table
from cotune.task.tabular import Parsed, Tabular, no_text
from cotune.task.tokens import bare, ended, opened

NOTHING = "nothing to learn from in max_tokens"


class SFT(Causal, Tabular):
    """Supervised fine-tuning: the loss is that of the completion, or of what the assistant says.

    A row is, by the columns that there are, and in this order: `messages`; `prompt` and `completion`, both texts or
    both lists of messages; `instruction`, `output` and perhaps `input`; or `text`, all of which is learned. The end of
    text behind a completion is learned. Of a row that is too long the prompt is cut on its left, down to one token;
    then the completion on its right.

    Attributes:
        template: of conversations: 'tokenizer' for its own chat template, or 'plain' for lines of `role: content`.
        max_tokens: the most tokens of a row.
    """

    kind: ClassVar[str] = "sft"
    version: ClassVar[int] = 1

    max_tokens: Annotated[int, Field(ge=2)] = 256
    template: Literal["tokenizer", "plain"] = "tokenizer"

    @property
    def identity(self) -> Identity:
        """What makes two rows the same: all that they say."""
        return _content

    def parse(self, table: Table) -> Parsed:
        """The rows that have something to learn: `prompt` and `completion`, or `messages` and the `first` to learn."""
        read = next((read for needed, read in LAYOUTS if needed <= set(table.columns)), None)
        if read is None:
            known = "; ".join(" and ".join(sorted(needed)) for needed, _ in LAYOUTS)
            raise CotuneError(Code.DATA, "no columns of a prompt and a completion", where=self.data, expected=known)
        return self.useful(table, (), "something to learn", lambda cells, _place: read(cells))

    def encode(self, rows: Sequence[Row], tokenizer: Any, limit: int) -> Encoded:
        """Each row in at most min(limit, max_tokens) tokens; a row of which nothing is left to learn makes none."""
        size = min(limit, self.max_tokens)
        examples: list[Mapping[str, Any]] = []
        truncated = 0
        for ids, learned in self._tokens(rows, tokenizer):
            example = fitted(ids, learned, size, front=int(ids[:1] == [tokenizer.bos_token_id]))
            truncated += len(ids) > size
            examples += [example] if example["supervised"] else []
        dropped = len(rows) - len(examples)
        return Encoded(examples, truncated, {NOTHING: dropped} if dropped else {})

    def _tokens(self, rows: Sequence[Row], tokenizer: Any) -> Iterator[Tokens]:
        """The tokens of each row, and which of them are to be learned."""
        pairs = written([(row["prompt"], row["completion"]) for row in rows if "prompt" in row], tokenizer)
        for row in rows:
            if "prompt" in row:
                yield next(pairs)
            elif self.template == PLAIN:
                yield plain(row["messages"], row["first"], tokenizer)
            else:
                yield templated(row["messages"], row["first"], tokenizer, row["place"])


def written(pairs: Sequence[tuple[str, str]], tokenizer: Any) -> Iterator[Tokens]:
    """Prompt and completion as one text, where that starts with the prompt's own tokens; else one after the other."""
    asked = opened([prompt for prompt, _ in pairs], tokenizer)
    whole = opened([prompt + completion for prompt, completion in pairs], tokenizer)
    for (_, completion), (before, _), (ids, front) in zip(pairs, asked, whole, strict=True):
        start = before or ids[:front]
        told = ids if ids[: len(start)] == start else [*start, *bare(completion, tokenizer)]
        made = ended(told, tokenizer)
        yield made, [False] * len(start) + [True] * (len(made) - len(start))


def fitted(ids: Sequence[int], learned: Sequence[bool], size: int, front: int = 0) -> dict[str, Any]:
    """At most `size` tokens, and where in them something is supervised.

    Args:
        ids: of a row.
        learned: which of them are to be learned.
        size: how many fit.
        front: special tokens that stay at the start.
    """
    first = learned.index(True) if any(learned) else len(ids)
    extra = max(0, min(len(ids) - size, first - max(front, 1)))
    kept = [*range(front), *range(front + extra, len(ids))][:size]
    supervised = [place for place, source in enumerate(kept) if place and learned[source]]
    return {"input_ids": [ids[source] for source in kept], "supervised": supervised, "size": size}


def _content(row: Row) -> tuple[str, object]:
    said = {name: value for name, value in row.items() if name != "place"}
    return json.dumps(said, ensure_ascii=False, sort_keys=True, default=str), ""


def _of_messages(cells: Row) -> Row | str:
    """The conversation, or why there is none."""
    return _conversation(cells.get("messages"), 0)


def _of_pair(cells: Row) -> Row | str:
    """The prompt and the completion, or why there are none; the prompt may be empty."""
    prompt, completion = cells.get("prompt"), cells.get("completion")
    if is_conversation(prompt) and is_conversation(completion):
        return _conversation([*prompt, *completion], len(prompt))
    return _pair(prompt, completion) if isinstance(prompt, str) else no_text(prompt)


def _of_triple(cells: Row) -> Row | str:
    """Instruction and input as a prompt, the output as its completion, or why there are none."""
    if reason := no_text(cells.get("instruction")):
        return reason
    parts = {"Instruction": cells["instruction"], "Input": cells.get("input"), "Response": ""}
    kept = [f"### {name}:\n{text}" for name, text in parts.items() if name == "Response" or not no_text(text)]
    return _pair("\n\n".join(kept), cells.get("output"))


def _of_text(cells: Row) -> Row | str:
    """A text without a prompt, or why there is none."""
    return _pair("", cells.get("text"))


def _pair(prompt: str, completion: Any) -> Row | str:
    return no_text(completion) or {"prompt": prompt, "completion": completion}


def _conversation(messages: Any, first: int) -> Row | str:
    if not is_conversation(messages):
        return "missing" if messages is None else "not messages"
    said = any(message["role"] == ASSISTANT and message["content"].strip() for message in messages[first:])
    return {"messages": messages, "first": first} if said else "nothing said by the assistant"


LAYOUTS: Sequence[tuple[frozenset[str], Callable[[Row], Row | str]]] = (
    (frozenset({"messages"}), _of_messages),
    (frozenset({"prompt", "completion"}), _of_pair),
    (frozenset({"instruction", "output"}), _of_triple),
    (frozenset({"text"}), _of_text),
)
