"""Conversations as token ids, through a chat template or plainly, and which of them the assistant says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from cotune.core.errors import Code, CotuneError
from cotune.task.tokens import bare, ended, opened, whole

ASSISTANT = "assistant"
PLAIN = "plain"
_MARKERS = re.compile(r"\{%-?\s*generation\s*-?%\}")  # of what the assistant says, in a template

Message = Mapping[str, Any]
Tokens = tuple[list[int], list[bool]]  # ids, and which of them are to be learned


def is_conversation(value: object) -> TypeGuard[Sequence[Message]]:
    """Whether a cell is a list of messages, each with the texts `role` and `content`."""
    return (
        isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0 and all(map(_is_message, value))
    )


def _is_message(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(value.get(key), str) for key in ("role", "content"))


def plain(messages: Sequence[Message], first: int, tokenizer: Any) -> Tokens:
    """A conversation as lines `role: content`, and the end of text behind each thing that the assistant says.

    Args:
        messages: of the conversation.
        first: what the assistant says before this message is not learned.
        tokenizer: of the model.
    """
    ids: list[int] = []
    learned: list[bool] = []
    for number, message in enumerate(messages):
        said = message["role"] == ASSISTANT
        line = f"{message['role']}:" if said else f"{message['role']}: {message['content']}"
        ids += bare(f"\n{line}", tokenizer) if number else opened([line], tokenizer)[0][0]
        learned += [False] * (len(ids) - len(learned))
        if said:
            ids += ended(bare(f" {message['content']}", tokenizer), tokenizer)
            learned += [number >= first] * (len(ids) - len(learned))
    return ids, learned


def templated(messages: Sequence[Message], first: int, tokenizer: Any, place: str) -> Tokens:
    """A conversation through the chat template of the tokenizer.

    What the assistant says is told by the template's generation markers where it has them, else by what each of its
    messages adds to the ids of the messages before. The end of text behind it is learned too; where the template has
    none there, it is put behind the last message.

    Args:
        messages: of the conversation.
        first: what the assistant says before this message is not learned.
        tokenizer: of the model.
        place: of the row, for errors.

    Raises:
        CotuneError: E_TOKENIZER when there is no template, or one that changes earlier messages; E_DATA when it refuses
            the conversation.
    """
    clean = [{**message, "content": whole(message["content"])} for message in messages]
    if _MARKERS.search(_template(tokenizer)):
        made = _applied(clean, tokenizer, place, return_assistant_tokens_mask=True)
        ids, learned = list(made["input_ids"]), [bool(mark) for mark in made["assistant_masks"]]
        if first:
            past = _prefix(ids, _applied(clean[:first], tokenizer, place)["input_ids"], place)
            learned[:past] = [False] * past
    else:
        ids, learned = _by_difference(clean, first, tokenizer, place)
    end = tokenizer.eos_token_id
    for position in range(1, len(ids)):
        learned[position] |= learned[position - 1] and ids[position] == end
    ends = any(mark and token == end for token, mark in zip(ids, learned, strict=True))
    if end is None or ends or not any(learned) or clean[-1]["role"] != ASSISTANT:
        return ids, learned
    return [*ids, end], [*learned, True]


def _by_difference(messages: Sequence[Message], first: int, tokenizer: Any, place: str) -> Tokens:
    """What each message of the assistant adds to the ids of the messages before it."""
    ids = list(_applied(messages, tokenizer, place)["input_ids"])
    learned = [False] * len(ids)
    for number, message in enumerate(messages):
        if message["role"] == ASSISTANT and number >= first:
            asked = _applied(messages[:number], tokenizer, place, add_generation_prompt=True)
            told = _applied(messages[: number + 1], tokenizer, place)
            start, stop = (_prefix(ids, made["input_ids"], place) for made in (asked, told))
            learned[start:stop] = [True] * (stop - start)
    return ids, learned


def _prefix(ids: Sequence[int], start: Sequence[int], place: str) -> int:
    """How many ids the start of a conversation has, when the conversation starts with them."""
    if [*ids[: len(start)]] != [*start]:
        raise CotuneError(
            Code.TOKENIZER,
            "the chat template changes earlier messages: the prompt is no prefix of the conversation",
            where=place,
            fix=f"use a template with generation markers, or task.template = '{PLAIN}'",
        )
    return len(start)


def _template(tokenizer: Any) -> str:
    try:
        return str(tokenizer.get_chat_template())
    except (ValueError, AttributeError):
        raise CotuneError(
            Code.TOKENIZER,
            "the tokenizer has no chat template",
            where="task.template",
            fix=f"set task.template = '{PLAIN}', or save the tokenizer with one",
        ) from None


def _applied(messages: Sequence[Message], tokenizer: Any, place: str, **options: bool) -> Any:
    try:
        return tokenizer.apply_chat_template(list(messages), tokenize=True, return_dict=True, **options)
    except Exception as error:  # noqa: BLE001  # a template may raise anything, and its words may be the row's
        got = type(error).__name__
    raise CotuneError(Code.DATA, "the chat template refuses a conversation", where=place, got=got)
