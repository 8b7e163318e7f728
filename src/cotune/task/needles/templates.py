"""What is hidden in a haystack, and what is asked about it: seven templates, each with words of its own.

The kinds of events are those of the seven clients of FedNL (appendix C.3, table 4); the wording, the names and the
numbers are ours, and all of them are synthetic.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

DEPTHS = (0.1, 0.3, 0.5, 0.7)  # of the filler, at which a template of four events has them
RESIDUES = 8  # a counter's final state is asked for modulo this
_CHANGES = 7  # of a counter, after its base

_OFFICERS = (
    "Adler", "Bauer", "Castell", "Dorran", "Ekman", "Farley", "Gruber", "Hollis", "Ivers", "Jansen", "Keller", "Lorenz",
    "Marlow", "Nolan", "Osborn", "Pascal", "Quint", "Rourke", "Sanders", "Tolman", "Ulrich", "Vance", "Weller", "Yates",
)  # fmt: skip
_COLOURS = ("Amber", "Azure", "Copper", "Crimson", "Golden", "Indigo", "Ivory", "Jade", "Scarlet", "Silver", "Violet")
_NOUNS = (
    "Anchor", "Arrow", "Beacon", "Canyon", "Cedar", "Comet", "Delta", "Ember", "Glacier", "Harbor", "Lantern", "Meteor",
    "Orchid", "Pioneer", "Quarry", "Ridge", "Summit", "Thunder", "Tower", "Vector", "Willow", "Zenith",
)  # fmt: skip
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip


@dataclass(frozen=True)
class Hidden:
    """Events in the order of the text, a question, and four values of which the first is the answer.

    Attributes:
        events: sentences.
        places: the depth of each, as a fraction of the filler.
        question: about one event, or about all of them.
        values: the answer, then three others.
    """

    events: tuple[str, ...]
    places: tuple[float, ...]
    question: str
    values: tuple[str, ...]


def passkey(draw: random.Random, asked: int) -> Hidden:
    """A security passkey of seven digits for each of four officers."""
    names = draw.sample(_OFFICERS, 4)
    keys = [str(number) for number in draw.sample(range(10**6, 10**7), 4)]
    return _pairs(
        names, keys, asked, "The security passkey of Officer {} is {}.", "What is the security passkey of Officer {}?"
    )


def uuid(draw: random.Random, asked: int) -> Hidden:
    """An operational code of three parts for each of four devices."""
    devices = [f"DX-{number}" for number in draw.sample(range(100, 1000), 4)]
    codes = [
        f"{number >> 32:04x}-{number >> 16 & 0xFFFF:04x}-{number & 0xFFFF:04x}"
        for number in draw.sample(range(2**48), 4)
    ]
    return _pairs(
        devices, codes, asked, "The operational code of device {} is {}.", "What is the operational code of device {}?"
    )


def name_date(draw: random.Random, asked: int) -> Hidden:
    """The date on which each of four officers filed a report."""
    names = draw.sample(_OFFICERS, 4)
    days = draw.sample(range(28 * 12 * 50), 4)
    dates = [f"{day % 28 + 1} {_MONTHS[day // 28 % 12]} {1970 + day // 28 // 12}" for day in days]
    return _pairs(
        names, dates, asked, "Officer {} filed the report on {}.", "On which date did Officer {} file the report?"
    )


def phrase(draw: random.Random, asked: int) -> Hidden:
    """The activation codeword of each of four missions."""
    missions = [_named(number) for number in draw.sample(range(len(_COLOURS) * len(_NOUNS)), 4)]
    words = [_named(number).lower().replace(" ", "-") for number in draw.sample(range(len(_COLOURS) * len(_NOUNS)), 4)]
    return _pairs(
        missions,
        words,
        asked,
        "The activation codeword of mission {} is {}.",
        "What is the activation codeword of mission {}?",
    )


def counter(draw: random.Random, asked: int) -> Hidden:
    """A base and seven changes, spread evenly; all of them decide the final value modulo 8."""
    del asked
    state = draw.randrange(10, 100)
    events = [f"The counter starts at {state}."]
    for _ in range(_CHANGES):
        step, up = draw.randrange(1, 10), draw.random() < 0.5
        state += step if up else -step
        events.append(f"The counter goes {'up' if up else 'down'} by {step}.")
    others = draw.sample([residue for residue in range(RESIDUES) if residue != state % RESIDUES], 3)
    return Hidden(
        tuple(events),
        tuple((number + 0.5) / len(events) for number in range(len(events))),
        f"What is the final value of the counter modulo {RESIDUES}?",
        tuple(str(value) for value in (state % RESIDUES, *others)),
    )


def multi_key(draw: random.Random, asked: int) -> Hidden:
    """A secret of four digits for each of four keys."""
    keys = [word.lower() for word in draw.sample(_NOUNS, 4)]
    secrets = [str(number) for number in draw.sample(range(1000, 10000), 4)]
    return _pairs(keys, secrets, asked, "The secret of key {} is {}.", "What is the secret of key {}?")


def multi_value(draw: random.Random, asked: int) -> Hidden:
    """Four codewords, of which one is asked for by its rank."""
    words = [word.lower() for word in draw.sample(_NOUNS, 4)]
    return _pairs("1234", words, asked, "Codeword {}: {}.", "Which word is Codeword {}?")


TEMPLATES: Mapping[str, Callable[[random.Random, int], Hidden]] = {
    "passkey": passkey,
    "uuid": uuid,
    "name-date": name_date,
    "phrase": phrase,
    "counter": counter,
    "multi-key": multi_key,
    "multi-value": multi_value,
}


def _pairs(names: Sequence[str], values: Sequence[str], asked: int, event: str, question: str) -> Hidden:
    """Four events of a name and a value, and a question about the name at `asked`."""
    others = [value for number, value in enumerate(values) if number != asked]
    events = tuple(event.format(name, value) for name, value in zip(names, values, strict=True))
    return Hidden(events, DEPTHS, question.format(names[asked]), (values[asked], *others))


def _named(number: int) -> str:
    """A name of a colour and a thing, `Amber Anchor`."""
    return f"{_COLOURS[number % len(_COLOURS)]} {_NOUNS[number // len(_COLOURS)]}"
