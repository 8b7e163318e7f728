"""A configuration error as one line: the key, the value, what is allowed, the nearest key."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from cotune.core.errors import Code, CotuneError, nearest


def explain(error: ValidationError, model: type[BaseModel], where: str = "") -> CotuneError:
    """The first problem in words, and how many more there are.

    Args:
        error: what pydantic found.
        model: what was validated.
        where: what comes before its keys.
    """
    problems = error.errors(include_url=False)
    # A misspelt key is unknown, and the one that was meant is missing: the first says more.
    first = next((problem for problem in problems if problem["type"] == "extra_forbidden"), problems[0])
    place = ".".join(str(step) for step in (where, *first["loc"]) if step != "")
    more = f"{len(problems) - 1} more" if len(problems) > 1 else ""
    if first["type"] == "extra_forbidden":
        key = str(first["loc"][-1])
        hint = nearest(key, _fields(model, first["loc"][:-1]))
        return CotuneError(
            Code.CONFIG, f"unknown key '{key}'", where=place, fix=" · ".join(x for x in (hint, more) if x)
        )
    if first["type"] == "missing":
        return CotuneError(Code.CONFIG, f"'{first['loc'][-1]}' is missing", where=place, fix=more)
    what = first["msg"].removeprefix("Value error, ")
    got = first["input"] if isinstance(first["input"], str | int | float | bool) else None
    return CotuneError(Code.CONFIG, what[0].lower() + what[1:], where=place, got=got, fix=more)


def _fields(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """The keys that a nested model knows."""
    for step in path:
        field = model.model_fields.get(str(step))
        inner = _model_in(field.annotation) if field else None
        model = inner or model
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None
