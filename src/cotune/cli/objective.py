"""What a client minimises, as one line of formulas taken from the docstrings of the parts."""

from __future__ import annotations

from cotune.core.part import Part, kind_of
from cotune.method import Method

_SIGNS = frozenset("·‖²√Σ∇θ←^=/")  # a text with one of these is a formula


def objective(method: Method) -> str:
    """`mean task loss + (mu / 2) · ‖θ − θ_anchor‖², mu = 0.01`."""
    terms = ["mean task loss", *(formula(penalty) or kind_of(type(penalty)) for penalty in method.penalties)]
    names = [name for penalty in method.penalties for name, _ in _numbers(penalty)]
    values = []
    for penalty in method.penalties:
        for name, value in _numbers(penalty):
            owner = f"{penalty.kind}." if names.count(name) > 1 else ""
            values.append(f"{owner}{name} = {value:g}")
    return ", ".join([" + ".join(terms), *values])


def rule(part: Part) -> str:
    """The formula of a part, or its kind where it states none, and its numbers."""
    values = [f"{name} = {value:g}" for name, value in _numbers(part)]
    return ", ".join([formula(part) or kind_of(type(part)), *values])


def formula(part: Part) -> str | None:
    """The shortest beginning of a part's first line that ends at a comma, colon or stop and is a formula, or None.

    Punctuation inside brackets belongs to the formula.
    """
    line, depth = part.summary(), 0
    for i, sign in enumerate(line):
        depth += (sign in "([{") - (sign in ")]}")
        ends = depth == 0 and sign in ",:;." and line[i + 1 : i + 2] in ("", " ")
        if ends and _SIGNS & set(line[:i]):
            return line[:i]
    return None


def _numbers(part: Part) -> list[tuple[str, float]]:
    return [(name, value) for name, value in part if isinstance(value, int | float) and not isinstance(value, bool)]
