"""Events in as much filler as fits: a whole of so many tokens, in which depths are fractions of its sentences."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from cotune.task.letters import Read

_RATE = 0.25  # tokens of a character, before the first try


def haystack(events: Sequence[str], places: Sequence[float], filler: Sequence[str], question: str) -> str:
    """The text, then the question: each event stands behind the sentence that its fraction of the filler ends with."""
    said, done = list[str](), 0
    for event, place in zip(events, places, strict=True):
        until = round(place * len(filler))
        said += [*filler[done:until], event]
        done = until
    return " ".join([*said, *filler[done:]]) + "\n\n" + question


def fitted(
    make: Callable[[Sequence[str]], str], sentences: Iterator[str], read: Read, most: int
) -> tuple[str, list[int]] | None:
    """A haystack of at most `most` tokens that one more sentence would make longer, and its ids; None where none fits.

    How many sentences fit is guessed from their characters and the tokens of the last try, until a number fits and the
    next one does not.

    Args:
        make: the text of a haystack with some filler.
        sentences: filler, without an end.
        read: the ids of a text.
        most: how many ids fit.
    """
    known, ends = list[str](), [0]  # sentences so far, and the characters of the first n of them

    def grow() -> None:
        known.append(next(sentences))
        ends.append(ends[-1] + 1 + len(known[-1]))

    def tried(number: int) -> tuple[str, list[int]]:
        text = make(known[:number])
        return text, read(text)

    best = tried(0)
    frame, low, high = len(best[1]), 0, most  # a sentence is a token at least, and so are the events
    rate = _RATE
    while high - low > 1 and frame <= most:
        room = (most - frame) / rate
        while len(known) <= low or (ends[-1] <= room and len(known) < high):
            grow()
        number = min(max(bisect_right(ends, room) - 1, low + 1), high - 1)
        found = tried(number)
        rate = max(len(found[1]) - frame, 1) / ends[number]
        if len(found[1]) <= most:
            best, low = found, number
        else:
            high = number
    return best if frame <= most else None
