"""Synthetic multiple choice: what colour a thing has in each of several places, for a client a place."""

from __future__ import annotations

import random
from typing import Any, ClassVar

from pydantic import Field

from cotune.core.seeds import derive
from cotune.task.generator import Generator, pick

_COLOURS = ("black", "green", "red", "white")
_PLACES = (
    "attic", "bakery", "cellar", "garage", "garden", "hall", "kitchen", "library", "market", "museum", "office",
    "school", "shop", "stable", "studio", "theatre",
)  # fmt: skip
_THINGS = (
    "basket", "bench", "book", "bottle", "bowl", "box", "chair", "clock", "coat", "cup", "curtain", "door", "flag",
    "hat", "lamp", "mirror", "rope", "rug", "scarf", "shelf", "spoon", "table", "vase", "wheel",
)  # fmt: skip
_OPENINGS = (
    "", "Please tell me: ", "Quickly now: ", "One more thing: ", "A guest asks: ", "The manager asks: ",
    "My sister asks: ", "For the list: ", "To be sure: ", "As far as you know: ", "Once again: ", "Last question: ",
)  # fmt: skip
_FRAMES = (
    "what colour is the {thing} in the {place}?", "in the {place}, what colour does the {thing} have?",
    "the {thing} in the {place} is of which colour?", "which colour has the {thing} that stands in the {place}?",
)  # fmt: skip


class Choices(Generator):
    """Synthetic questions with four options, whose answers are facts of their domain, with a known best accuracy.

    A question names its place and a thing; which of four colours the thing has there is to be learned by heart, from
    questions in other words or the same; how many are the same, `duplicates` of the data says. The options stand in one
    order, so that the letter can be learned with the fact, unless they are shuffled.

    Attributes:
        clients: how many domains there are; a reference says `domains`.
        things: how many facts a domain has.
        noise: the share of answers that are another colour; the best possible accuracy is 1 − noise.
        shuffled: whether the options stand in another order in every row.
    """

    name: ClassVar[str] = "choice"
    columns: ClassVar[tuple[str, ...]] = ("question", "choices", "answer", "domain")

    clients: int = Field(default=5, ge=1, le=10**5, alias="domains")
    things: int = Field(default=8, ge=1, le=len(_THINGS))
    noise: float = Field(default=0.05, ge=0, lt=0.75)
    shuffled: bool = False

    def row(self, index: int) -> dict[str, object]:
        """The row at `index`: question, choices (four texts), answer (the number of one, from 0) and domain."""
        draw, domain = self.draw(index), self.domain(index)
        thing = int(draw.random() * self.things)
        right = self.colours(domain)[thing]
        if draw.random() < self.noise:
            right = pick(draw, [colour for colour in _COLOURS if colour != right])
        choices = draw.sample(_COLOURS, len(_COLOURS)) if self.shuffled else [*_COLOURS]
        asked = pick(draw, _FRAMES).format(thing=_THINGS[thing], place=_place(domain))
        opening = pick(draw, _OPENINGS)
        return {
            "question": opening + asked if opening else asked.capitalize(),
            "choices": choices,
            "answer": choices.index(right),
            "domain": self.domain_name(index),
        }

    def colours(self, domain: int) -> list[str]:
        """The colour of each thing in a domain's place; none is there much more often than another."""
        dealt = [_COLOURS[thing % len(_COLOURS)] for thing in range(self.things)]
        random.Random(derive(self.seed, self.name, "facts", domain)).shuffle(dealt)
        return dealt

    @property
    def facts(self) -> dict[str, Any]:
        """That the rows are synthetic, and the accuracy of who knows every fact."""
        return {**super().facts, "optimum_accuracy": 1.0 - self.noise}


def _place(domain: int) -> str:
    """The name of a domain's place; past the last one they are numbered."""
    again, place = divmod(domain, len(_PLACES))
    return _PLACES[place] if not again else f"{_PLACES[place]} {again + 1}"
