"""What `flwr` says of a SuperLink and does there: nodes, runs, and one run from its start to its end."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cotune.core.errors import Code, CotuneError, one_line
from cotune.core.events import Say, silent
from cotune.flower.programs import environment, plain, program

Value = str | int | float | bool
NAME = "cotune"  # of the connection in Flower's config.toml
CALL = 60.0  # seconds that one call of `flwr` may take
_STARTED = re.compile(r"Successfully started run (\d+)")
_KNOWN = "already in use"


@dataclass(frozen=True)
class Finished:
    """How a run ended.

    Attributes:
        run: its number.
        status: Flower's words, `finished:completed` where all went well.
        log: what the server app printed.
    """

    run: str
    status: str
    log: str

    @property
    def completed(self) -> bool:
        """Whether all went well."""
        return self.status == "finished:completed"


class Node(NamedTuple):
    """A SuperNode as the SuperLink sees it: it notices one that died after up to a minute."""

    status: str  # registered, online, offline
    since: str  # when it last came online, `2026-01-31 23:59:59Z`; `N/A` if it never did

    def online(self, since: str = "") -> bool:
        """Whether it is there, and came at that time or later."""
        return self.status == "online" and self.since >= since


class Control:
    """The command `flwr` with a folder of its own, on one SuperLink."""

    def __init__(self, home: Path, address: str, authority: Path | None, tag: str) -> None:
        """Write the connection down.

        Args:
            home: Flower's folder.
            address: `host:port` of the SuperLink.
            authority: the certificate that signed the server's; None without TLS.
            tag: of what is started.
        """
        self._program, self._environment = program("flwr"), environment(home, tag)
        trust = "insecure = true" if authority is None else f"root-certificates = {quoted(str(authority.resolve()))}"
        home.mkdir(parents=True, exist_ok=True)
        where = f"[superlink.{NAME}]\naddress = {quoted(address)}\n{trust}\n"
        (home / "config.toml").write_text(f"[superlink]\ndefault = {quoted(NAME)}\n\n{where}", "utf-8")

    def register(self, key: Path) -> None:
        """Tell the SuperLink of a node's public key; one that it knows stays known.

        Raises:
            CotuneError: E_ENGINE, with Flower's reason.
        """
        said = self._call("supernode", "register", str(key))
        if not said.get("success") and _KNOWN not in str(said.get("error-message", "")):
            raise _refused("the SuperLink takes no node", said)

    def nodes(self) -> dict[str, Node]:
        """The number of every node -> what the SuperLink believes of it; none of those that were taken off.

        Raises:
            CotuneError: E_ENGINE, with Flower's reason.
        """
        said = self._call("supernode", "list")
        if not said.get("success"):
            raise _refused("the SuperLink lists no nodes", said)
        rows = (row for row in said.get("nodes", []) if row["status"] != "unregistered")
        return {str(row["node-id"]): Node(row["status"], str(row["online-at"])) for row in rows}

    def status(self, run: str) -> str:
        """What has become of a run, in Flower's words.

        Raises:
            CotuneError: E_ENGINE, with Flower's reason.
        """
        said = self._call("list", "--run-id", run)
        if not said.get("success") or not said.get("runs"):
            raise _refused("the SuperLink does not know the run", said)
        return str(said["runs"][0]["status"])

    def stop(self, run: str) -> None:
        """End a run; one that has ended stays as it is."""
        self._call("stop", run)

    def submit(
        self, app: Path, config: Mapping[str, Value], log: Path, federation: Mapping[str, Value] | None = None
    ) -> Submitted:
        """Begin a run.

        Args:
            app: the project's folder.
            config: over the project's own run config; Flower refuses keys that it has not.
            log: a file for what `flwr` and the server app print.
            federation: settings of a simulation.
        """
        words = ["run", str(app), NAME, "--stream"]
        for option, values in (("--run-config", config), ("--federation-config", federation or {})):
            words += [option, pairs(values)] if values else []
        with log.open("wb") as out:
            process = subprocess.Popen(
                [self._program, *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )
        return Submitted(self, process, log)

    def _call(self, *words: str) -> Mapping[str, Any]:
        """The JSON object that `flwr` prints, of failures too."""
        command = [self._program, *words, NAME, "--format", "json"]
        try:
            done = subprocess.run(
                command, env=self._environment, capture_output=True, text=True, timeout=CALL, check=False
            )
        except subprocess.TimeoutExpired as error:
            what, got = "no answer from the SuperLink", f"none in {CALL:g} s"
            raise CotuneError(Code.ENGINE, what, where=f"flwr {words[0]}", got=got) from error
        start = done.stdout.find("{")
        try:
            said = json.loads(done.stdout[start:]) if start >= 0 else None
        except ValueError:
            said = None
        if not isinstance(said, dict):
            return {"success": False, "error-message": one_line(plain(done.stderr or done.stdout), 200)}
        return said


class Submitted:
    """A run that was begun, and the log of its server app as it comes."""

    def __init__(self, control: Control, process: subprocess.Popen[bytes], log: Path) -> None:
        self._control, self._process, self._path = control, process, log
        self._told = 0

    @property
    def log(self) -> str:
        """All that was printed so far."""
        return "\n".join(plain(line) for line in self._path.read_text("utf-8", "replace").splitlines())

    @property
    def run(self) -> str | None:
        """The number of the run, once the SuperLink has given it one."""
        found = _STARTED.search(self.log)
        return found[1] if found else None

    @property
    def ended(self) -> bool:
        """Whether no more is coming."""
        return self._process.poll() is not None

    def wait(self, deadline: float, say: Say = silent, check: Callable[[], None] | None = None) -> Finished:
        """Its end.

        Args:
            deadline: seconds from now after which it is stopped.
            say: is told every line of the log.
            check: called all the while; what it raises ends the wait, not the run.

        Raises:
            CotuneError: E_ENGINE when the SuperLink did not take it; E_LATE past the deadline.
        """
        ends = time.monotonic() + deadline
        while not self.ended:
            self._tell(say)
            if check is not None:
                check()
            if time.monotonic() > ends:
                self.stop()
                what, got = "the run is not over at the deadline", f"{deadline:g} s"
                raise CotuneError(Code.LATE, what, where=f"run {self.run}", got=got)
            time.sleep(0.1)
        self._tell(say)
        if self.run is None:
            said = one_line(" ".join(part for part in self.log.splitlines()[-6:] if any(map(str.isalnum, part))), 300)
            raise CotuneError(Code.ENGINE, "the SuperLink did not take the run", where="flwr run", got=said)
        return Finished(self.run, self._settled(self.run), self.log)

    def stop(self) -> None:
        """End the run, and the command that reads its log."""
        if self.run is not None:
            self._control.stop(self.run)
        self._process.kill()
        self._process.wait()

    def _settled(self, run: str) -> str:
        """Its status; the log ends a moment before the run is said to have finished."""
        for _ in range(20):
            status = self._control.status(run)
            if status.startswith("finished"):
                break
            time.sleep(0.25)
        return status

    def _tell(self, say: Say) -> None:
        """Pass on the whole lines that are new."""
        data = self._path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        for line in whole[self._told :].decode("utf-8", "replace").splitlines():
            if any(map(str.isalnum, text := plain(line))):
                say(text)
        self._told = len(whole)


def pairs(values: Mapping[str, Value]) -> str:
    """`a=1 b="text"`: how Flower reads a node's or a run's settings.

    Raises:
        CotuneError: E_CONFIG for a text that cannot be written so.
    """
    return " ".join(f"{key}={_written(key, value)}" for key, value in values.items())


def _written(key: str, value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return quoted(value, key) if isinstance(value, str) else repr(value)


def quoted(text: str, where: str = "flower") -> str:
    """A TOML string without escapes, since Flower's own reading of pairs knows none."""
    for mark in ("'", '"'):
        if mark not in text and text.isprintable() and not (mark == '"' and "\\" in text):
            return f"{mark}{text}{mark}"
    raise CotuneError(Code.CONFIG, "no text for Flower: it has both quotes, or signs that do not print", where=where)


def _refused(what: str, said: Mapping[str, Any]) -> CotuneError:
    return CotuneError(Code.ENGINE, what, where="flwr", got=one_line(str(said.get("error-message", "no reason")), 200))
