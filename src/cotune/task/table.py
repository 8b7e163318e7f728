"""A data reference as a table of rows, wherever the reference points."""

from __future__ import annotations

from cotune.core.errors import Code, CotuneError, nearest
from cotune.core.events import Say, silent
from cotune.core.reference import Reference, parse
from cotune.task.files import columns_at, read_path
from cotune.task.library import hub, hub_columns
from cotune.task.packaged import PACKAGED
from cotune.task.rows import Table
from cotune.task.synth import SYNTHETIC

__all__ = ["Table", "columns", "read"]


def read(text: str, say: Say = silent) -> Table:
    """The rows that a reference names: a local file or folder, `pkg:`, `synth:`, or a hub id.

    Raises:
        CotuneError: E_CONFIG for a text that is no reference, E_DATA for data that cannot be had or read.
    """
    reference = parse(text)
    match reference.scheme:
        case "path":
            return read_path(reference.path, text)
        case "hub":
            return hub(reference)
        case "pkg" if reference.name in PACKAGED:
            return PACKAGED[reference.name].read(say)
        case "synth" if reference.name in SYNTHETIC:
            return SYNTHETIC[reference.name].table(reference)
    raise _unknown(reference)


def columns(text: str) -> tuple[str, ...]:
    """The columns of what a reference names, read no further than it takes to see them.

    Raises:
        CotuneError: E_CONFIG for a text that is no reference, E_DATA for data that cannot be had or read.
    """
    reference = parse(text)
    match reference.scheme:
        case "path":
            return columns_at(reference.path, text)
        case "hub":
            return hub_columns(reference)
        case "pkg" if reference.name in PACKAGED:
            return PACKAGED[reference.name].columns
        case "synth" if reference.name in SYNTHETIC:
            return SYNTHETIC[reference.name].columns
    raise _unknown(reference)


def _unknown(reference: Reference) -> CotuneError:
    known = [f"pkg:{name}" for name in PACKAGED] + [f"synth:{name}" for name in SYNTHETIC]
    fix = f"{nearest(f'{reference.scheme}:{reference.name}', known)}, ./file.jsonl, or a hub id ORG/NAME"
    return CotuneError(Code.DATA, "no such data set", where="data", got=reference.text, fix=fix)
