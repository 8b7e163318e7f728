"""A Flower grid in this process: what `flwr` carries between machines, without a machine.

Messages and contexts cross as the bytes they would be, so nothing is shared and nothing travels that could not. What is
private to `flwr`, the identity of the running task and its protobuf forms, is used here and nowhere else.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import context_from_proto, context_to_proto, message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Context as ContextProto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

RUN = 7
GOLDEN = 0x9E3779B97F4A7C15  # spreads numbers out of their order
LOG = logging.getLogger("node")  # what a node's own log has
POLL = 0.002  # seconds between two looks for replies


@dataclass(frozen=True)
class Fault:
    """What goes wrong with messages to a node.

    Attributes:
        error: the code of the error that comes back in place of a reply; the ClientApp does not run.
        delay: seconds until the ClientApp has done its work; infinite for one that never answers.
        spoil: what becomes of the content of a reply.
        on: which messages it happens to; all by default.
    """

    error: int | None = None
    delay: float = 0.0
    spoil: Callable[[RecordDict], RecordDict] | None = None
    on: Callable[[Message], bool] = field(default=lambda _: True)


class LocalGrid(Grid):
    """ClientApps as nodes of this process, one after another, when somebody looks for replies.

    Attributes:
        ids: of the nodes, in the order of their configs; not sorted.
        faults: node id -> what goes wrong there from now on.
        offline: ids of nodes that are not listed, and whose messages come back as NODE_UNAVAILABLE.
        contexts: node id -> what the ClientApp finds there in the next message.
        pushed: every message that was sent.
        ran: node ids in the order in which ClientApps worked.
    """

    def __init__(
        self,
        client_app: Callable[[Message, Context], Message],
        nodes: Sequence[Mapping[str, Any]],
        run_config: Mapping[str, Any] | None = None,
    ) -> None:
        self.client_app = client_app
        self.ids = [(i + 1) * GOLDEN % 2**63 for i in range(len(nodes))]
        self.faults: dict[int, Fault] = {}
        self.offline: set[int] = set()
        self.contexts: dict[int, Context] = {}
        self.pushed: list[Message] = []
        self.ran: list[int] = []
        self._nodes = dict(zip(self.ids, map(dict, nodes), strict=True))
        self._run_config = dict(run_config or {})
        self._run = Run.create_empty(RUN)
        self._waiting: dict[str, tuple[float, Message]] = {}
        self._replies: dict[str, Message] = {}
        self._activations: dict[int, int] = {}
        for node in self.ids:
            self.restart(node)
        _become(SUPERLINK_NODE_ID)

    def restart(self, node: int) -> None:
        """A SuperNode that starts again: online, without the context of before and without what it was asked."""
        for name, (_, message) in self._waiting.items():
            if message.metadata.dst_node_id == node:
                self._waiting[name] = math.inf, message
        self._activations[node] = self._activations.get(node, 0) + 1
        self.contexts[node] = Context(RUN, node, dict(self._nodes[node]), RecordDict(), dict(self._run_config))
        self.offline.discard(node)

    def set_run(self, run: Run) -> None:
        """Take on another run."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """A message of this run."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Those that are online."""
        return [node for node in self.ids if node not in self.offline]

    def get_nodes(self) -> list[NodeInfo]:
        """Those that are online, and which start of theirs this is."""
        since = self._activations
        return [
            NodeInfo(node_id=node, status="online", last_activated_at=str(since[node])) for node in self.get_node_ids()
        ]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages; their ids."""
        ids, now = [], time.monotonic()
        for message in messages:
            name = message.object_id
            message.metadata.__dict__["_message_id"] = name
            ids.append(name)
            sent = _crossed(message)
            self.pushed.append(sent)
            fault = self._fault(sent)
            self._waiting[name] = now + fault.delay, sent
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies that are there; each comes once."""
        self._work()
        found = []
        for name in message_ids:
            if name in self._replies:
                found.append(self._replies.pop(name))
            elif name not in self._waiting:
                found.append(_failed(name, ErrorCode.MESSAGE_UNAVAILABLE))
        return found

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send, and wait for the replies."""
        waiting, replies = set(self.push_messages(messages)), list[Message]()
        end = time.monotonic() + (math.inf if timeout is None else timeout)
        while waiting:
            found = self.pull_messages(waiting)
            replies += found
            waiting -= {message.metadata.reply_to_message_id for message in found}
            if waiting and time.monotonic() >= end:
                break
            if waiting:
                time.sleep(POLL)
        return replies

    def _fault(self, message: Message) -> Fault:
        fault = self.faults.get(message.metadata.dst_node_id)
        return fault if fault is not None and fault.on(message) else Fault()

    def _work(self) -> None:
        """Let nodes answer everything whose time has come, also what nobody waits for any more."""
        now = time.monotonic()
        due = sorted((when, name) for name, (when, _) in self._waiting.items() if when <= now)
        for _, name in due:
            _, message = self._waiting.pop(name)
            self._replies[name] = self._answer(name, message)
        for name in [n for n, (_, message) in self._waiting.items() if _expired(message)]:
            del self._waiting[name]

    def _answer(self, name: str, message: Message) -> Message:
        node, fault = message.metadata.dst_node_id, self._fault(message)
        if _expired(message):
            return _failed(name, ErrorCode.MESSAGE_UNAVAILABLE)
        if fault.error is not None:
            if fault.error == ErrorCode.NODE_UNAVAILABLE:
                return _failed(name, fault.error)
            return _crossed(Message(Error(fault.error, "a fault of this test"), reply_to=message))
        if node in self.offline:
            return _failed(name, ErrorCode.NODE_UNAVAILABLE)
        context = context_from_proto(ContextProto.FromString(context_to_proto(self.contexts[node]).SerializeToString()))
        self.ran.append(node)
        _become(node)
        try:
            reply = self.client_app(message, context)
            if fault.spoil is not None:
                reply = Message(fault.spoil(reply.content), reply_to=message)
            return _crossed(reply)
        except Exception as error:  # as the process of a ClientApp does
            LOG.exception("a ClientApp raised an exception")
            reason = f"{type(error)}:<'{error}'>"
            return _crossed(Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message))
        finally:
            self.contexts[node] = context
            _become(SUPERLINK_NODE_ID)


def _become(node: int) -> None:
    """Messages can be made only by a task, and this process is one of `node` from now on."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, node, 1


def _crossed(message: Message) -> Message:
    """The message as it arrives."""
    return message_from_proto(MessageProto.FromString(message_to_proto(message).SerializeToString()))


def _expired(message: Message) -> bool:
    return message.metadata.created_at + message.metadata.ttl < time.time()


def _failed(name: str, code: int) -> Message:
    """What the SuperLink itself answers: it comes from no node, and says only which message it is about."""
    asked = Message(RecordDict(), SUPERLINK_NODE_ID, "query")
    asked.metadata.__dict__["_message_id"] = name
    return _crossed(Message(Error(code, "the SuperLink has no reply"), reply_to=asked))
