"""Haystacks: what is hidden, what surrounds it, and how much of it fits."""

from cotune.task.needles.dealt import dealt
from cotune.task.needles.filler import SYNTHETIC, Filler
from cotune.task.needles.haystack import fitted, haystack
from cotune.task.needles.suite import SUITE, buried, hay, needles
from cotune.task.needles.templates import TEMPLATES, Hidden

__all__ = [
    "SUITE",
    "SYNTHETIC",
    "TEMPLATES",
    "Filler",
    "Hidden",
    "buried",
    "dealt",
    "fitted",
    "hay",
    "haystack",
    "needles",
]
