"""A whole deployment on this machine: authority, certificates, keys, a SuperLink on a database file, SuperNodes.

Everything lies in one folder and listens on 127.0.0.1 alone. It is what `cotune flower up` starts and what the slow
tests kill parts of; a deployment of several machines is the same commands on each (docs/flower.md).
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from cotune import link
from cotune.core.errors import Code, CotuneError
from cotune.core.events import Say, silent
from cotune.flower import certificates
from cotune.flower.control import Control, Value, pairs
from cotune.flower.programs import Program, end_families, environment, program
from cotune.flower.superlink import HOST, START, Host, Link, free_ports, half_migrated, waiting

DATABASE = "state.db"
_SOCKET = 100  # characters of a local socket's path; systems take 104 or more


class Loopback(Host):
    """A SuperLink and SuperNodes with TLS and registered keys, each with its own folder, port and settings."""

    def __init__(
        self,
        folder: Path,
        nodes: int,
        *,
        secure: bool = True,
        config: Callable[[int], Mapping[str, Value]] | None = None,
        worker: tuple[Path, Sequence[str]] | None = None,
        patience: float = START,
        say: Say = silent,
    ) -> None:
        """Choose ports and names; nothing starts before `with`.

        Args:
            folder: of everything: certificates, keys, the database, logs, the clients' private state.
            nodes: how many SuperNodes.
            secure: TLS and registered keys; without, anybody on this machine may join.
            config: more settings of a node, by its number.
            worker: the experiment's file and assignments, for a `cotune worker` beside each SuperNode; None
                for none.
            patience: seconds for programs to start.
            say: is told what happens.

        Raises:
            CotuneError: E_CONFIG without Flower, E_VERSION with another one.
        """
        super().__init__(folder, patience, say)
        self.secure, self.count = secure, nodes
        self._more, self._worker = config, worker
        self._nodes: dict[int, Program] = {}
        self._workers: dict[int, Program] = {}
        self._ports: list[int] = []

    def start(self) -> None:
        """Certificates where there are none, the SuperLink, keys and their registration, workers and SuperNodes."""
        port, *self._ports = free_ports(1 + self.count)
        if self.secure and not (self.folder / certificates.AUTHORITY).exists():
            certificates.make_authority(self.folder)
            certificates.make_server(self.folder)
        database = self.folder / DATABASE
        if half_migrated(database):
            self.say("the SuperLink was killed while it made its tables: they are made anew")
            database.replace(database.with_suffix(".broken"))
        authority = self.folder / certificates.AUTHORITY if self.secure else None
        self.link = Link(self.folder, port, self._link_options(), authority)
        self.link.start(self.patience)
        self.say(f"SuperLink on {self.link.address}{' with TLS and registered keys' if self.secure else ', insecure'}")
        self.control = Control(self.folder / "home", self.link.address, authority, f"{self.folder}/flwr")
        for node in range(self.count):
            if self._worker is not None:
                self.start_worker(node)
            self._register(node)
        if self.secure and self.online():  # a key that is there already is refused
            self.say("waiting until the SuperLink notices that SuperNodes were killed, up to a minute")
            self._wait_gone(0)
        started = _now()
        for node in range(self.count):
            self._start(node)
        self.wait_online(self.count, started)
        self.say(f"{self.count} SuperNodes are online")
        for node, worker in self._workers.items():
            self._wait_ready(node, worker)

    def close(self) -> None:
        """End everything, whatever state it is in; SuperNodes first, so that they can take leave of the SuperLink."""
        if self._nodes:
            end_families([f"{self.folder}/node-{node}" for node in self._nodes])
        super().close()
        for started in (*self._nodes.values(), *self._workers.values()):
            started.reap()
        self._nodes.clear()
        self._workers.clear()

    def start_link(self) -> None:
        """Start the SuperLink again, on the same port and database."""
        self.link.start(self.patience)

    def kill_link(self) -> None:
        """End the SuperLink and the server's app at once, as a power cut would."""
        self.link.kill()

    def start_node(self, node: int) -> None:
        """Start a SuperNode again, with the same key and settings, and wait until it is online.

        As long as the SuperLink believes the one that was killed to be there, it refuses the new one.
        """
        if self.secure:
            self._wait_gone(len(self._nodes))
        started = _now()
        self._start(node)
        self.wait_online(1, started)

    def kill_node(self, node: int) -> None:
        """End a SuperNode, and what it works on, at once; its worker stays."""
        self._nodes.pop(node).kill()

    def start_worker(self, node: int) -> None:
        """Start the worker beside a SuperNode, with the same clients and private state; it loads for a while.

        Raises:
            CotuneError: E_ENGINE when there is no experiment for it.
        """
        if self._worker is None:
            raise CotuneError(Code.ENGINE, "this deployment has no workers", where="loopback")
        experiment, sets = self._worker
        home = self.home(node)
        script = "import sys; from cotune.cli import main; sys.exit(main())"
        command = [sys.executable, "-c", script, "worker", str(experiment), "--socket", str(self.socket(node))]
        command += ["--partition", f"{node}/{self.count}", "--state", str(home / "state")]
        command += [word for one in sets for word in ("--set", one)]
        env = environment(home / "home", f"{self.folder}/worker-{node}")
        self._workers[node] = Program(f"worker {node}", command, home / "worker.log", env)

    def online(self) -> int:
        """How many SuperNodes the SuperLink believes to be there; it notices a dead one after up to a minute."""
        return sum(node.online() for node in self.control.nodes().values())

    def wait_online(self, count: int, since: str = "") -> None:
        """Wait until so many SuperNodes are online that came at a time or later: a database remembers earlier ones.

        Raises:
            CotuneError: E_ENGINE, with the end of its log, where one has ended, or not in time.
        """
        for _ in waiting(self.patience, "SuperNodes do not come online", self.folder):
            self.link.check()
            for node in self._nodes.values():
                node.check()
            if sum(node.online(since) for node in self.control.nodes().values()) >= count:
                return

    def home(self, node: int) -> Path:
        """The folder of a SuperNode: its key, its log, its clients' private state."""
        return self.folder / "nodes" / str(node)

    def node_config(self, node: int) -> dict[str, Value]:
        """The settings of a SuperNode."""
        settings: dict[str, Value] = {"partition-id": node, "num-partitions": self.count}
        settings["state"] = str(self.home(node) / "state")
        if self._worker is not None:
            settings["worker"] = str(self.socket(node))
        return {**settings, **(self._more(node) if self._more else {})}

    def socket(self, node: int) -> Path:
        """Where the worker beside a SuperNode listens.

        Raises:
            CotuneError: E_CONFIG where the path is longer than systems take.
        """
        path = self.home(node) / "worker.sock"
        if len(str(path)) > _SOCKET:
            what, fix = "the folder's path is too long for a local socket", f"at most {_SOCKET} characters in all"
            raise CotuneError(Code.CONFIG, what, where=str(self.folder), fix=fix)
        return path

    def _link_options(self) -> list[str]:
        options = ["--database", str(self.folder / DATABASE)]
        if not self.secure:
            return [*options, "--insecure"]
        options += ["--ssl-ca-certfile", str(self.folder / certificates.AUTHORITY)]
        options += ["--ssl-certfile", str(self.folder / certificates.SERVER)]
        return [*options, "--ssl-keyfile", str(self.folder / certificates.SERVER_KEY), "--enable-supernode-auth"]

    def _register(self, node: int) -> None:
        if not self.secure:
            return
        key = self.home(node) / "key"
        if not key.exists():
            certificates.make_node_key(key)
        self.control.register(certificates.public_half(key))

    def _start(self, node: int) -> None:
        home = self.home(node)
        trust = ["--insecure"]
        if self.secure:
            authority, key = str(self.folder / certificates.AUTHORITY), str(home / "key")
            trust = ["--root-certificates", authority, "--auth-supernode-private-key", key]
        command = [program("flower-supernode"), *trust, "--superlink", self.link.address]
        command += ["--host", HOST, "--port", str(self._ports[node]), "--node-config", pairs(self.node_config(node))]
        env = environment(home / "home", f"{self.folder}/node-{node}")
        self._nodes[node] = Program(f"SuperNode {node}", command, home / "node.log", env)

    def _wait_gone(self, left: int) -> None:
        """Wait until the SuperLink believes in no more SuperNodes than there are."""
        for _ in waiting(self.patience, "the SuperLink does not notice that a SuperNode is gone", self.folder):
            if self.online() <= left:
                return

    def _wait_ready(self, node: int, worker: Program) -> None:
        """Wait until a worker has loaded: then it says which clients it has."""
        for _ in waiting(self.patience, "a worker does not answer", worker.log):
            worker.check()
            with contextlib.suppress(CotuneError):
                clients = link.ask(self.socket(node), link.WHO)[0]["clients"]
                self.say(f"worker {node} has loaded · {len(clients)} clients")
                return


