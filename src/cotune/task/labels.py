"""Labels as numbers from 0: whatever is not clearly one of the classes is an error with its row, never class 0."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from cotune.core.errors import Code, CotuneError
from cotune.task.column import is_missing

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|[+-]?inf(inity)?", re.IGNORECASE)
_MOST_NAMES = 1000  # more names than this are texts, not classes

Place = Callable[[int], str]


def numbered(
    cells: Sequence[Any], place: Place, declared: tuple[str, ...] = (), classes: int | None = None
) -> tuple[list[int], tuple[str, ...]]:
    """The class number of each cell, and the class names in the order of their numbers.

    Args:
        cells: integers from 0 (also as text, or as floats without a fraction), booleans, or names, which are sorted.
        place: where a cell stands, for errors.
        declared: the class names that the source declares; integers index them.
        classes: how many classes there are when some may have no rows; None counts those that occur.

    Raises:
        CotuneError: E_LABEL for a cell that is none of the classes, E_DATA when only one class occurs.
    """
    kind = _kind(cells)
    for row, cell in enumerate(cells):
        if is_missing(cell):
            _refuse("no label", place(row), None, _range(cells, kind, declared, classes))
    if kind == "names":
        numbers, names = _named(cells, place, declared)
        if classes is not None and classes != len(names):
            _refuse("other classes than said", "label column", f"{len(names)} names", f"{classes} classes")
    else:
        numbers, names = _counted(cells, place, kind, declared, classes)
    if len(set(numbers)) < 2:
        raise CotuneError(Code.DATA, "only one class in all rows", where="label column", fix="check the label column")
    return numbers, names


def _kind(cells: Sequence[Any]) -> str:
    """What most of the cells are: 'flags', 'names' or 'numbers'; text that reads as a number is one."""
    kinds = Counter(_kind_of(cell) for cell in cells if not is_missing(cell))
    return max(kinds, key=lambda kind: (kinds[kind], kind)) if kinds else "numbers"


def _kind_of(cell: object) -> str:
    if isinstance(cell, bool):
        return "flags"
    return "names" if isinstance(cell, str) and not _NUMBER.fullmatch(cell.strip()) else "numbers"


def _named(cells: Sequence[Any], place: Place, declared: tuple[str, ...]) -> tuple[list[int], tuple[str, ...]]:
    for row, cell in enumerate(cells):
        if not isinstance(cell, str) or (declared and cell not in declared):
            expected = f"one of {len(declared)} declared names" if declared else "a name, like most labels"
            _refuse("not a class", place(row), _shown(cell), expected)
    names = declared or tuple(sorted(set(cells)))
    if len(names) > _MOST_NAMES:
        _refuse("too many class names", "label column", len(names), f"at most {_MOST_NAMES}; is this the label column?")
    number = {name: index for index, name in enumerate(names)}
    return [number[cell] for cell in cells], names


def _counted(
    cells: Sequence[Any], place: Place, kind: str, declared: tuple[str, ...], classes: int | None
) -> tuple[list[int], tuple[str, ...]]:
    expected = _range(cells, kind, declared, classes)
    numbers: list[int] = []
    for row, cell in enumerate(cells):
        number = _integer(cell) if _kind_of(cell) == kind else None
        if number is None or number < 0:
            _refuse("not a class", place(row), _shown(cell), expected)
        numbers.append(number)
    count = _count(cells, kind, declared, classes)
    if count > 1 or set(numbers) == {0}:
        for row, number in enumerate(numbers):
            if number >= count:
                _refuse("not a class", place(row), number, expected)
    if kind == "flags":
        return numbers, ("False", "True")
    return numbers, declared or tuple(str(number) for number in range(count))


def _count(cells: Sequence[Any], kind: str, declared: tuple[str, ...], classes: int | None) -> int:
    """How many classes there are: as said, as declared, or as many different ones as occur."""
    if kind == "flags":
        return 2
    found = {number for cell in cells if (number := _integer(cell)) is not None and number >= 0}
    return classes or len(declared) or len(found)


def _range(cells: Sequence[Any], kind: str, declared: tuple[str, ...], classes: int | None) -> str:
    if kind == "names":
        return "a class name"
    return "true or false" if kind == "flags" else f"an integer in 0..{_count(cells, kind, declared, classes) - 1}"


def _integer(cell: Any) -> int | None:
    """The integer that a cell is, also as text or with a fraction of zero; None for anything else."""
    try:
        number = float(cell) if isinstance(cell, str) else cell
        return int(number) if number == int(number) else None
    except (TypeError, ValueError, OverflowError):
        return None


def _shown(cell: object) -> str:
    """A number as it is, of anything else its kind alone: a text may be a row's."""
    return str(cell) if isinstance(cell, int | float) else f"a {type(cell).__name__}"


def _refuse(what: str, where: str, got: object, expected: str) -> NoReturn:
    fix = "labels count from 0; set classes when one has no rows" if "integer" in expected else "mend the label column"
    raise CotuneError(Code.LABEL, what, where=where, got=got, expected=expected, fix=fix)
