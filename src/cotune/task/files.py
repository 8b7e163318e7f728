"""Local data: a file of JSON Lines, JSON, CSV or parquet, or a folder in which one file, or one folder, is one client.

JSON and CSV cells keep their text: Arrow's JSON reader takes a text that looks like a date for a date, and pandas reads
`NA` as missing and moves columns when a row has a comma too many. A row that cannot be read is refused by its number.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from cotune.core.errors import Code, CotuneError
from cotune.task.library import parquet
from cotune.task.rows import Table, columns_of

OWNER = "client_id"
_GLANCE = 50  # rows whose columns are seen before all are read
_BOM = "\N{ZERO WIDTH NO-BREAK SPACE}"


def read_path(path: Path, text: str) -> Table:
    """The rows of a file or folder; `text` is how the user named it.

    Raises:
        CotuneError: E_DATA when it is missing, empty, of an unknown kind, or has a row that cannot be read.
    """
    if path.is_dir():
        return _folder(path, text)
    if not path.is_file():
        raise CotuneError(Code.DATA, "no such file or folder", where=text, fix="check the path")
    table = read_file(path, text)
    if not table.rows:
        raise CotuneError(Code.DATA, "no rows", where=text, got="an empty file")
    return table


def columns_at(path: Path, text: str) -> tuple[str, ...]:
    """The columns of a file, or of the first file with rows in a folder, from as few lines as can tell.

    Raises:
        CotuneError: E_DATA as `read_path` does, where there are none.
    """
    entries = _visible(path) if path.is_dir() else [path]
    for file in (inside for entry in entries for inside in (_visible(entry) if entry.is_dir() else [entry])):
        if file.is_file() and file.suffix.lower() in READERS:
            try:
                found = _glance(file)
            except Exception:  # noqa: BLE001 - whatever is wrong with a file, reading all of it says so in one line
                found = read_file(file, text if file == path else file.name).columns
            if found:
                return found
    return read_path(path, text).columns


def _glance(file: Path) -> tuple[str, ...]:
    """The columns that the first lines of a file show."""
    if file.suffix.lower() == ".parquet":
        from pyarrow import parquet as arrow

        return tuple(arrow.read_schema(file).names)
    with file.open(encoding="utf-8-sig", newline="") as lines:
        if file.suffix.lower() == ".csv":
            return tuple(next((cells for cells in csv.reader(lines) if cells), []))
        some = [*islice((line for line in lines if line.strip()), _GLANCE)]
    rows = [json.loads(line) for line in some]
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("not one object a line")
    return columns_of(rows)


def _folder(folder: Path, text: str) -> Table:
    """One file is one client; so is one folder, with all files in it."""
    files: list[tuple[str, Path]] = []
    others = 0
    for entry in _visible(folder):
        inside = _visible(entry) if entry.is_dir() else [entry]
        data = [path for path in inside if path.is_file() and path.suffix.lower() in READERS]
        files += [(entry.name if entry.is_dir() else entry.stem, path) for path in data]
        others += len(inside) - len(data)
    alone = [owner for owner, path in files if path.parent == folder]
    for owner, path in files:
        if alone.count(owner) > 1 or (path.parent != folder and owner in alone):
            fix = "one file, or one folder, is one client"
            raise CotuneError(Code.DATA, f"two files for one client '{owner}'", where=text, fix=fix)
    tables = [
        (owner, str(path.relative_to(folder)), read_file(path, str(path.relative_to(folder)))) for owner, path in files
    ]
    rows = [{**row, OWNER: row.get(OWNER, owner)} for owner, _, table in tables for row in table.rows]
    if not rows:
        got = f"{len(files)} data files among {len(files) + others} files"
        raise CotuneError(Code.DATA, "no rows", where=text, got=got, expected=f"files of {_known()}")
    names: dict[str, tuple[str, ...]] = {}
    for _, name, table in tables:
        for column, classes in table.names.items():
            if names.setdefault(column, classes) != classes:
                raise CotuneError(Code.LABEL, f"files declare other classes in column '{column}'", where=name)
    return Table(
        columns_of(rows),
        rows,
        [place for _, _, table in tables for place in table.places],
        names=names,
        owner=OWNER,
        facts={
            "files": len(files),
            "empty_files": [name for _, name, table in tables if not table.rows],
            "other_files": others,
        },
    )


def _visible(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))


def read_file(path: Path, name: str) -> Table:
    """The rows of one file, which may be none; `name` is how errors call it.

    Raises:
        CotuneError: E_DATA when it is of an unknown kind, or has a row that cannot be read.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        got = path.suffix or "no suffix"
        raise CotuneError(Code.DATA, "not a kind of data file", where=name, got=got, expected=_known())
    try:
        return reader(path, name)
    except OSError as error:
        raise CotuneError(Code.DATA, "cannot read", where=name, got=error.strerror or type(error).__name__) from None


