"""A SuperLink of ours: ports, its start and its end, runs on it; whatever it started ends with whoever started it."""

from __future__ import annotations

import contextlib
import secrets
import socket
import sqlite3
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from cotune.core.errors import Code, CotuneError
from cotune.core.events import Say, silent
from cotune.flower.control import Control, Finished, Submitted, Value
from cotune.flower.programs import Program, check_installed, end_families, environment, members, program
from cotune.store import lock

HOST = "127.0.0.1"
START = 120.0  # seconds for programs to start, on a busy machine
PORTS = range(20_000, 32_000)  # below those that systems give to connections


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on at this moment."""
    found: list[int] = []
    for _ in range(1000):
        port = PORTS[secrets.randbelow(len(PORTS))]
        if port not in found and is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    raise CotuneError(Code.ENGINE, "no free ports", where=HOST, got=len(found), expected=count)


def is_free(port: int) -> bool:
    """Whether nothing listens on a port of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def half_migrated(database: Path) -> bool:
    """Whether a SuperLink was killed while it made or changed its tables: no SuperLink starts on the file again."""
    if not database.exists():
        return False
    try:
        with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            stamped = "alembic_version" in names and connection.execute("SELECT * FROM alembic_version").fetchone()
    except sqlite3.Error:
        return True
    return any(name.startswith("_alembic_tmp") for name in names) or (len(names) > 0 and not stamped)


class Link:
    """A SuperLink: started, killed and started again on the same port and database."""

    def __init__(self, folder: Path, port: int, options: Sequence[str], authority: Path | None) -> None:
        self.folder, self.port, self.authority = folder, port, authority
        self.log = folder / "link.log"
        self._options = options
        self._program: Program | None = None

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{HOST}:{self.port}"

    def start(self, patience: float) -> None:
        """Start it, and wait until it answers.

        Raises:
            CotuneError: E_ENGINE, with the end of its log, when it does not.
        """
        command = [program("flower-superlink"), *self._options, "--host", HOST, "--port", str(self.port)]
        env = environment(self.folder / "home", f"{self.folder}/link")
        self._program = Program("the SuperLink", command, self.log, env)
        for _ in waiting(patience, "the SuperLink does not answer", self.log):
            self._program.check()
            if self._healthy():
                return

    def check(self) -> None:
        """Raise E_ENGINE where it has ended."""
        if self._program is not None:
            self._program.check()

    def kill(self) -> None:
        """End it and the server's app at once."""
        if self._program is not None:
            self._program.kill()
            self._program = None

    def reap(self) -> None:
        """Take note of its end."""
        if self._program is not None:
            self._program.reap()
            self._program = None

    def _healthy(self) -> bool:
        scheme = "http" if self.authority is None else "https"
        trust = None if self.authority is None else ssl.create_default_context(cafile=str(self.authority))
        try:
            with urllib.request.urlopen(f"{scheme}://{self.address}/health", timeout=5, context=trust) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


class Host:
    """A SuperLink of our own in a folder, and runs on it; everything it started ends with it."""

    def __init__(self, folder: Path, patience: float, say: Say) -> None:
        check_installed()
        self.folder, self.patience, self.say = folder.resolve(), patience, say
        self._held = contextlib.ExitStack()
        self.link: Link
        self.control: Control

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.folder.chmod(0o700)
            self._held.enter_context(lock(self.folder))
            if left := members([str(self.folder)]):
                self.say(f"ending {len(left)} processes of an earlier deployment that was killed")
                end_families([str(self.folder)], grace=0.0)
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start what there is to start."""
        raise NotImplementedError

    def close(self) -> None:
        """End every process that this started, or that these started."""
        end_families([str(self.folder)])
        if hasattr(self, "link"):
            self.link.reap()
        self._held.close()

    def check(self) -> None:
        """Raise E_ENGINE where the SuperLink has ended."""
        self.link.check()

    def submit(self, app: Path, config: Mapping[str, Value] | None = None) -> Submitted:
        """Begin a run of a project."""
        return self.control.submit(app, config or {}, self.folder / "run.log", self.federation)

    @property
    def federation(self) -> Mapping[str, Value]:
        """Settings of a simulation; none of a deployment."""
        return {}

    def run(
        self, app: Path, config: Mapping[str, Value] | None = None, deadline: float = 600.0, say: Say = silent
    ) -> Finished:
        """Carry a run of a project out to its end.

        Args:
            app: its folder.
            config: over the project's own run config.
            deadline: seconds after which it is stopped.
            say: is told every line of the server app's log.

        Raises:
            CotuneError: E_ENGINE when the SuperLink refuses it or ends; E_LATE past the deadline.
        """
        submitted = self.submit(app, config)
        try:
            return submitted.wait(deadline, say, self.check)
        except KeyboardInterrupt:
            submitted.stop()
            raise


def waiting(patience: float, what: str, log: Path) -> Iterator[None]:
    """Look again, until there is no more time.

    Raises:
        CotuneError: E_ENGINE then, saying `what`.
    """
    ends = time.monotonic() + patience
    while time.monotonic() < ends:
        yield
        time.sleep(0.2)
    raise CotuneError(Code.ENGINE, what, where=str(log), got=f"nothing in {patience:g} s", fix="the logs have the rest")
