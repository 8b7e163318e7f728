"""Synthetic data whose best possible score is known; a row is a function of (options, seed, index) alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cotune.core.errors import Code, CotuneError
from cotune.core.reference import Reference
from cotune.core.seeds import derive
from cotune.task.rows import Table

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


class Sentiment(BaseModel):
    """Options of `synth:sentiment`: short sentences that say something good or bad of a thing.

    Attributes:
        clients: how many domains there are, in the column `domain`.
        rows: of all domains together.
        noise: the share of labels that are flipped; the best possible accuracy is 1 − noise.
        skew: how often a domain keeps to its own six words of each polarity instead of all.
        negation: how often the opposite word is negated.
        seed: of the sentences.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    clients: int = Field(default=8, ge=1, le=10**5)
    rows: int = Field(default=2000, ge=2, le=10**7)
    noise: float = Field(default=0.05, ge=0, lt=0.5)
    skew: float = Field(default=0.8, ge=0, le=1)
    negation: float = Field(default=0.25, ge=0, le=1)
    seed: int = Field(default=0, ge=0, lt=2**63)

    def row(self, index: int) -> dict[str, object]:
        """The row at `index`: text, label (0 negative, 1 positive) and domain."""
        draw = random.Random(derive(self.seed, "sentiment", index))
        domain = index % self.clients
        good, negated = draw.random() < 0.5, draw.random() < self.negation
        words: tuple[str, ...] = _GOOD if good != negated else _BAD
        if draw.random() < self.skew:
            words = tuple(words[(domain * 5 + step) % len(words)] for step in range(_OWN))
        word = _pick(draw, words)
        said = f"not {word}" if negated else _pick(draw, _DEGREES) + word
        text = f"{_pick(draw, _OPENINGS)}the {_pick(draw, _THINGS)} was {said}{_pick(draw, _CLOSINGS)}."
        flipped = draw.random() < self.noise
        width = len(str(self.clients - 1))
        return {"text": text.capitalize(), "label": int(good != flipped), "domain": f"domain-{domain:0{width}d}"}


def sentiment(reference: Reference) -> Table:
    """The rows that the options of a `synth:sentiment` reference describe.

    Raises:
        CotuneError: E_CONFIG for an unknown option, or one out of range.
    """
    try:
        options = Sentiment.model_validate(dict(reference.options))
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        known = ", ".join(Sentiment.model_fields)
        what = f"no option '{key}'" if first["type"] == "extra_forbidden" else f"option '{key}': {first['msg']}"
        raise CotuneError(
            Code.CONFIG, what, where=reference.text, got=repr(first["input"]), fix=f"options are {known}"
        ) from None
    return Table(
        ("text", "label", "domain"),
        [options.row(index) for index in range(options.rows)],
        [("synthetic row", index + 1) for index in range(options.rows)],
        names={"label": ("negative", "positive")},
        owner="domain",
        facts={"synthetic": True, "optimum_accuracy": 1.0 - options.noise},
    )


def _pick(draw: random.Random, words: tuple[str, ...]) -> str:
    return words[int(draw.random() * len(words))]


SYNTHETIC: Mapping[str, Callable[[Reference], Table]] = {
    "sentiment": sentiment,
}
