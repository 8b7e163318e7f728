"""Where the command line starts and ends: arguments in, an exit status out, and at most one line on stderr."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import typer
from typer.main import get_command

from cotune.cli.commands import commands
from cotune.core.errors import Code, CotuneError, nearest

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
UNHEARD = 128 + 13  # whoever read our output has gone, as after SIGPIPE


def main(args: Sequence[str] | None = None) -> int:
    """The exit status of a command line: 0, or that of the one line which went to stderr.

    Args:
        args: what follows `cotune`; None for this process's own.
    """
    given = list(sys.argv[1:] if args is None else args)
    debug = "--debug" in given  # wherever it stands
    with _prepared(), _terminable():
        try:
            status = _carry_out([word for word in given if word != "--debug"] or ["--help"])
            sys.stdout.flush()
        except BrokenPipeError:
            _hush()
            return UNHEARD
        except BaseException as error:  # noqa: BLE001  # this is where everything ends as one line
            line, status = _ending(error)
            if debug:
                traceback.print_exc()
            if line:
                print(line, file=sys.stderr, flush=True)
    return status


def _carry_out(args: list[str]) -> int:
    command = get_command(commands())
    try:
        with command.make_context("cotune", args) as context:
            command.invoke(context)
    except typer.Exit as stop:
        return stop.exit_code
    except Exception as error:
        # typer brings its own click or uses the one that is installed: this is the usage error of either.
        if isinstance(error, typer.BadParameter.__mro__[1]):
            raise _misused(error) from error
        raise
    return 0


def _misused(error: Any) -> CotuneError:
    """A mistake in the arguments as one line, with the nearest option where one does not exist."""
    where = error.ctx.command_path if error.ctx else "cotune"
    if hasattr(error, "possibilities"):
        known = [name for parameter in error.ctx.command.get_params(error.ctx) for name in parameter.opts]
        options = [name for name in known if name.startswith("-")]
        return CotuneError(
            Code.CONFIG, f"no option '{error.option_name}'", where=where, fix=nearest(error.option_name, options)
        )
    message = error.format_message().rstrip(".")
    return CotuneError(Code.CONFIG, message[:1].lower() + message[1:], where=where, fix=f"see `{where} --help`")


def _ending(error: BaseException) -> tuple[str, int]:
    """The line and the exit status of a command that did not come to its end; no line shows training text."""
    match error:
        case CotuneError():
            return str(error), error.status
        case KeyboardInterrupt():
            return " · ".join(["interrupted", *map(str, error.args)]), INTERRUPTED
        case SystemExit(code=int(code)):
            return ("terminated" if code == TERMINATED else ""), code
        case OSError() if error.filename is not None:
            refused = CotuneError(Code.DISK, "the system refuses a file", where=str(error.filename), got=error.strerror)
            return str(refused), refused.status
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    unexpected = CotuneError(
        Code.ENGINE, "unexpected failure", got=f"{type(error).__name__}{place}", fix="run again with --debug"
    )
    return str(unexpected), unexpected.status


@contextmanager
def _prepared() -> Iterator[None]:
    """Streams that write any sign, and parts in the current folder found, after everything that is installed."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    here = os.getcwd()
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM as SystemExit inside, so that a run marks itself interrupted; as before afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: what follows is written to disk
    raise SystemExit(TERMINATED)


def _hush() -> None:
    """Nobody reads our output: what is still buffered goes nowhere, without a complaint at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
