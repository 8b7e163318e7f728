"""Synthetic data whose best possible score is known; a row is a function of (options, seed, index) alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from cotune.task.facts import Choices
from cotune.task.generator import Generator, pick
from cotune.task.prose import Instructions, Prose

_GOOD = (
    "warm", "bright", "clever", "charming", "fresh", "graceful", "honest", "lively", "lovely", "moving", "polished",
    "refined", "rich", "sharp", "sincere", "skilful", "solid", "splendid", "superb", "tender", "thoughtful", "vivid",
    "witty", "wonderful",
)  # fmt: skip
_BAD = (
    "awful", "bland", "boring", "careless", "clumsy", "cold", "crude", "dreary", "dull", "empty", "feeble", "flat",
    "hollow", "lazy", "messy", "muddled", "noisy", "poor", "shallow", "sloppy", "stale", "tedious", "tiresome", "weak",
)  # fmt: skip
_THINGS = (
    "acting", "band", "breakfast", "camera", "colour", "company", "design", "ending", "garden", "guide", "hotel",
    "journey", "keyboard", "lesson", "market", "menu", "music", "novel", "opening", "painting", "room", "screen",
    "service", "story",
)  # fmt: skip
_DEGREES = ("", "quite ", "really ", "rather ", "truly ", "very ")
_OPENINGS = ("", "as we expected, ", "in the end, ", "on the first day, ", "to my eyes, ", "to our surprise, ")
_CLOSINGS = (
    "", " from start to finish", " this time", " while it rained", ", my sister said", ", and we stayed until noon",
)  # fmt: skip
_OWN = 6  # words of each polarity that a domain prefers


class Sentiment(Generator):
    """Sentences that say something good or bad of a thing, with a known best accuracy.

    Attributes:
        noise: the share of labels that are flipped; the best possible accuracy is 1 − noise.
        skew: how often a domain keeps to its own six words of each polarity instead of all.
        negation: how often the opposite word is negated.
    """

    name: ClassVar[str] = "sentiment"
    columns: ClassVar[tuple[str, ...]] = ("text", "label", "domain")
    names: ClassVar[Mapping[str, tuple[str, ...]]] = {"label": ("negative", "positive")}

    noise: float = Field(default=0.05, ge=0, lt=0.5)
    skew: float = Field(default=0.8, ge=0, le=1)
    negation: float = Field(default=0.25, ge=0, le=1)

    def row(self, index: int) -> dict[str, object]:
        """The row at `index`: text, label (0 negative, 1 positive) and domain."""
        draw = self.draw(index)
        good, negated = draw.random() < 0.5, draw.random() < self.negation
        words: tuple[str, ...] = _GOOD if good != negated else _BAD
        if draw.random() < self.skew:
            words = tuple(words[(self.domain(index) * 5 + step) % len(words)] for step in range(_OWN))
        word = pick(draw, words)
        said = f"not {word}" if negated else pick(draw, _DEGREES) + word
        text = f"{pick(draw, _OPENINGS)}the {pick(draw, _THINGS)} was {said}{pick(draw, _CLOSINGS)}."
        flipped = draw.random() < self.noise
        return {"text": text.capitalize(), "label": int(good != flipped), "domain": self.domain_name(index)}

    @property
    def facts(self) -> dict[str, Any]:
        """That the rows are synthetic, and the accuracy of a perfect reader."""
        return {**super().facts, "optimum_accuracy": 1.0 - self.noise}


SYNTHETIC: Mapping[str, type[Generator]] = {kind.name: kind for kind in (Choices, Instructions, Prose, Sentiment)}
