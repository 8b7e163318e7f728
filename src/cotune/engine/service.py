"""A warm worker: backbone, rows and private state stay in one process, which answers over a socket of this machine."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

from cotune.core.errors import Code, CotuneError
from cotune.core.events import Say, silent
from cotune.engine.seat import Seat, attend
from cotune.engine.site import Site
from cotune.link import STEP, WHO
from cotune.setup import Blueprint

_LONGEST = 100  # bytes of a socket's path, which systems limit to some more


def seated(blueprint: Blueprint, site: Site, state: Path, say: Say = silent) -> Seat:
    """A loaded setup that answers for the clients of a site.

    Args:
        blueprint: of the run.
        site: whose rows there are.
        state: the folder of clients' private state, in which each run has its own.
        say: is told before a download.
    """
    setup = blueprint.build(say, site.corpus(blueprint.task, blueprint.seeds, say))
    return Seat(setup, state / blueprint.run, site.own(setup.corpus.clients))


@contextlib.contextmanager
def listening(path: Path) -> Iterator[Listener]:
    """A socket that nobody but this user can reach; it is gone afterwards.

    Raises:
        CotuneError: E_LOCK when a worker answers there; E_CONFIG for a path that is too long, or no socket's.
    """
    if len(os.fsencode(path)) > _LONGEST:
        what = "the path of a socket is too long"
        raise CotuneError(Code.CONFIG, what, got=f"{len(os.fsencode(path))} bytes", expected=f"at most {_LONGEST}")
    if path.exists():
        if not path.is_socket():
            raise CotuneError(Code.CONFIG, "not a socket", where=path.name, fix="name a file that is not there")
        with contextlib.suppress(OSError):
            Client(str(path), "AF_UNIX").close()
            raise CotuneError(Code.LOCK, "another worker answers there", where=path.name, fix="stop it first")
        path.unlink()
    before = os.umask(0o177)  # from its first moment on
    try:
        listener = Listener(str(path), "AF_UNIX", backlog=64)
    except OSError as error:
        raise CotuneError(Code.DISK, "cannot make a socket", where=path.name, got=error.strerror) from error
    finally:
        os.umask(before)
    try:
        yield listener
    finally:
        listener.close()


def serve(seat: Seat, listener: Listener) -> None:
    """Answer whoever asks, one question at a time, until the listener is closed."""
    turn = threading.Lock()
    while True:
        try:
            link = listener.accept()
        except OSError:
            return
        threading.Thread(target=_answer, args=(link, seat, turn), daemon=True).start()


def _answer(link: Connection, seat: Seat, turn: threading.Lock) -> None:
    """Every question of one asker; one that asks for anything else is left without an answer."""
    with contextlib.suppress(EOFError, OSError, ValueError, KeyError, TypeError), link:
        while (kind := link.recv_bytes()) in {WHO, STEP}:
            with turn:
                attend(link, kind, seat)