def _known() -> str:
    return ", ".join(sorted(READERS))


def _json_lines(path: Path, name: str) -> Table:
    rows, places = [], []
    for number, line in enumerate(_decoded(path, name).split("\n"), start=1):
        if not line.strip():
            continue
        value, fault = _parsed(line)
        if fault or not isinstance(value, dict):
            _refuse("not JSON" if fault else "not a JSON object", f"{name}, line {number}")
        rows.append(value)
        places.append((f"{name}, line", number))
    return Table(columns_of(rows), rows, places)


def _json(path: Path, name: str) -> Table:
    text = _decoded(path, name)
    value, fault = _parsed(text)
    if not isinstance(value, list):
        if fault and text.lstrip().startswith("["):
            _refuse("not JSON", f"{name}, line {fault}")
        return _json_lines(path, name)
    for number, row in enumerate(value, start=1):
        if not isinstance(row, dict):
            _refuse("not a JSON object", f"{name}, item {number}")
    return Table(columns_of(value), value, [(f"{name}, item", number + 1) for number in range(len(value))])


def _parsed(text: str) -> tuple[Any, int]:
    """A JSON value and 0, or None and the line of the fault; the parser's own error would carry the text."""
    try:
        return json.loads(text), 0
    except json.JSONDecodeError as error:
        return None, error.lineno
    except (ValueError, RecursionError):
        return None, 1


def _csv(path: Path, name: str) -> Table:
    import pyarrow
    from pyarrow import csv as arrow

    text = _decoded(path, name)
    header = _header(text, name)
    if not header:
        return Table((), [], [])
    data, faults = text.encode(), []

    def fault(row: Any) -> str:
        faults.append((row.number - 1, row.actual_columns))
        return "error"

    try:
        table = arrow.read_csv(
            io.BytesIO(data),
            read_options=arrow.ReadOptions(use_threads=False, block_size=min(len(data) + 1, 2**31 - 1)),
            parse_options=arrow.ParseOptions(newlines_in_values=True, invalid_row_handler=fault),
            convert_options=arrow.ConvertOptions(
                column_types=dict.fromkeys(header, pyarrow.string()), strings_can_be_null=False
            ),
        )
    except pyarrow.ArrowException:
        table = None
    if table is None or table.column_names != header:
        number, cells = faults[0] if faults else (0, 0)
        _refuse(
            "a row does not fit the header" if faults else "not CSV",
            f"{name}, row {number}" if faults else name,
            got=f"{cells} cells" if faults else None,
            expected=f"{len(header)} cells",
            fix="put cells with commas or line breaks in double quotes",
        )
    rows = table.to_pylist()
    return Table(tuple(header), rows, [(f"{name}, row", number + 1) for number in range(len(rows))])


def _header(text: str, name: str) -> list[str]:
    try:
        header = next((cells for cells in csv.reader(io.StringIO(text, newline="")) if cells), [])
    except csv.Error:
        header = [""] * 2
    if len(set(header)) < len(header):
        _refuse("not a header with distinct column names", name)
    return header


def _parquet(path: Path, name: str) -> Table:
    table = parquet(path, name)
    return replace(table, places=[(f"{name}, row", number + 1) for number in range(len(table))])


def _decoded(path: Path, name: str) -> str:
    raw = path.read_bytes()
    try:
        return raw.decode("utf-8").removeprefix(_BOM)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
    _refuse("not UTF-8", f"{name}, line {line}", fix="save the file as UTF-8")


def _refuse(what: str, where: str, got: str | None = None, expected: str | None = None, fix: str = "") -> NoReturn:
    raise CotuneError(Code.DATA, what, where=where, got=got, expected=expected, fix=fix or "mend the row or remove it")


READERS: Mapping[str, Callable[[Path, str], Table]] = {
    ".csv": _csv,
    ".json": _json,
    ".jsonl": _json_lines,
    ".parquet": _parquet,
}
