"""Plain values as TOML, so that what is shown can be saved and run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def dump(table: Mapping[str, Any]) -> str:
    """`table` as TOML: scalars first, then tables, then arrays of tables; None is left out, as TOML has no null."""
    return "\n".join(_table(table, ())).strip() + "\n"


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    lines, inner = [], []
    for key, value in table.items():
        place = (*path, _key(key))
        if isinstance(value, Mapping):
            inner += ["", f"[{'.'.join(place)}]", *_table(value, place)]
        elif _is_tables(value):
            for row in value:
                inner += ["", f"[[{'.'.join(place)}]]", *_table(row, place)]
        elif value is not None:
            lines.append(f"{place[-1]} = {_value(value)}")
    return lines + inner


def _is_tables(value: object) -> bool:
    several = isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0
    return several and all(isinstance(row, Mapping) for row in value)  # type: ignore[attr-defined]


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return _text(value)
        case Mapping():
            return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None) + " }"
        case Sequence():
            return "[" + ", ".join(_value(item) for item in value) + "]"
    raise TypeError(f"TOML has no {type(value).__name__}")


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _text(key)


def _text(text: str) -> str:
    """A basic string; JSON escapes what TOML wants escaped, but for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
