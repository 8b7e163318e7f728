"""Which task data is for, by the columns that it has."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cotune.core.errors import Code, CotuneError
from cotune.task.table import columns

# The first row whose columns are all there says the task.
TASKS: Sequence[tuple[tuple[str, ...], str]] = (
    (("ctx_a", "ctx_b", "endings", "label"), "hellaswag"),
    (("question", "subject", "choices", "answer"), "mmlu"),
    (("question", "choices", "answer"), "choice"),
    (("text", "label"), "classify"),
    (("messages",), "sft"),
    (("prompt", "completion"), "sft"),
    (("instruction", "output"), "sft"),
    (("text",), "text"),
)
_NAME = re.compile(r"[A-Za-z_][\w.-]{0,39}")  # the first line of a file without a header is no list of names
_SHOWN = 20


def inferred(reference: str) -> tuple[str, tuple[str, ...]]:
    """(kind of the task, the columns that say so) of what a reference names.

    Raises:
        CotuneError: E_DATA when the columns say none, or cannot be seen.
    """
    found = columns(reference)
    for needed, kind in TASKS:
        if set(needed) <= set(found):
            return kind, needed
    names = [name for name in found if _NAME.fullmatch(name)]
    shown = [*names[:_SHOWN], *([f"{len(found) - len(names)} that are no names"] if len(names) < len(found) else [])]
    known = "; ".join(f"{' and '.join(needed)} ({kind})" for needed, kind in TASKS)
    raise CotuneError(
        Code.DATA,
        "no task has these columns",
        where=reference,
        got=f"columns {', '.join(shown)}",
        expected=known,
        fix="rename the columns, or name the task: KIND:DATA",
    )
