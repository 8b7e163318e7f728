"""A client's app: it hands each message to the worker beside its SuperNode, or loads everything itself.

Flower starts a new process for every message. With a worker (`cotune worker`) that process imports no torch and no
model; without one it builds the same seat from the project's experiment, answers, and is gone.

| `--node-config` | |
|---|---|
| `worker` | the socket of a worker on this machine; the rest is then the worker's to know |
| `client`, `data` | the id of the site's client, and the reference of its own rows |
| `partition-id`, `num-partitions` | instead: this site's part of the clients in the task's own data |
| `state` | the folder of private state; else one in the user's home |

Of what the server sends, nothing names a file here: the experiment comes with the app, the rows with the node's own
settings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from cotune import link
from cotune.core.errors import Code, CotuneError
from cotune.flower.records import STEP, WHO, opened, records, refusal

if TYPE_CHECKING:
    from cotune.engine.seat import Seat

STATE = Path("~/.local/state/cotune/flower")
SEEN = "cotune.seen"  # client -> the newest round that it was asked about, as long as the run and its node last


def make_client_app(folder: Path) -> ClientApp:
    """The client's app of the project in a folder."""
    app = ClientApp()
    handler = Handler(Path(folder))
    for kind in (STEP, WHO):
        group, _, action = kind.partition(".")
        getattr(app, group)(action)(handler)
    return app


class Handler:
    """Answers one message; whatever goes wrong is an answer too, without the text of an exception."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, message: Message, context: Context) -> Message:
        """The reply."""
        try:
            answer = self._answer(message, context)
        except CotuneError as error:
            answer = refusal(error)
        except Exception as error:  # noqa: BLE001  # Flower would send its text to the server, and log it
            answer = refusal(CotuneError(Code.CLIENT, "the client's app failed", got=type(error).__name__))
        return Message(answer, reply_to=message)

    def _answer(self, message: Message, context: Context) -> RecordDict:
        worker = context.node_config.get("worker")
        ask = _Warm(Path(str(worker)).expanduser()) if worker is not None else _Cold(_settings(self._folder, context))
        if message.metadata.message_type == WHO:
            return records({"who": json.dumps(ask.who())})
        about, blob = opened(message.content)
        client, round_ = str(about["client"]), int(about["round"])
        _check_new(context, client, round_)
        reply = ask.step(client, blob or b"", link.Roster(int(about["clients"]), int(about["most"])))
        return records({"client": client}, reply)


def _check_new(context: Context, client: str, round_: int) -> None:
    """Refuse a round before the newest one: its message waited while this node was away."""
    seen = context.state.config_records.get(SEEN, ConfigRecord())
    newest = seen.get(client, round_)
    if isinstance(newest, int) and round_ < newest:
        raise CotuneError(Code.ROUND, "message of a round that is over", got=round_, expected=f"{newest} or later")
    context.state[SEEN] = ConfigRecord({**seen, client: round_})


class _Warm:
    """A worker on this machine."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def who(self) -> Mapping[str, Any]:
        """Who it has."""
        return link.ask(self._socket, link.WHO)[0]

    def step(self, client: str, message: bytes, roster: link.Roster) -> bytes:
        """A client's reply."""
        reply = link.ask(self._socket, *link.question(client, message, roster))[1]
        assert reply is not None
        return reply


class _Cold:
    """The same in this process, loaded once in its life."""

    def __init__(self, settings: str) -> None:
        self._seat = _seat(settings)

    def who(self) -> Mapping[str, Any]:
        """Who is here."""
        return self._seat.who()

    def step(self, client: str, message: bytes, roster: link.Roster) -> bytes:
        """A client's reply."""
        reply = self._seat.step(client, message, roster)
        if isinstance(reply, CotuneError):
            raise reply
        return reply


def _settings(folder: Path, context: Context) -> str:
    """All that decides what is loaded, as one text."""
    return json.dumps([str(folder), dict(context.run_config), dict(context.node_config)], sort_keys=True)


@lru_cache(maxsize=1)  # a simulation's process answers for many nodes; another node of it may have other settings
def _seat(settings: str) -> Seat:
    from cotune.engine.service import seated
    from cotune.flower.project import experiment_of

    folder, run, node = json.loads(settings)
    experiment = experiment_of(Path(folder), run)
    return seated(experiment.blueprint(), _site(node), Path(str(node.get("state", STATE))).expanduser())


def _site(node: Mapping[str, Any]) -> Any:
    """The site that a node's own settings describe.

    Raises:
        CotuneError: E_CONFIG when they do not say which clients it stands for.
    """
    from cotune.engine.site import Site

    if "client" in node:
        return Site(client=str(node["client"]), data=str(node["data"]) if "data" in node else None)
    if "partition-id" not in node:
        fix = 'give --node-config \'client="..." data="..."\', or partition-id and num-partitions'
        raise CotuneError(Code.CONFIG, "the node does not say whose rows it has", where="node config", fix=fix)
    return Site(place=int(node["partition-id"]), places=int(node.get("num-partitions", 1)))
