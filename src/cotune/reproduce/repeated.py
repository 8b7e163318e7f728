"""Recall of keys that come again and again: a stream of any length, and rows of a few of its events to train on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from cotune.core.contracts import Row
from cotune.core.seeds import derive
from cotune.task import Recall
from cotune.task.story import FILLERS, VALUES


class Repeated(Recall):
    """Associative recall of keys that come again and again, asked for, told, and written, in rows of a stream.

    Attributes:
        events: of a row; the keys of each are one of `pairs`, and their values never change.
    """

    kind: ClassVar[str] = "cotune.reproduce.repeated:Repeated"

    events: Annotated[int, Field(ge=1, le=1000)] = 12

    def _row(self, draw: random.Random, gap: int, client: int | None, place: str) -> Row:
        words, told = story(draw, self._keys(draw, client), self.events, gap)
        return {"text": " ".join(words), "told": tuple(told), "gap": gap, "place": place}


def repeated(seed: int, words: int, keys: Sequence[int], gap: int = 4) -> tuple[list[str], list[int]]:
    """A synthetic stream of at least `words` words, and the places of told values in it.

    Args:
        seed: decides everything.
        words: how many; what is cut off behind them is the reader's business.
        keys: that come again and again.
        gap: as of `story`.
    """
    return story(random.Random(derive(seed, "repeated stream")), keys, -(-words // 7), gap)


def story(draw: random.Random, keys: Sequence[int], events: int, gap: int) -> tuple[list[str], list[int]]:
    """Words, and the places of told values in them.

    In each event a key is asked for and told, `k ? v ;`, and then written, `k v ;`. The first time nothing can know its
    value; later the words have said it.

    Args:
        draw: of everything.
        keys: each as likely in every event.
        events: how many.
        gap: the mean number of fillers behind each question and each write.
    """
    held = {key: draw.randrange(VALUES) for key in keys}
    said, told = list[str](), list[int]()
    for _ in range(events):
        key = keys[draw.randrange(len(keys))]
        told.append(len(said) + 2)
        said += [f"k{key}", "?", f"v{held[key]}", ";", *_fillers(draw, gap)]
        said += [f"k{key}", f"v{held[key]}", ";", *_fillers(draw, gap)]
    return said, told


def _fillers(draw: random.Random, gap: int) -> list[str]:
    return [f"f{draw.randrange(FILLERS)}" for _ in range(draw.randrange(2 * gap + 1))]
