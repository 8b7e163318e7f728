"""The replies of committed rounds as few tensors: what a journal keeps on disk, and what a replay takes on the wire.

| name | dtype, shape | what |
|---|---|---|
| places | int32 (n, 2) | of each reply its round, and the number of its table |
| seeds | int64 (n,) | of its directions |
| weights | float64 (n,) | its share before normalisation |
| TABLE/GROUP/NAME | as sent, (m, …) | the scalars of the m replies of a table, in their order |

Replies of one group whose scalars have the same names, dtypes and shapes share a table: 24 bytes a reply beside its
scalars, and a name a table, however many rounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cotune.core.contracts import Layout
from cotune.core.errors import Code, CotuneError
from cotune.core.journal import Increment, Reply
from cotune.wire.envelope import dtype_name

BYTES_A_REPLY = 24  # beside its scalars
PLACES, SEEDS, WEIGHTS = "places", "seeds", "weights"
Table = tuple[int, tuple[tuple[str, str, tuple[int, ...]], ...]]  # group; name, dtype and shape of each tensor


def stack(increments: Sequence[Increment]) -> dict[str, Tensor]:
    """The replies of some rounds as tensors; no tensor where there is no reply."""
    replies = [reply for increment in increments for reply in increment.replies]
    if not replies:
        return {}
    tables: dict[Table, tuple[int, list[Reply]]] = {}
    places = list[tuple[int, int]]()
    for increment in increments:
        for reply in increment.replies:
            number, members = tables.setdefault(_table(reply), (len(tables), []))
            members.append(reply)
            places.append((increment.round, number))
    named = {
        PLACES: torch.tensor(places, dtype=torch.int32),
        SEEDS: torch.tensor([reply.seed for reply in replies]),
        WEIGHTS: torch.tensor([reply.weight for reply in replies], dtype=torch.float64),
    }
    for (group, rows), (number, members) in tables.items():
        for name, *_ in rows:
            named[_name(number, group, name)] = torch.stack([reply.scalars[name] for reply in members])
    return named


def stacked(increments: Sequence[Increment]) -> Layout:
    """The layout of `stack`, of replies whose scalars need have no more than shapes."""
    tables = Counter(_table(reply) for increment in increments for reply in increment.replies)
    if not tables:
        return {}
    total = tables.total()
    layout: dict[str, tuple[str, tuple[int, ...]]] = {
        PLACES: ("int32", (total, 2)),
        SEEDS: ("int64", (total,)),
        WEIGHTS: ("float64", (total,)),
    }
    for number, ((group, rows), count) in enumerate(tables.items()):
        layout |= {_name(number, group, name): (dtype, (count, *shape)) for name, dtype, shape in rows}
    return layout


def unstack(named: Mapping[str, Tensor]) -> list[Increment]:
    """The rounds behind the tensors, each with its replies and no more.

    Raises:
        CotuneError: E_FORMAT for tensors that are no stack of replies.
    """
    if not named:
        return []
    try:
        return _unstack(named)
    except (KeyError, ValueError, IndexError, StopIteration, TypeError, RuntimeError) as error:
        raise CotuneError(Code.FORMAT, "replies of past rounds cannot be read", got=type(error).__name__) from error


def _unstack(named: Mapping[str, Tensor]) -> list[Increment]:
    places, seeds, weights = named[PLACES].tolist(), named[SEEDS].tolist(), named[WEIGHTS].tolist()
    groups, rows = dict[int, int](), dict[int, dict[str, list[Tensor]]]()
    for name, tensor in named.items():
        if name in (PLACES, SEEDS, WEIGHTS):
            continue
        number, group, inner = name.split("/", 2)
        groups[int(number)] = int(group)
        rows.setdefault(int(number), {})[inner] = list(tensor)
    taken = dict.fromkeys(groups, 0)
    rounds: dict[int, list[Reply]] = {}
    for (round_, table), seed, weight in zip(places, seeds, weights, strict=True):
        scalars = {inner: tensors[taken[table]] for inner, tensors in rows[table].items()}
        taken[table] += 1
        rounds.setdefault(round_, []).append(Reply(groups[table], seed, weight, scalars))
    if list(rounds) != sorted(rounds) or any(
        len(tensors) != taken[table] for table, inner in rows.items() for tensors in inner.values()
    ):
        raise ValueError("out of order, or left over")
    return [Increment(round_, (), replies=tuple(replies)) for round_, replies in rounds.items()]


def _table(reply: Reply) -> Table:
    return reply.group, tuple((name, dtype_name(t.dtype), tuple(t.shape)) for name, t in sorted(reply.scalars.items()))


def _name(number: int, group: int, inner: str) -> str:
    return f"{number:05d}/{group:05d}/{inner}"
