"""Synthetic prose and synthetic instructions from a small grammar, with rules that a small model can learn."""

from __future__ import annotations

import random
from typing import Any, ClassVar

from pydantic import Field

from cotune.task.generator import Generator, pick

# Who does what: the verb belongs to the animal, the place to the verb.
_ANIMALS = (
    "badger", "beetle", "crane", "donkey", "falcon", "fox", "goose", "hare", "heron", "horse", "lynx", "magpie",
    "mole", "otter", "owl", "pigeon", "rabbit", "raven", "seal", "sparrow", "squirrel", "swan", "toad", "wolf",
)  # fmt: skip
_VERBS = ("climbs", "digs", "drinks", "hides", "jumps", "listens", "runs", "sings", "sleeps", "swims", "waits", "walks")
_PLACES = ("by the river", "in the barn", "in the meadow", "near the wall", "on the hill", "under the bridge")
_TIMES = ("at dawn", "at noon", "at night", "every morning", "in autumn", "in spring", "in the evening", "in the rain")
_MOODS = ("brown", "calm", "grey", "hungry", "little", "old", "quick", "quiet", "shy", "tired", "wild", "young")
_LINKS = ("Then", "Later", "Soon", "Meanwhile", "After that")
# What a thing is: every property follows from the thing.
_THINGS = (
    "basket", "bell", "bench", "boat", "bottle", "box", "bridge", "brush", "button", "candle", "chair", "clock",
    "coat", "comb", "cup", "door", "drum", "fence", "flute", "gate", "hammer", "kettle", "ladder", "lamp",
)  # fmt: skip
_PROPERTIES = {
    "colour": ("black", "blue", "brown", "green", "red", "white", "yellow"),
    "place": ("attic", "cellar", "garden", "hall", "kitchen"),
    "material": ("clay", "glass", "iron", "stone", "tin", "wood"),
}
_QUESTIONS = {
    "colour": ("What colour is the {}?", "Name the colour of the {}.", "Which colour does the {} have?"),
    "place": ("Where is the {}?", "In which room is the {}?", "Say where the {} is."),
    "material": ("What is the {} made of?", "Name the material of the {}.", "Of what is the {} made?"),
}
_ANSWERS = {
    "colour": "The {} is {}.",
    "place": "The {} is in the {}.",
    "material": "The {} is made of {}.",
}
_OWN = 6  # animals, or things, that a domain prefers


class Prose(Generator):
    """Paragraphs about animals: which one it is decides what it does and where.

    Attributes:
        sentences: of the longest paragraph.
        skew: how often a domain keeps to its own six animals instead of all.
    """

    name: ClassVar[str] = "prose"
    columns: ClassVar[tuple[str, ...]] = ("text", "domain")

    sentences: int = Field(default=4, ge=1, le=1000)
    skew: float = Field(default=0.8, ge=0, le=1)

    def row(self, index: int) -> dict[str, object]:
        """The row at `index`: text and domain."""
        draw = self.draw(index)
        count = 1 + int(draw.random() * self.sentences)
        said = [sentence(draw, number, self.domain(index), self.skew) for number in range(count)]
        return {"text": " ".join(said), "domain": self.domain_name(index)}


class Instructions(Generator):
    """Questions about things and their answers; the answer follows from the question.

    Attributes:
        skew: how often a domain keeps to its own six things instead of all.
    """

    name: ClassVar[str] = "instructions"
    columns: ClassVar[tuple[str, ...]] = ("prompt", "completion", "domain")

    skew: float = Field(default=0.8, ge=0, le=1)

    def row(self, index: int) -> dict[str, object]:
        """The row at `index`: prompt, completion and domain."""
        draw = self.draw(index)
        thing = _chosen(draw, _THINGS, self.domain(index), self.skew)
        asked = pick(draw, tuple(_PROPERTIES))
        values = _PROPERTIES[asked]
        value = values[_THINGS.index(thing) % len(values)]
        return {
            "prompt": pick(draw, _QUESTIONS[asked]).format(thing) + "\n",
            "completion": _ANSWERS[asked].format(thing, value),
            "domain": self.domain_name(index),
        }

    @property
    def facts(self) -> dict[str, Any]:
        """That the rows are synthetic, and the loss of a model that knows every thing: its answers are certain."""
        return {**super().facts, "optimum_loss": 0.0}


def sentence(draw: random.Random, number: int, domain: int = 0, skew: float = 0.0) -> str:
    """The sentence at place `number` of a paragraph; in a share `skew` of draws about the domain's own animals."""
    animal = _chosen(draw, _ANIMALS, domain, skew)
    verb = _VERBS[_ANIMALS.index(animal) // 2]
    place = _PLACES[_VERBS.index(verb) // 2]
    start = f"{pick(draw, _LINKS)} the" if number else "The"
    return f"{start} {pick(draw, _MOODS)} {animal} {verb} {place} {pick(draw, _TIMES)}."


def _chosen(draw: random.Random, words: tuple[str, ...], domain: int, skew: float) -> str:
    """A word, of the domain's own six in a share `skew` of draws."""
    if draw.random() < skew:
        words = tuple(words[(domain * 5 + step) % len(words)] for step in range(_OWN))
    return pick(draw, words)
