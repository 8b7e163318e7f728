"""Clients on Flower's nodes: bytes out by `Grid.push_messages`, bytes back by `Grid.pull_messages`.

What Flower leaves open is closed here: the wait for nodes ends, a deadline is kept, replies are handed on as they come
rather than when all are there, no message outlives its round, and a node that went, or came back without what it was
asked, costs its clients and not the round.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Message

from cotune import wire
from cotune.core.contracts import ClientInfo, OnReply, Outcome
from cotune.core.errors import Code, CotuneError, one_line
from cotune.core.events import Say, silent
from cotune.core.message import Limits
from cotune.engine.seat import common, differing
from cotune.flower.records import STEP, WHO, Plain, opened, records
from cotune.setup import Setup

if TYPE_CHECKING:
    from flwr.serverapp import Grid

SOON, SELDOM = 0.02, 1.0  # seconds between two looks, at first and at last
SLACK = 30.0  # seconds that a message lives longer than its deadline
LIFE = 3600.0  # of a message without one
AGAIN = 10.0  # seconds until a node that could not take part is asked once more
LOOK = 5.0  # seconds between two looks at who is online

# Flower's own codes: what became of a message that nobody answered
_CAUSES: Mapping[int, tuple[Code, str]] = {
    1: (Code.ENGINE, "its app cannot be loaded"),
    2: (Code.CLIENT, "its app raised an exception"),
    3: (Code.LATE, "its message was not delivered"),
    4: (Code.LATE, "no reply by the deadline"),
    5: (Code.ENGINE, "its node is gone"),
    6: (Code.CLIENT, "a mod refused its message"),
    7: (Code.ENGINE, "its node refuses the app"),
    8: (Code.ENGINE, "its process ended"),
}


@dataclass(frozen=True)
class Asked:
    """A message on its way.

    Attributes:
        who: is asked: a client, or a node.
        node: where.
        since: when that node went online, as far as it is known.
    """

    who: str
    node: int
    since: str


class FlowerEngine:
    """Every client of the nodes that answered when the run began."""

    def __init__(
        self,
        setup: Setup,
        folder: Path,
        *,
        grid: Grid,
        nodes: int,
        wait: float = 600.0,
        life: float = LIFE,
        say: Say = silent,
    ) -> None:
        """Find the clients.

        Args:
            setup: of the server.
            folder: of clients' state, which is theirs alone here.
            grid: of the run.
            nodes: how many there must be before it begins.
            wait: seconds for them to come, and to say which clients they have.
            life: seconds of a message without a deadline.
            say: is told what is waited for.

        Raises:
            CotuneError: E_ENGINE when too few nodes came in time; what a node has loaded differently; E_CONFLICT when
                two have the same client.
        """
        del folder
        self._grid, self._life, self._say = grid, life, say
        self._run = setup.run
        self._common = common(setup)
        self._homes: dict[str, int] = {}
        self._infos: list[ClientInfo] = []
        self._meet(nodes, wait)

    def clients(self) -> Sequence[ClientInfo]:
        """Every client that a node told of."""
        return self._infos

    def exchange(self, downs: Mapping[str, bytes], deadline: float | None, min_ok: int, on_reply: OnReply) -> Outcome:
        """Send each client its message; past the deadline the rest are late."""
        del min_ok
        ok, failed = list[str](), dict[str, CotuneError]()
        most = max((info.rows for info in self._infos), default=0)

        def content(client: str) -> Any:
            message = downs[client]
            header, _ = wire.peek(message, Limits(len(message)))
            about: Plain = {"client": client, "round": header.round, "clients": len(self._infos), "most": most}
            return records(about, message)

        def receive(client: str, reply: Message | CotuneError) -> None:
            answer = _blob(client, reply)
            if isinstance(answer, bytes):
                ok.append(client)
            else:
                failed[client] = answer
            on_reply(client, answer)

        self._ask({client: self._homes[client] for client in sorted(downs)}, STEP, content, deadline, receive)
        return Outcome(tuple(ok), failed)

    def close(self) -> None:
        """Nothing to release: the nodes are not ours."""

    def _meet(self, nodes: int, wait: float) -> None:
        """Ask every node that is online who is there, until so many have answered."""
        ends, again = time.monotonic() + wait, -math.inf
        told: dict[tuple[int, str], Mapping[str, Any] | CotuneError] = {}
        self._say(f"waiting for {nodes} nodes")
        while True:
            if time.monotonic() - again > AGAIN:  # what was wrong with a node may have been put right
                again = time.monotonic()
                told = {key: answer for key, answer in told.items() if not isinstance(answer, CotuneError)}
            online = self._online()
            new = {f"node {node}": node for node, since in online.items() if (node, since) not in told}
            answers: dict[str, Mapping[str, Any] | CotuneError] = {}

            def receive(who: str, reply: Message | CotuneError, into: Any = answers) -> None:
                into[who] = self._who(who, reply)
                self._say(_introduced(who, into[who]))

            self._ask(new, WHO, lambda _: records({}), max(ends - time.monotonic(), SOON), receive)
            told |= {(node, online[node]): answers[who] for who, node in new.items()}
            there = {node: told[node, since] for node, since in online.items()}
            good = {node: answer for node, answer in there.items() if not isinstance(answer, CotuneError)}
            if len(good) >= nodes:
                break
            if time.monotonic() > ends:
                reasons = "; ".join(str(answer) for answer in there.values() if isinstance(answer, CotuneError))
                raise CotuneError(
                    Code.ENGINE,
                    "too few nodes came in time",
                    where=reasons,
                    got=len(good),
                    expected=nodes,
                    fix="look at the SuperNodes' logs, or set `nodes` and `wait`",
                )
            time.sleep(min(SELDOM, wait / 10))
        for node, answer in sorted(good.items()):
            for client, (rows, held) in answer["clients"].items():
                if client in self._homes:
                    raise CotuneError(Code.CONFLICT, "two nodes have the same client", where=f"client {client}")
                self._homes[client] = node
                self._infos.append(ClientInfo(client, rows, held))
        self._infos.sort(key=lambda info: info.id)

    def _who(self, who: str, reply: Message | CotuneError) -> Mapping[str, Any] | CotuneError:
        """What a node says about itself, if it fits this run."""
        try:
            about, _ = opened(_content(who, reply))
            said: Mapping[str, Any] = json.loads(str(about["who"]))
            if said["run"] != self._run:
                what, fix = f"{who} has another experiment", "give its worker the experiment of this run"
                return CotuneError(Code.RUN, what, got=said["run"], expected=self._run, fix=fix)
            for rows, held in said["clients"].values():
                if not (type(rows) is type(held) is int and rows >= 0 <= held):
                    raise ValueError("no count of rows")
            return differing(self._common, said["facts"], who) or said
        except CotuneError as error:
            return error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return CotuneError(Code.FORMAT, f"{who} does not say who is there", got=type(error).__name__)

    def _ask(
        self,
        homes: Mapping[str, int],
        kind: str,
        content: Callable[[str], Any],
        deadline: float | None,
        receive: Callable[[str, Message | CotuneError], None],
    ) -> None:
        """Send each its message, and hand on what comes of it; all have been answered for when this returns."""
        ends = time.monotonic() + (self._life if deadline is None else deadline)
        life = self._life if deadline is None else deadline + SLACK
        online = self._online() if homes else {}
        under_way: dict[str, Asked] = {}
        for who, node in homes.items():
            sent: Iterable[str | None] = ()
            if node in online:
                message = Message(content(who), node, kind, ttl=life)
                sent = self._grid.push_messages([message])
            if (number := next(iter(sent), None)) is None:
                receive(who, CotuneError(Code.ENGINE, "its node is offline", where=who))
            else:
                under_way[number] = Asked(who, node, online[node])
        pause, looked = SOON, time.monotonic()
        while under_way and time.monotonic() < ends:
            replies = [*self._grid.pull_messages([*under_way])]
            while replies:
                reply = replies.pop()
                asked = under_way.pop(reply.metadata.reply_to_message_id, None)
                if asked is not None:
                    receive(asked.who, reply)
                    pause = SOON
            if time.monotonic() - looked > LOOK:
                looked, online = time.monotonic(), self._online()
                for number, asked in [*under_way.items()]:
                    if online.get(asked.node, asked.since) != asked.since:
                        del under_way[number]
                        receive(asked.who, CotuneError(Code.ENGINE, "its node came back without it", where=asked.who))
            time.sleep(min(pause, max(ends - time.monotonic(), 0.0)) if under_way else 0.0)
            pause = min(pause * 1.3, SELDOM)
        for asked in under_way.values():
            receive(asked.who, CotuneError(Code.LATE, "no reply by the deadline", where=asked.who))

    def _online(self) -> dict[int, str]:
        """The nodes that are there, and since when."""
        return {node.node_id: node.last_activated_at for node in self._grid.get_nodes()}


def _content(who: str, reply: Message | CotuneError) -> Any:
    """The records of a reply.

    Raises:
        CotuneError: the one there is instead; one of ours for an error of Flower's, without its text.
    """
    if isinstance(reply, CotuneError):
        raise reply
    if reply.has_error():
        code, what = _CAUSES.get(reply.error.code, (Code.ENGINE, "no reply"))
        raise CotuneError(code, what, where=who, got=f"Flower's error {reply.error.code}")
    return reply.content


def _blob(client: str, reply: Message | CotuneError) -> bytes | CotuneError:
    """A client's reply, or why there is none."""
    try:
        _, blob = opened(_content(f"client {client}", reply))
    except CotuneError as error:
        return error
    return CotuneError(Code.FORMAT, "a reply without a blob", where=f"client {client}") if blob is None else blob


def _introduced(who: str, answer: Mapping[str, Any] | CotuneError) -> str:
    """A line about a node."""
    if isinstance(answer, CotuneError):
        return f"{who} does not take part · {answer}"
    clients = answer["clients"]
    some = ", ".join(one_line(client, 40) for client in sorted(clients)[:5])
    return f"{who} has {len(clients)} clients · {some}{', …' if len(clients) > 5 else ''}"
