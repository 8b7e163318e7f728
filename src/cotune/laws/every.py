"""The laws of every part."""

from __future__ import annotations

from cotune.core.part import Part, kind_of, resolve
from cotune.laws.toy import same


def is_a_value(part: Part) -> None:
    """It equals the part that its own table makes, and hashes alike."""
    again = resolve("part", {kind_of(type(part)): type(part)}, part.model_dump())
    same("the part made from its table", again, part)
    same("its hash", hash(again), hash(part))


def says_what_it_does(part: Part) -> None:
    """The first line of its docstring says what it does."""
    assert len(type(part).summary()) > 10, "no docstring"


LAWS = (
    is_a_value,
    says_what_it_does,
)
