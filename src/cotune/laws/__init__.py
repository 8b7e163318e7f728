"""The laws of every room, run on any part: ours in the tests, anybody's by `cotune check`.

A law is a function whose docstring is the sentence that it checks; it raises AssertionError with what it saw. Laws use
tensors of a few numbers, and the trainables a model of a few thousand. One file a room, one line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cotune.core.contracts import Aggregator, Downlink, Optimizer, Penalty, Personalize, Trainable, Uplink
from cotune.core.part import Part
from cotune.laws import aggregators, every, optimizers, partitions, penalties, personalizers, trainables, wire
from cotune.laws.toy import ListJournal
from cotune.task.partition import Partition

__all__ = ["LAWS", "Law", "ListJournal", "check_part", "laws_of", "sentence"]

Law = Callable[..., None]

LAWS: Mapping[type[Part], Sequence[Law]] = {
    Part: every.LAWS,
    Penalty: penalties.LAWS,
    Personalize: personalizers.LAWS,
    Optimizer: optimizers.LAWS,
    Uplink: wire.UPLINK_LAWS,
    Downlink: wire.DOWNLINK_LAWS,
    Aggregator: aggregators.LAWS,
    Trainable: trainables.LAWS,
    Partition: partitions.LAWS,
}


def check_part(part: Part) -> list[tuple[str, str | None]]:
    """(the law, what broke it or None) for every law of the part's room."""
    found: list[tuple[str, str | None]] = []
    for law in laws_of(part):
        try:
            law(part)
        except Exception as error:  # noqa: BLE001  # a part of anybody's may raise anything; that breaks the law
            said = (
                str(error) if isinstance(error, AssertionError) and str(error) else f"{type(error).__name__}: {error}"
            )
            found.append((sentence(law), said.strip().splitlines()[0]))
        else:
            found.append((sentence(law), None))
    return found


def laws_of(part: Part) -> Sequence[Law]:
    """The laws of every part, and those of its room."""
    return (
        *LAWS[Part],
        *(law for room, laws in LAWS.items() if room is not Part and isinstance(part, room) for law in laws),
    )


def sentence(law: Law) -> str:
    """What a law says."""
    return (law.__doc__ or "").strip().splitlines()[0]
