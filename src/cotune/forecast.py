"""Every message of a run from shapes alone: what `cotune show` prints and what replies are checked against."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cotune import wire
from cotune.core.contracts import Layouts
from cotune.core.journal import Increment, Reply
from cotune.core.message import Kind, Limits
from cotune.setup import Plan

SLACK_BYTES = 4096
TRAIN_METRICS = ("train_loss", "held_rows", "flops")
REPORT_METRICS = ("held_rows",)


def request(plan: Plan, client: str, round_: int, kind: Kind, accepted: int) -> Layouts:
    """The content of the message that asks a client to train, or to score; such messages carry no metrics.

    Args:
        plan: the common ground.
        client: its id.
        round_: the round that it trains in, or that was just committed when it scores.
        kind: train or evaluate.
        accepted: the last round in which it was accepted; every round since is taken to be committed, with a reply of
            everyone who was asked.
    """
    following = round_ if kind is Kind.TRAIN else round_ + 1
    held = max(accepted - 1, 0)
    past = [one for number in range(held + 1, following) if (one := committed(plan, number))]
    content = plan.method_of(client).received(plan.spec_of(client), following, past)
    added: dict[str, tuple[str, tuple[int, ...]]] = {}
    for i, increment in enumerate(past):
        cohort = plan.federation.sample(plan.clients, plan.seeds, increment.round)
        layout = plan.method.aggregator.increment([plan.spec_of(member) for member in cohort])
        added |= {f"{i:05d}/{name}": row for name, row in layout.items()}
    return content | ({"base": added} if added else {})


def committed(plan: Plan, round_: int) -> Increment | None:
    """What the journal keeps of a round in which everyone who was asked counted; None where nobody was asked."""
    if round_ not in plan.past:
        cohort = plan.federation.sample(plan.clients, plan.seeds, round_)
        names = plan.method.aggregator.moved(plan.spec, plan.method.scope(plan.spec, round_).up)
        increment = Increment(round_, names, replies=_replies(plan, round_, cohort))
        plan.past[round_] = increment if cohort else None
    return plan.past[round_]


def _replies(plan: Plan, round_: int, cohort: Sequence[str]) -> tuple[Reply, ...]:
    """Scalars of the shapes that they will have, on the `meta` device; nothing where a reply will not be scalars."""
    replies, known = list[Reply](), dict[tuple[int, int], dict[str, Tensor]]()
    for client in cohort:
        group, rows = plan.federation.number(client), plan.train_rows(client)
        if (group, rows) not in known:
            layouts = plan.method_of(client).sent(plan.spec_of(client), round_, rows)
            known[group, rows] = {name: _shaped(*row) for name, row in layouts.get("scalars", {}).items()}
        replies.append(Reply(group, seed=0, weight=1.0, scalars=known[group, rows]))
    return tuple(replies) if all(reply.scalars for reply in replies) else ()


def _shaped(dtype: str, shape: tuple[int, ...]) -> Tensor:
    return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")


def reply(plan: Plan, client: str, round_: int, kind: Kind) -> Limits:
    """What a client's reply may claim, before anything is allocated for it: exactly its own layout."""
    count = len(plan.task.metrics)
    content: Layouts
    if kind is Kind.TRAIN:
        content = plan.method_of(client).sent(plan.spec_of(client), round_, plan.train_rows(client))
        count += len(TRAIN_METRICS)
    else:
        scores = dict.fromkeys(plan.task.metrics, ("float32", (plan.test_rows,)))
        content = {} if plan.one_model else {"scores": scores}
        count += len(REPORT_METRICS)
    return Limits(sum(wire.size(content, count)) + SLACK_BYTES, content, count)
