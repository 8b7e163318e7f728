"""What a client answers, whatever it comes to: the same in every engine and every process."""

from __future__ import annotations

import traceback
from pathlib import Path

from cotune.client import Client
from cotune.core.errors import Code, CotuneError
from cotune.round import client_step


def cause(error: Exception) -> str:
    """An exception as its type and the line that raised it; its text might hold a row."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"


def answer(client: Client, message: bytes) -> bytes | CotuneError:
    """The reply of a client's step, or why there is none."""
    try:
        return client_step(client, message)
    except CotuneError as error:
        return error
    except Exception as error:  # noqa: BLE001  # whatever a client part raises costs its client, with its first cause
        where, got = f"client {client.name}", cause(error)
        return CotuneError(Code.CLIENT, "client failed", where=where, got=got, fix="run with --debug")
