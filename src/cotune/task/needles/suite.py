"""Eight needle tasks in the structure of RULER (Hsieh et al. 2024): what is hidden, in what, and what is asked for.

Kinds of keys and values, how many of each, kinds of haystacks and depths are RULER's. Every sentence and every word is
ours, and all of them are synthetic.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import cycle, repeat
from typing import Literal

from cotune.core.seeds import derive
from cotune.task.needles.filler import Filler

Hay = Literal["noise", "essay", "needle"]
Word = Literal["words", "numbers", "uuids"]

DEPTHS = tuple(Fraction(round(100 * step / 39), 100) for step in range(40))  # whole percents, 0 to 100
PARTS = 10**6  # equal parts of a haystack of lines, of which any may have the needle
NOISE = "Snow lies on the roof. The kettle is warm. Somebody hums next door. Rain may come later. Nobody hurries."
EVENT = "The secret {} of {} is {}."
ABOUT_ONE = "Somewhere in the text below stands a secret {} to remember: it is asked for at the end."
ABOUT_ALL = "Somewhere in the text below stand secret {} to remember: they are asked for at the end."
QUESTION = "Which secret {0} does the text give for {1}?\nFor {1} the text gives the secret {0}"

_ADJECTIVES = (
    "ample", "azure", "bold", "brave", "bright", "brisk", "broad", "calm", "civil", "clever", "crisp", "curly", "damp",
    "dapper", "dusty", "eager", "early", "fancy", "fleet", "fresh", "frosty", "gentle", "giant", "glad", "golden",
    "grand", "hasty", "hollow", "humble", "icy", "jolly", "keen", "kind", "lively", "lofty", "loyal", "lucid", "mellow",
    "merry", "mild", "misty", "modest", "narrow", "neat", "noble", "plain", "polite", "proud", "rapid", "rosy", "round",
    "rustic", "sharp", "silent", "sleepy", "smooth", "solid", "steady", "sunny", "swift", "tidy", "vivid", "warm",
    "witty",
)  # fmt: skip
_NOUNS = (
    "acorn", "anchor", "apron", "arrow", "bamboo", "barrel", "basin", "beacon", "blanket", "bonnet", "bridge", "bucket",
    "cabin", "candle", "canoe", "carpet", "castle", "cello", "chimney", "compass", "cradle", "dome", "drawer", "easel",
    "engine", "fabric", "falcon", "feather", "ferry", "fiddle", "forest", "fountain", "garden", "glacier", "goblet",
    "hammock", "harbor", "island", "jacket", "jigsaw", "kernel", "kettle", "ladder", "lantern", "lemon", "locket",
    "marble", "meadow", "mirror", "needle", "orchard", "paddle", "parrot", "pebble", "pillow", "quarry", "ribbon",
    "saddle", "shutter", "spindle", "teapot", "tunnel", "violin", "wagon",
)  # fmt: skip


@dataclass(frozen=True)
class Sought:
    """What a task hides and asks for.

    Attributes:
        hay: 'noise', lines of the same sentences; 'essay', prose; 'needle', lines that look like what is sought.
        key: what keys are.
        value: what values are.
        keys: how many there are.
        values: of each key.
        asked: how many keys are asked for.
    """

    hay: Hay
    key: Word
    value: Word
    keys: int = 1
    values: int = 1
    asked: int = 1


SUITE: Mapping[str, Sought] = {
    "single-1": Sought("noise", "words", "numbers"),
    "single-2": Sought("essay", "words", "numbers"),
    "single-3": Sought("essay", "words", "uuids"),
    "multikey-1": Sought("essay", "words", "numbers", keys=4),
    "multikey-2": Sought("needle", "words", "numbers"),
    "multikey-3": Sought("needle", "uuids", "uuids"),
    "multivalue": Sought("essay", "words", "numbers", values=4),
    "multiquery": Sought("essay", "words", "numbers", keys=4, asked=4),
}


@dataclass(frozen=True)
class Needles:
    """Drawn needles and the question about them.

    Attributes:
        events: sentences, in the order of the text.
        places: where each stands, as a fraction of the haystack.
        about: that something is hidden, which stands before the haystack.
        question: what stands after it, up to where the answer begins.
        names: the keys that are asked for.
        values: theirs: by key, and those of one key in the order of the text.
        depth: where the only one of them stands; None where there are several.
    """

    events: tuple[str, ...]
    places: tuple[Fraction, ...]
    about: str
    question: str
    names: tuple[str, ...]
    values: tuple[str, ...]
    depth: Fraction | None


def needles(sought: Sought, draw: random.Random) -> Needles:
    """What is hidden in a row, and what is asked: all drawn."""
    names = _several(sought.key, draw, sought.keys)
    values = _several(sought.value, draw, sought.keys * sought.values)
    pairs = [(names[number // sought.values], value) for number, value in enumerate(values)]
    chosen = draw.sample(names, sought.asked)
    right = [(place, value) for name in chosen for place, (key, value) in enumerate(pairs) if key == name]
    if sought.hay == "essay":
        places = sorted(draw.sample(DEPTHS, len(pairs)))
    else:
        places = sorted(Fraction(draw.randrange(PARTS), PARTS) for _ in pairs)
    several = len(right) > 1
    what = sought.value if several else sought.value[:-1]
    listed = " and ".join(filter(None, (", ".join(chosen[:-1]), chosen[-1])))
    return Needles(
        events=tuple(EVENT.format(sought.value[:-1], *pair) for pair in pairs),
        places=tuple(places),
        about=(ABOUT_ALL if several else ABOUT_ONE).format(what),
        question=QUESTION.format(what, listed),
        names=tuple(chosen),
        values=tuple(value for _, value in right),
        depth=None if several else places[right[0][0]],
    )


def hay(sought: Sought, seed: int, row: Needles, filler: Filler) -> Iterator[str]:
    """What surrounds the needles, without an end: lines of noise, sentences of prose, or needles of other keys."""
    match sought.hay:
        case "noise":
            return repeat(NOISE)
        case "essay":
            return filler.sentences(seed)
    return _distractors(sought, random.Random(derive(seed, "distractors")), row)


def buried(sought: Sought, row: Needles, units: Sequence[str]) -> str:
    """The text: each needle stands behind floor(place · n) of the n sentences or lines around it."""
    said, done = list[str](), 0
    for event, place in zip(row.events, row.places, strict=True):
        until = int(place * len(units))
        said += [*units[done:until], event]
        done = until
    return (" " if sought.hay == "essay" else "\n").join([*said, *units[done:]])


def _distractors(sought: Sought, draw: random.Random, row: Needles) -> Iterator[str]:
    """Needles of other keys and values; no value comes twice, and a word only where all have been."""
    told = {*row.values}
    for name in _others(sought.key, draw, row.names):
        value = next(one for one in iter(lambda: _one(sought.value, draw), None) if one not in told)
        told.add(value)
        yield EVENT.format(sought.value[:-1], name, value)


def _others(kind: Word, draw: random.Random, taken: Collection[str]) -> Iterator[str]:
    """Keys that are not `taken`, without an end: words in a drawn order, and round again; else new ones."""
    if kind == "words":
        order = draw.sample(range(len(_ADJECTIVES) * len(_NOUNS)), len(_ADJECTIVES) * len(_NOUNS))
        yield from cycle(name for name in map(_word, order) if name not in taken)
    while True:
        yield _one(kind, draw)


def _several(kind: Word, draw: random.Random, count: int) -> list[str]:
    """Different keys or values."""
    found = dict[str, None]()
    while len(found) < count:
        found[_one(kind, draw)] = None
    return [*found]


def _one(kind: Word, draw: random.Random) -> str:
    """A key or a value: two words, seven digits, or a version-4 UUID."""
    match kind:
        case "words":
            return _word(draw.randrange(len(_ADJECTIVES) * len(_NOUNS)))
        case "numbers":
            return str(draw.randrange(10**6, 10**7))
    return str(uuid.UUID(int=draw.getrandbits(128), version=4))


def _word(number: int) -> str:
    """`calm-lantern`: an adjective and a noun."""
    return f"{_ADJECTIVES[number // len(_NOUNS)]}-{_NOUNS[number % len(_NOUNS)]}"
