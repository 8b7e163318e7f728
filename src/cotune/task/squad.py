"""How SQuAD (Rajpurkar et al. 2016) holds an answer against a right one: by the words of both that count."""

from __future__ import annotations

import re
import string
from collections import Counter

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def counted(text: str) -> list[str]:
    """The words that count: in lower case, without ASCII punctuation, without a, an, the."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def exact(told: str, answer: str) -> float:
    """1 where the same words count in the same order, else 0."""
    return float(counted(told) == counted(answer))


def f1(told: str, answer: str) -> float:
    """2 P R / (P + R) over the words that count, with repetitions; of no words at all, 1 where both have none."""
    ours, theirs = counted(told), counted(answer)
    common = (Counter(ours) & Counter(theirs)).total()
    if not ours or not theirs:
        return float(ours == theirs)
    return 2 * common / (len(ours) + len(theirs))
