"""What the cells of a column say: whether one is missing, which rows share a value, and client ids made from values."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from cotune.core.errors import Code, CotuneError


def by_value(keys: Sequence[object]) -> dict[str, list[int]]:
    """Key as text -> its positions, in the order of first appearance.

    Raises:
        CotuneError: E_DATA for a key that is missing: None, NaN or blank.
    """
    groups: dict[str, list[int]] = {}
    for row, key in enumerate(keys):
        if is_missing(key):
            raise CotuneError(Code.DATA, "a row without a key", where=f"row {row + 1} of those used", fix="fill it in")
        groups.setdefault(str(key), []).append(row)
    return groups


def by_class(labels: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    """Label -> its positions, in the order of first appearance; None is a class, and so is NaN.

    Raises:
        CotuneError: E_DATA for what cannot be a class, such as a list.
    """
    groups: dict[Hashable, list[int]] = {}
    for row, label in enumerate(labels):
        try:
            groups.setdefault(_plain(label), []).append(row)
        except (TypeError, ValueError):
            got = type(label).__name__
            raise CotuneError(
                Code.DATA, "not a class", where=f"row {row + 1}", got=got, expected="a number, a text or None"
            ) from None
    return groups


def is_missing(value: object) -> bool:
    """Whether a cell is None, NaN or blank."""
    return value is None or value != value or (isinstance(value, str) and not value.strip())  # noqa: PLR0124


def client_names(values: Iterable[str]) -> list[str]:
    """Client ids that are safe as folder names: the value itself, or what is left of it and a hash."""
    texts = list(values)
    plain = [re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-")[:40] for text in texts]
    same = Counter(name.casefold() for name in plain)  # some file systems do not tell A from a
    return [
        name if name and name == text and same[name.casefold()] == 1 else f"{name or 'client'}-{_short_hash(text)}"
        for name, text in zip(plain, texts, strict=True)
    ]


def _short_hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


def _plain(label: Any) -> Hashable:
    """`label` such that equal classes compare equal: array scalars by value, every NaN as the same one."""
    value = label.item() if hasattr(label, "item") else label
    return math.nan if value != value else value  # noqa: PLR0124
