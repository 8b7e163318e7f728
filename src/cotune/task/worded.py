"""Stories as tokens, word by word, so that what is told is known by its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cotune.core.errors import Code, CotuneError
from cotune.task.story import VALUES, values_in
from cotune.task.tokens import bare, opened


class Worded:
    """The tokens of words, each made once.

    Raises:
        CotuneError: E_TOKENIZER when the values are not different tokens.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._first, self._later = dict[str, list[int]](), dict[str, tuple[int, ...]]()
        values = [self.later(f"v{value}") for value in range(VALUES)]
        if len({*values}) < VALUES or () in values:
            raise CotuneError(
                Code.TOKENIZER,
                "the values are not different tokens",
                where="task recall",
                got=f"{len({*values})} different of {VALUES}",
                fix="choose builtin:tiny-recall, or another model whose tokenizer knows v0 to v63",
            )

    def later(self, word: str) -> tuple[int, ...]:
        """The ids of a word behind others."""
        if word not in self._later:
            self._later[word] = tuple(bare(f" {word}", self._tokenizer))
        return self._later[word]

    def example(self, words: Sequence[str], told: Sequence[int]) -> dict[str, Any]:
        """A row without its size."""
        if words[0] not in self._first:
            self._first[words[0]] = opened([words[0]], self._tokenizer)[0][0]
        pieces = [tuple(self._first[words[0]]), *(self.later(word) for word in words[1:])]
        ends, values = [0], [self.later(value) for value in values_in(words)]
        for piece in pieces:
            ends.append(ends[-1] + len(piece))
        places = [(number, word, step) for number, word in enumerate(told) for step in range(len(pieces[word]))]
        return {
            "input_ids": [token for piece in pieces for token in piece],
            "supervised": [ends[word] + step for _, word, step in places],
            "question": [number for number, _, _ in places],
            "candidates": [[*_rivals(pieces[word], step, values)] for _, word, step in places],
        }


def _rivals(value: Sequence[int], step: int, values: Sequence[tuple[int, ...]]) -> Iterator[int]:
    """What stands at `step` in the values that agree with this one before it, each once."""
    agreeing = (other for other in values if len(other) > step and other[:step] == value[:step])
    return iter(dict.fromkeys(other[step] for other in agreeing))
