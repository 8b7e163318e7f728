"""Flower's programs as processes of ours: found beside this Python, quiet, logged, and never left behind.

A program of Flower's starts others, some of which leave its process group or outlive it. So each gets a tag in its
environment, which whatever it starts inherits: a family is everything that carries its tag.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

import psutil

from cotune.core.errors import Code, CotuneError, one_line

MINOR = "1.42"  # the extra pins it: releases of Flower rename options
INSTALL = "pip install 'cotune[flower]'"
TAG = "COTUNE_FLOWER"
GRACE = 8.0  # seconds between asking processes to end and ending them
# No telemetry, no look at a package index, nothing installed at run time; a task starts as soon as it is there.
QUIET: Mapping[str, str] = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONUNBUFFERED": "1",
    "NO_COLOR": "1",
}
_COLOURS = ("\x1b[92m", "\x1b[91m", "\x1b[93m", "\x1b[94m", "\x1b[0m")


def check_there() -> str:
    """Flower's version.

    Raises:
        CotuneError: E_CONFIG when it is not there.
    """
    try:
        return metadata.version("flwr")
    except metadata.PackageNotFoundError as error:
        raise CotuneError(Code.CONFIG, "Flower is not installed", where="cotune flower", fix=INSTALL) from error


def check_installed() -> None:
    """Raise E_CONFIG when Flower is not there, E_VERSION when it is of another minor."""
    version = check_there()
    if not version.startswith(f"{MINOR}."):
        what = "another Flower than the one that cotune knows"
        raise CotuneError(Code.VERSION, what, where="flwr", got=version, expected=f"{MINOR}.*", fix=INSTALL)


def program(name: str) -> str:
    """Where a program of Flower's is: beside this Python, else on the path.

    Raises:
        CotuneError: E_CONFIG when it is nowhere.
    """
    found = shutil.which(name, path=_path())
    if found is None:
        raise CotuneError(Code.CONFIG, f"no program '{name}'", where="PATH", fix=INSTALL)
    return found


def environment(home: Path, tag: str) -> dict[str, str]:
    """The environment of a program: Flower's folder, its quiet, and the tag of a family."""
    return {**os.environ, **QUIET, "PATH": _path(), "FLWR_HOME": str(home), TAG: tag}


def _path() -> str:
    """The search path with the programs of this Python first: Flower starts its own by name."""
    return os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))


class Program:
    """A program that runs in the background and writes a log."""

    def __init__(self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        """Start it.

        Args:
            name: for errors.
            command: the program and its arguments.
            log: a new file for what it prints; what was there is put aside as `.1`.
            env: its environment, with a tag.

        Raises:
            CotuneError: E_ENGINE when the system does not start it.
        """
        self.name, self.log, self.tag = name, log, env[TAG]
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.exists():
            log.replace(log.with_name(f"{log.name}.1"))
        with log.open("wb") as out:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=dict(env),
                    start_new_session=True,  # a key that interrupts a terminal's processes is ours to act on
                )
            except OSError as error:
                raise CotuneError(Code.ENGINE, f"cannot start {name}", where=command[0], got=error.strerror) from error

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def check(self) -> None:
        """Raise E_ENGINE with the end of the log where it has ended."""
        status = self._process.poll()
        if status is not None:
            raise CotuneError(
                Code.ENGINE,
                f"{self.name} has ended",
                where=str(self.log),
                got=f"{_how(status)}: {ending(self.log)}",
                fix="the log has the rest",
            )

    def kill(self) -> None:
        """End it and all that it started, at once, as a power cut would."""
        end_families([self.tag], grace=0.0)
        self.reap()

    def reap(self) -> None:
        """Take note of its end: until then it looks alive to what it started."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=GRACE)


def members(tags: Sequence[str]) -> list[psutil.Process]:
    """Every process that carries one of the tags, or a tag that begins with one and a `/`."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            carried = process.environ().get(TAG)
            if carried is not None and any(carried == tag or carried.startswith(f"{tag}/") for tag in tags):
                found.append(process)
    return [process for process in found if process.pid != os.getpid()]


def end_families(tags: Sequence[str], grace: float = GRACE) -> None:
    """Ask every process of these families to end, and end those that have not after `grace` seconds."""
    with undisturbed():
        seen = {*members(tags)}  # one that is ending loses its environment, and so its tag, a moment before it is gone
        if grace:
            _signal([*seen], signal.SIGTERM)
            deadline = time.monotonic() + grace
            while time.monotonic() < deadline and any(_runs(process) for process in members(tags)):
                time.sleep(0.1)
        for _ in range(50):  # what is being started at this moment appears a moment later
            seen.update(members(tags))
            left = [process for process in seen if _runs(process)]
            if not left:
                return
            _signal(left, signal.SIGKILL)
            time.sleep(0.05)


def ending(log: Path, lines: int = 3) -> str:
    """The last lines of a log that say something, on one line and without colours."""
    try:
        text = log.read_bytes().decode("utf-8", "replace")
    except OSError:
        return "no log"
    told = [line for line in map(plain, text.splitlines()) if any(c.isalnum() for c in line)]
    return one_line(" | ".join(told[-lines:]), 300) or "nothing in the log"


def plain(line: str) -> str:
    """A line of Flower's without its colours."""
    for colour in _COLOURS:
        line = line.replace(colour, "")
    return line.rstrip()


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Another Ctrl-C does not cut short what is inside."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # not the main thread, which alone is interrupted
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)


def _signal(processes: Sequence[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _how(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"
