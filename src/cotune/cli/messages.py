"""Every message of a run, predicted from shapes alone and sorted by what it costs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from cotune import forecast, wire
from cotune.core.contracts import Layouts
from cotune.core.message import NEVER, Kind
from cotune.diagnose import ledger_line
from cotune.setup import Plan

PREDICTED = 2000  # different messages; a longer run is predicted from its first rounds


@dataclass(frozen=True)
class Message:
    """What one message costs.

    Attributes:
        purpose: 'train' or 'evaluate'.
        direction: 'down' or 'up'.
        payload: (role or part, bytes).
        framing: bytes of header, names and metrics.
    """

    purpose: str
    direction: str
    payload: tuple[tuple[str, int], ...]
    framing: int

    @property
    def total(self) -> int:
        """Payload and framing."""
        return sum(count for _, count in self.payload) + self.framing


Round = Counter[Message]


def ordered(messages: Round) -> list[tuple[Message, int]]:
    """(message, how many) in the order of a round: train, then evaluate; down, then up; the largest first."""
    return sorted(messages.items(), key=lambda row: (row[0].purpose != "train", row[0].direction, -row[0].total))


@dataclass(frozen=True)
class Traffic:
    """The messages of the first rounds of a run, round by round.

    Attributes:
        rounds: how many the run has.
        played: the messages of round 1, 2, …; all rounds unless there are very many different messages.
    """

    rounds: int
    played: tuple[Round, ...]

    @property
    def exact(self) -> bool:
        """Whether every round is there."""
        return len(self.played) == self.rounds

    def alike(self) -> list[tuple[list[int], Round]]:
        """(round numbers, their messages), rounds of the same messages together, in the order of first appearance."""
        groups: dict[frozenset[tuple[Message, int]], tuple[list[int], Round]] = {}
        for number, messages in enumerate(self.played, start=1):
            numbers, _ = groups.setdefault(frozenset(messages.items()), ([], messages))
            numbers.append(number)
        return list(groups.values())

    def totals(self) -> dict[str, int]:
        """Bytes of the whole run by the names of a round's record; an estimate where not every round was played."""
        total = Counter[str]()
        for messages in self.played:
            total.update(spent(messages))
        return {name: round(count * self.rounds / len(self.played)) for name, count in total.items()}


def spent(messages: Round) -> dict[str, int]:
    """Bytes of a round by the names that its record has for them."""
    total = {"uplink_bytes": 0, "downlink_bytes": 0, "evaluation_bytes": 0}
    for message, count in messages.items():
        trained = {"up": "uplink_bytes", "down": "downlink_bytes"}
        total[trained[message.direction] if message.purpose == "train" else "evaluation_bytes"] += count * message.total
    return total


def traffic(plan: Plan) -> Traffic:
    """The messages of a run in which every client that is asked replies, and every reply is accepted."""
    rounds, accepted, played, different = plan.federation.rounds, dict[str, int](), [], 0
    for round_ in range(1, rounds + 1):
        messages, computed = _round(plan, round_, accepted)
        played.append(messages)
        different += computed
        if different > PREDICTED:
            break
    return Traffic(rounds, tuple(played))


def _round(plan: Plan, round_: int, accepted: dict[str, int]) -> tuple[Round, int]:
    """The messages of one round, and how many of them differ; notes in `accepted` that all replies counted."""
    cohort = plan.federation.sample(plan.clients, plan.seeds, round_)
    messages, seen = Round(), dict[tuple[object, ...], tuple[Message, Message]]()

    def add(client: str, kind: Kind) -> None:
        held, group = accepted.get(client, NEVER), plan.federation.group(client)
        same = (kind, held, group.match if group else None, len(plan.corpus.clients[client].train))
        if same not in seen:
            seen[same] = _pair(plan, client, round_, kind, held)
        messages.update(seen[same])

    for client in cohort:
        add(client, Kind.TRAIN)
    accepted |= dict.fromkeys(cohort, round_)
    for client in _scored(plan, round_, cohort):
        add(client, Kind.EVALUATE)
    return messages, 2 * len(seen)


def _scored(plan: Plan, round_: int, cohort: list[str]) -> list[str]:
    """Who is asked for scores at the end of a round."""
    which = plan.evaluation.which
    if not plan.evaluation.due(round_, plan.federation.rounds) or (which == "global" and plan.one_model):
        return []
    return [info.id for info in plan.clients if info.rows] if which == "all" else cohort


def _pair(plan: Plan, client: str, round_: int, kind: Kind, accepted: int) -> tuple[Message, Message]:
    """The question and the answer."""
    down = forecast.request(plan, client, round_, kind, accepted)
    up = forecast.reply(plan, client, round_, kind)
    purpose: Literal["train", "evaluate"] = "train" if kind is Kind.TRAIN else "evaluate"

    def message(direction: Literal["down", "up"], content: Layouts, metrics: int) -> Message:
        line = ledger_line(
            (round_, client),
            direction=direction,
            purpose=purpose,
            payload=wire.payload(content),
            total=sum(wire.size(content, metrics)),
            spec=plan.spec_of(client),
        )
        return Message(purpose, direction, tuple(line.payload_bytes.items()), line.framing_bytes)

    return message("down", down, 0), message("up", up.layout or {}, up.metrics or 0)
