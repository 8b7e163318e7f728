"""What the `datasets` library reads for us: parquet files, and data sets on a hub."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cotune.core.errors import Code, CotuneError
from cotune.core.reference import Reference
from cotune.task.rows import Table

_SPLIT = "train"


def parquet(path: Path, name: str) -> Table:
    """The rows of a parquet file, converted in a temporary folder.

    Raises:
        CotuneError: E_DATA when it is no parquet file.
    """
    import datasets

    with tempfile.TemporaryDirectory() as cache, _quiet():
        try:
            loaded = datasets.load_dataset(
                "parquet", data_files=[str(path)], split=_SPLIT, cache_dir=cache, keep_in_memory=True
            )
            return _table(loaded, name)
        except Exception as error:  # noqa: BLE001 - whatever its readers raise, and none of it may show a row
            got = type(error).__name__
    raise CotuneError(Code.DATA, "not a parquet file", where=name, got=got, fix="write it anew, or use JSON Lines")


def hub(reference: Reference) -> Table:
    """The training rows of a data set on the hub, through the user's own cache.

    Raises:
        CotuneError: E_DATA when it cannot be had, or has no split to train on.
    """
    found = _taken(reference, lambda there: [_SPLIT] if _SPLIT in there or len(there) > 1 else there)
    return next(iter(found.values()))


def hub_splits(reference: Reference, wanted: Sequence[str]) -> dict[str, Table]:
    """Split -> the rows of a data set on the hub, of those splits among `wanted` that it has.

    Raises:
        CotuneError: E_DATA when it cannot be had.
    """
    return _taken(reference, lambda there: [name for name in wanted if name in there])


def _taken(reference: Reference, choose: Callable[[Sequence[str]], Sequence[str]]) -> dict[str, Table]:
    """Split -> rows of the splits chosen among those that are there; the others are not made into rows."""
    import datasets

    with _quiet():
        try:
            splits = datasets.load_dataset(reference.name, reference.config, revision=reference.revision)
            chosen = choose(list(splits))
            if all(name in splits for name in chosen):
                return {name: _table(splits[name], reference.text) for name in chosen}
            what, got = f"no split '{chosen[0]}'", ", ".join(splits)
        except Exception as error:  # noqa: BLE001 - offline, unknown, gated, a script: the type says which
            what, got = "cannot load the data set", type(error).__name__
    raise CotuneError(
        Code.DATA,
        what,
        where=reference.text,
        got=got,
        fix="it needs the hub or its cache; without, name a local ./file.jsonl, pkg:rotten-tomatoes or synth:sentiment",
    )


def hub_columns(reference: Reference) -> tuple[str, ...]:
    """The columns of a data set on the hub, from its description where that has them.

    Raises:
        CotuneError: E_DATA when it cannot be had.
    """
    import datasets

    with _quiet():
        try:
            builder = datasets.load_dataset_builder(reference.name, reference.config, revision=reference.revision)
            found = tuple(builder.info.features or ())
        except Exception:  # noqa: BLE001 - the whole of it says in one line what is wrong
            found = ()
    return found or hub(reference).columns


def _table(dataset: Any, name: str) -> Table:
    rows = dataset.to_list()
    return Table(
        tuple(dataset.column_names),
        rows,
        [(f"{name}, row", number + 1) for number in range(len(rows))],
        names={column: tuple(f.names) for column, f in dataset.features.items() if hasattr(f, "names")},
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Progress bars and warnings off, and back as they were."""
    import datasets

    shown = not datasets.are_progress_bars_disabled()
    loggers = [logging.getLogger(name) for name in ("datasets", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    datasets.disable_progress_bars()
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)  # what they log of a fault may quote a row
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if shown:
            datasets.enable_progress_bars()
