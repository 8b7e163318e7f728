"""`cotune check`: the laws of a room on one part, found by its kind or by a dotted path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cotune.core import part as parts
from cotune.core.errors import Code, CotuneError, nearest, one_line
from cotune.core.part import Part
from cotune.laws import check_part
from cotune.method import ROOMS
from cotune.resolve import assigned
from cotune.task import KINDS, PARTITIONS

CHECKED: Mapping[str, Mapping[str, type[Part]]] = {**ROOMS, "task": KINDS, "partition": PARTITIONS}


def verdicts(kind: str, sets: Iterable[str] = ()) -> tuple[list[str], int]:
    """A line for every law, and how many are broken.

    Args:
        kind: of a part; with its room in front, `downlink.full`, where two rooms have it; or `package.module:Class`.
        sets: `field=value`, for what has no default or should have another value.

    Raises:
        CotuneError: E_CONFIG when there is no such part, or it cannot be built from these values.
    """
    room, kinds, name = _place(kind)
    part = parts.resolve(room, kinds, {**dict(assigned(text) for text in sets), "kind": name})
    assert isinstance(part, Part)
    found = check_part(part)
    lines = [f"{'ok    ' if fault is None else 'FAILED'}  {law}" for law, fault in found]
    faults = [fault for _, fault in found if fault is not None]
    for i, (_, fault) in enumerate(found):
        if fault is not None:
            lines[i] += f" · {one_line(fault)}"
    held = f"{len(found) - len(faults)} of {len(found)} laws hold for {one_line(repr(part))}"
    return [*lines, held], len(faults)


def _place(kind: str) -> tuple[str, Mapping[str, type[Part]], str]:
    """The room of a part, its kinds, and the part's kind in it; a dotted path needs no room."""
    if ":" in kind:
        return "check", {}, kind
    known = {f"{room}.{name}": (room, kinds, name) for room, kinds in CHECKED.items() for name in kinds}
    fitting = [place for place in known if kind in (place, known[place][2])]
    if len(fitting) == 1:
        return known[fitting[0]]
    if fitting:
        fix = f"name one: {', '.join(fitting)}"
        raise CotuneError(Code.CONFIG, f"several rooms have a part of kind '{kind}'", where="cotune check", fix=fix)
    names = known if "." in kind else {name for _, _, name in known.values()}
    raise CotuneError(Code.CONFIG, f"no part of kind '{kind}'", where="cotune check", fix=nearest(kind, names))