class Simulation(Host):
    """A SuperLink that keeps its state in memory and simulates its SuperNodes, by Ray, in processes of this machine."""

    def __init__(self, folder: Path, nodes: int, *, cpus: int = 1, patience: float = START, say: Say = silent) -> None:
        """Choose a port; nothing starts before `with`.

        Args:
            folder: of Flower's files and logs.
            nodes: how many SuperNodes.
            cpus: of one of them; as many work at once as the machine has of these.
            patience: seconds for the SuperLink to start.
            say: is told what happens.

        Raises:
            CotuneError: E_CONFIG without Flower, E_VERSION with another one.
        """
        super().__init__(folder, patience, say)
        self._settings: Mapping[str, Value] = {"num-supernodes": nodes, "client-resources-num-cpus": cpus}

    @property
    def federation(self) -> Mapping[str, Value]:
        """How many SuperNodes, and what each takes."""
        return self._settings

    def start(self) -> None:
        """The SuperLink."""
        (port,) = free_ports(1)
        self.link = Link(self.folder, port, ["--insecure", "--simulation"], None)
        self.link.start(self.patience)
        self.control = Control(self.folder / "home", self.link.address, None, f"{self.folder}/flwr")


def _now() -> str:
    """The time as `flwr` writes it."""
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%SZ}"


def answers(listens: Path) -> bool:
    """Whether somebody accepts connections at a local socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(5)
        try:
            probe.connect(str(listens))
        except OSError:
            return False
    return True
