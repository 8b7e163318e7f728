"""The laws of what divides rows among clients; what cannot be divided as asked is refused in one line."""

from __future__ import annotations

import random
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from cotune.core.contracts import Row
from cotune.core.errors import Code, CotuneError
from cotune.laws.toy import same
from cotune.task.column import client_names
from cotune.task.partition import Partition

SIZES = ((1,), (5, 5), (24, 18, 9, 6, 3), (50,) * 12)  # rows of each class, of every toy table
SEEDS = (0, 7)

Parts = Mapping[str, Sequence[int]]


def covers_every_row(part: Partition) -> None:
    """Every row goes to exactly one client, whose positions ascend."""
    for labels in _tables():
        for seed in SEEDS:
            parts = _divided(part, labels, seed)
            if parts is not None:
                found = [row for rows in parts.values() for row in rows]
                same(f"rows of {len(labels)}, given out", sorted(found), list(range(len(labels))))
                assert all(list(rows) == sorted(rows) for rows in parts.values()), "positions out of order"
                assert all(type(row) is int for row in found), "a position that is no plain integer"


def names_clients_safely(part: Partition) -> None:
    """Client ids are names of folders, and differ even where case does not count."""
    for labels in _tables():
        parts = _divided(part, labels, 0)
        if parts is not None:
            same("client ids", list(parts), client_names(parts))


def follows_its_seed_alone(part: Partition) -> None:
    """The same rows and seed are divided alike, whatever else was drawn before."""
    for labels in _tables():
        first = _divided(part, labels, 3)
        random.random()  # that it was drawn is all
        np.random.random()  # noqa: NPY002
        same("the same again", _divided(part, labels, 3), first)


def ignores_the_names_of_labels(part: Partition) -> None:
    """What labels are called plays no part."""
    if part.labelled:
        for labels in _tables():
            renamed = [("z", None, 1.5, "", -4, "a", True, 9, "y", "x", "w", "v")[label] for label in labels]
            same("with other names", _divided(part, renamed, 0), _divided(part, labels, 0))


def leaves_inputs(part: Partition) -> None:
    """It leaves its inputs as they are."""
    for labels in _tables():
        rows, kept = _rows(part, labels), list(labels)
        try:
            part.split(rows, kept, 0)
        except CotuneError:
            continue
        same("labels", kept, list(labels))
        same("rows", rows, _rows(part, labels))


def _tables() -> list[list[int]]:
    """Labels of tables of several sizes; the rows of a class are scattered."""
    tables = [[label for label, size in enumerate(sizes) for _ in range(size)] for sizes in SIZES]
    for labels in tables:
        random.Random(0).shuffle(labels)
    return tables


def _rows(part: Partition, labels: Sequence[Hashable]) -> list[Row]:
    """A row for each label, with whatever column the part reads."""
    return [{} if part.column is None else {part.column: f"value {label}"} for label in labels]


def _divided(part: Partition, labels: Sequence[Hashable], seed: int) -> Parts | None:
    """The parts; None where these rows cannot be divided as asked."""
    try:
        return part.split(_rows(part, labels), list(labels), seed)
    except CotuneError as error:
        same("the code of what cannot be divided", error.code, Code.DATA)
        return None


LAWS = (
    covers_every_row,
    names_clients_safely,
    follows_its_seed_alone,
    ignores_the_names_of_labels,
    leaves_inputs,
)
