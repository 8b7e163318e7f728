"""Every message of a run from shapes alone: what `cotune show` prints and what replies are checked against."""

from __future__ import annotations

from cotune import wire
from cotune.core.contracts import Layouts
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
        accepted: the last round in which it was accepted; every round since is taken to be committed.
    """
    following = round_ if kind is Kind.TRAIN else round_ + 1
    held = max(accepted - 1, 0)
    content = plan.method_of(client).received(plan.spec_of(client), following, held)
    added: dict[str, tuple[str, tuple[int, ...]]] = {}
    for i, past in enumerate(range(held + 1, following)):
        cohort = plan.federation.sample(plan.clients, plan.seeds, past)
        layout = plan.method.aggregator.increment([plan.spec_of(member) for member in cohort])
        added |= {f"{i:05d}/{name}": row for name, row in layout.items()}
    return content | ({"base": added} if added else {})


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
