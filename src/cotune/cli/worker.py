"""`cotune worker`: a site's clients in one process that stays, beside a SuperNode whose processes do not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cotune.core.errors import Code, CotuneError

if TYPE_CHECKING:
    from cotune.engine.site import Site


def worker(
    source: str,
    socket: Path,
    *,
    client: str | None,
    data: str | None,
    partition: str | None,
    state: Path,
    sets: Iterable[str],
    device: str | None,
) -> None:
    """Load, and answer until it is stopped.

    Args:
        source: the experiment's TOML file, the same as the server's.
        socket: where to listen.
        client: the id of this site's client.
        data: the reference of its own rows.
        partition: `I/N` instead: of N sites that divide the clients of the task's own data, the I-th, from 0.
        state: the folder of private state.
        sets: assignments to the experiment, as the server has them.
        device: where the model lives here.

    Raises:
        CotuneError: whatever naming, loading and listening raise.
    """
    print(f"loading {source}", flush=True)
    from cotune import resolve
    from cotune.engine.service import listening, seated, serve

    site = _site(client, data, partition)
    experiment = resolve.load(source, sets=sets, say=_say)
    blueprint = experiment.blueprint()
    if device is not None:  # a site's own business, and no part of the experiment
        blueprint = replace(blueprint, backbone=blueprint.backbone.model_copy(update={"device": device}))
    with listening(socket) as listener:  # before everything is loaded: another worker there ends this one
        seat = seated(blueprint, site, state.expanduser(), _say)
        for name, (rows, held) in seat.who()["clients"].items():
            _say(f"client {name} · {rows} rows, {held} held back")
        _say(f"ready · run {experiment.hash} · socket {socket}")
        serve(seat, listener)


def _site(client: str | None, data: str | None, partition: str | None) -> Site:
    """Whose rows there are.

    Raises:
        CotuneError: E_CONFIG when neither a client nor a partition is given, or both, or what is no partition.
    """
    from cotune.engine.site import Site

    if (client is None) == (partition is None):
        fix = "give --client ID with --data REF, or --partition I/N"
        raise CotuneError(Code.CONFIG, "a worker stands for one client, or for a part of all", where="worker", fix=fix)
    if partition is None:
        return Site(client=client, data=data)
    place, _, places = partition.partition("/")
    if not (place.isdecimal() and places.isdecimal()):
        raise CotuneError(Code.CONFIG, "not a part of all clients", where="--partition", got=partition, expected="0/2")
    return Site(data=data, place=int(place), places=int(places))


def _say(line: str) -> None:
    print(line, flush=True)
