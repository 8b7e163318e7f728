"""Stories of associative recall: keys are written, written again, and asked for, in words of `builtin:tiny-recall`."""

from __future__ import annotations

import random
from collections.abc import Sequence

from cotune.core.seeds import derive
from cotune.task.generator import pick

KEYS, VALUES, FILLERS = 64, 64, 16  # words that the model knows: k0…, v0…, f0…


class Story:
    """Words so far, and what each key holds.

    Attributes:
        words: as they came.
        told: places of values that were asked for.
        last: the key that was written last; −1 before any was.
    """

    def __init__(self, draw: random.Random, values: Sequence[int] = range(VALUES)) -> None:
        self.words, self.told, self.last = list[str](), list[int](), -1
        self._draw, self._values, self._held = draw, values, dict[int, int]()

    @property
    def known(self) -> list[int]:
        """The keys that were written."""
        return list(self._held)

    def write(self, key: int) -> None:
        """`k v ;` with another value than the key has."""
        self._held[key] = pick(self._draw, [value for value in self._values if value != self._held.get(key)])
        self.words += [f"k{key}", f"v{self._held[key]}", ";"]
        self.last = key

    def ask(self, key: int) -> None:
        """`k ? v ;` with the latest value."""
        self.told.append(len(self.words) + 2)
        self.words += [f"k{key}", "?", f"v{self._held[key]}", ";"]

    def fill(self, count: int) -> None:
        """Filler words."""
        self.words += [f"f{self._draw.randrange(FILLERS)}" for _ in range(count)]


def recall_stream(seed: int, words: int, keys: int = 8, gap: int = 4) -> tuple[list[str], list[int]]:
    """A synthetic stream of at least `words` words, and the places of the told values in it.

    Keys are written, overwritten and asked for without an end. Half of the questions are about the key that was written
    last, half about any that was written.

    Args:
        seed: decides everything.
        words: how many; the last write or question is whole.
        keys: how many different ones.
        gap: the mean number of fillers behind each write and question.
    """
    draw = random.Random(derive(seed, "recall stream"))
    pool = draw.sample(range(KEYS), keys)
    story = Story(draw)
    while len(story.words) < words:
        if story.known and draw.random() < 0.5:
            story.ask(story.last if draw.random() < 0.5 else pick(draw, story.known))
        else:
            story.write(pick(draw, pool))
        story.fill(draw.randrange(2 * gap + 1))
    return story.words, story.told


def values_in(words: Sequence[str]) -> list[str]:
    """The different values in a story, in the order in which they come."""
    return list(dict.fromkeys(word for word in words if word.startswith("v")))
