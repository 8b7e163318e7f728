"""Data that its makers divided: the splits of a data set on the hub, or of a local folder with the same files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cotune.core.errors import Code, CotuneError
from cotune.core.events import Say, silent
from cotune.core.reference import parse
from cotune.task.files import READERS, read_file
from cotune.task.library import hub_splits
from cotune.task.rows import Table, columns_of
from cotune.task.table import read

WHOLE = ""  # the name of the one table of a source that is not divided
# How a file of a split begins, up to a `-` or a dot, as in `train-00000-of-00001.parquet`.
_NAMES: Mapping[str, str] = {
    "train": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "dev",
    "test": "test",
    "auxiliary_train": "auxiliary_train",
}


def read_splits(text: str, wanted: Sequence[str], say: Say = silent) -> dict[str, Table]:
    """Split -> its rows, of those splits among `wanted` that are there; one table named '' where there are no splits.

    A local folder has splits when each of its data files, at any depth, is named after one.

    Args:
        text: a data reference.
        wanted: names of splits.
        say: is told before a download.

    Raises:
        CotuneError: as `read` does; E_DATA when there are splits, and none of those that are wanted.
    """
    reference = parse(text)
    there: Sequence[str] = ()
    if reference.scheme == "hub":
        found = hub_splits(reference, wanted)
    elif reference.scheme == "path" and (files := _divided(reference.path)):
        there = sorted(files)
        found = {name: joined([read_file(path, path.name) for path in files[name]]) for name in wanted if name in files}
    else:
        found = {WHOLE: read(text, say)}
    if not any(found.values()):
        what = f"no rows in any split of {', '.join(wanted)}"
        raise CotuneError(Code.DATA, what, where=text, got=", ".join(there) or None)
    return found


def joined(tables: Sequence[Table]) -> Table:
    """The rows of several tables as one; class names are those that any of them declares."""
    if len(tables) == 1:
        return tables[0]
    rows = [row for table in tables for row in table.rows]
    names: dict[str, tuple[str, ...]] = {}
    for table in tables:
        for column, classes in table.names.items():
            if names.setdefault(column, classes) != classes:
                raise CotuneError(Code.LABEL, f"splits declare other classes in column '{column}'", where="data")
    columns = tuple(dict.fromkeys(name for table in tables for name in table.columns)) or columns_of(rows)
    return Table(columns, rows, [place for table in tables for place in table.places], names=names)


def _divided(folder: Path) -> dict[str, list[Path]]:
    """Split -> its files in order; nothing for a file, or a folder with a data file that is named after no split."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if hidden or not path.is_file() or path.suffix.lower() not in READERS:
            continue
        name = _NAMES.get(path.name.split(".")[0].split("-")[0])
        if name is None:
            return {}
        found.setdefault(name, []).append(path)
    return found
