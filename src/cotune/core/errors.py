"""Errors as users and reports see them: one line, one code, one exit status."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import StrEnum


class Code(StrEnum):
    """What went wrong, as a stable word; reports and tests compare these, never texts."""

    LATE = "E_LATE"
    ROUND = "E_ROUND"
    BASE = "E_BASE"
    DUPLICATE = "E_DUP"
    RUN = "E_RUN"
    KEYS = "E_KEYS"
    SHAPE = "E_SHAPE"
    DTYPE = "E_DTYPE"
    NONFINITE = "E_NONFINITE"
    COUNT = "E_COUNT"
    SIZE = "E_SIZE"
    TRUNCATED = "E_TRUNC"
    FORMAT = "E_FORMAT"
    HASH = "E_HASH"
    SCALAR = "E_SCALAR"
    SEED = "E_SEED"
    MODEL = "E_MODEL"
    TOKENIZER = "E_TOKENIZER"
    VERSION = "E_VERSION"
    CONFIG = "E_CONFIG"
    CONFLICT = "E_CONFLICT"
    DATA = "E_DATA"
    LABEL = "E_LABEL"
    CHECKPOINT = "E_CKPT"
    DISK = "E_DISK"
    LOCK = "E_LOCK"
    QUORUM = "E_QUORUM"
    BUDGET = "E_BUDGET"
    ENGINE = "E_ENGINE"
    CLIENT = "E_CLIENT"


_STATUS = {
    Code.CONFIG: 2,
    Code.CONFLICT: 2,
    Code.VERSION: 2,
    Code.DATA: 3,
    Code.LABEL: 3,
    Code.MODEL: 3,
    Code.TOKENIZER: 3,
    Code.CHECKPOINT: 4,
    Code.HASH: 4,
    Code.DISK: 4,
    Code.LOCK: 4,
    Code.QUORUM: 5,
    Code.BUDGET: 6,
}


class CotuneError(Exception):
    """`error[CODE] what · where · got vs expected · fix`, on one line; never training text or secrets.

    Attributes:
        code: the stable word.
        status: the exit status of the command line (2 config, 3 data, 4 checkpoint, 5 too few replies, 6 privacy
            budget, 7 everything between processes).
    """

    def __init__(
        self,
        code: Code,
        what: str,
        *,
        where: str = "",
        got: object = None,
        expected: object = None,
        fix: str = "",
    ) -> None:
        self.code = code
        self.status = _STATUS.get(code, 7)
        versus = []
        if got is not None:
            versus.append(f"got {got}")
        if expected is not None:
            versus.append(f"expected {expected}")
        self.text = " · ".join(one_line(part) for part in (what, where, ", ".join(versus), fix) if part)
        super().__init__(self.text)

    def __str__(self) -> str:
        return f"error[{self.code}] {self.text}"

    def __reduce__(self) -> tuple[object, ...]:
        return (rebuilt, (self.code, self.text))


def rebuilt(code: Code, text: str) -> CotuneError:
    """The error of another process, from its code and its text."""
    error = CotuneError(code, "")
    error.text, error.args = text, (text,)
    return error


def one_line(text: str, limit: int = 400) -> str:
    """`text` without line breaks or control characters, cut at `limit` characters: safe to log and to print."""
    flat = " ".join(text.split())
    clean = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in flat)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def nearest(word: str, known: Iterable[str]) -> str:
    """`did you mean 'x'? Known: a, b, x`: the hint that ends an error about an unknown name."""
    names = sorted(known)
    match = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    hint = f"did you mean '{match[0]}'? " if match else ""
    return f"{hint}known: {', '.join(names)}"
