"""A round, end to end: what a client does with a message, and what the server does with the replies.

Start here. `client_step` and `server_round` are the whole protocol; everything that differs between methods is in the
parts they call. Bytes go in and bytes come out, whatever engine carries them.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

from cotune import wire
from cotune.backbone.bind import bind
from cotune.client import Client, NotHeldError
from cotune.core.change import origin
from cotune.core.contracts import ClientPart, Engine
from cotune.core.errors import Code, CotuneError
from cotune.core.events import Watch, quiet
from cotune.core.journal import Increment
from cotune.core.message import Envelope, Kind
from cotune.core.record import Cohort, RoundRecord
from cotune.core.view import View
from cotune.diagnose.distance import distance
from cotune.diagnose.flops import counting
from cotune.diagnose.subspace import NOTHING
from cotune.fold import Fold
from cotune.objective import StepObjective, batch_order, mean_scores, score, step_flops, to_device
from cotune.scores import evaluate
from cotune.server import Desk, Exchange, Played, State


def client_step(client: Client, message: bytes) -> bytes:
    """The reply to one message: train and send what was arrived at, or score and send metrics.

    Raises:
        CotuneError: whatever is wrong with the message or the training; the engine reports it as this client's failure.
    """
    setup, method = client.setup, client.method
    down = wire.decode(message, client.limits)
    header = down.header
    client.check(header)
    try:
        kept = client.recall(header)
    except NotHeldError as error:
        return wire.encode(Envelope(replace(header, kind=Kind.HELD, accepted=error.held)))
    theta = method.downlink.open(down.parts, client.opening(kept.theta, header.round), client.refold)
    base = client.added(kept.base, down)
    if origin(theta, base) != header.base:
        raise CotuneError(Code.BASE, "theta came down as another one than the server holds", fix="check both versions")
    if header.kind is Kind.EVALUATE:
        return wire.encode(client.report(header, theta, kept, base))

    scope = method.scope(client.spec, header.round)
    begun = View(
        round=header.round,
        client=client.name,
        theta=theta,
        personal=kept.personal,
        private=kept.private,
        anchor=theta,
        aux=down.part("aux"),
        seeds=setup.seeds,
        spec=client.spec,
        scope=scope,
        rate=header.rate,
        directions=header.seed,
        clip=method.budget.clip,
    )
    view = method.uplink.begin(begun).to(setup.backbone.device)
    watched = any(type(part).observe is not ClientPart.observe for part in method.client_parts)
    until = time.monotonic() + (header.deadline or math.inf)
    traces, loss, flops, met = [], math.nan, 0, set[bytes]()
    with bind(setup.backbone.model, view.tensors, client.spec, base) as bound, setup.frozen.over():
        state = None
        for rows in batch_order(view, len(client.train.examples), method.budget):
            batches = tuple(to_device(client.batch(numbers), setup.backbone.device) for numbers in rows)
            objective = StepObjective(bound, setup.task, method.penalties, view, batches, setup.layer(client.name))
            flops += setup.frozen.prepare(batches, setup.meter.count, met)
            if view.step == 0:
                with counting() as counter:  # a part may learn something of its own first
                    for part in method.client_parts:
                        view = part.begin(view, objective)
                flops += int(counter.get_total_flops())
                state = method.optimizer.init(view)
                objective = replace(objective, view=view)
            flops += step_flops(objective, method.optimizer, state, setup.meter)
            step = method.optimizer.step(view, state, objective)
            before, view, state, loss = view, step.view, step.state, float(step.loss)
            for part in method.client_parts:
                view = part.observe(before, view, step.gradient)
            view = replace(view, own=not watched)
            traces += [step.trace] if step.trace is not None else []
            if time.monotonic() > until:
                raise CotuneError(Code.LATE, "the deadline passed in training", where=f"step {view.step}")
        for part in method.client_parts:
            view = part.end(view)
        local = score(bound, view.tensors, setup, client.held.examples if setup.scores_held(header.round) else ())
    client.remember(view, base)
    parts = {**method.uplink.pack(view, traces), **({"aux": view.outbox} if view.outbox else {})}
    metrics = (loss, float(len(client.held.examples)), float(flops), *mean_scores(local))
    up = replace(header, kind=Kind.UPDATE, rows=len(client.train.examples))
    return wire.encode(Envelope(up, parts, metrics))


def server_round(desk: Desk, state: State, engine: Engine, watch: Watch = quiet) -> Played:
    """One round from `state`: sample, send, fold in the order of clients, commit or abandon, score, record.

    A reply that fails its checks costs its client, never the round; too few replies cost the round, and then the state
    is what it was, but for the round's number.
    """
    federation, round_, started = desk.setup.federation, state.round + 1, time.monotonic()
    watch("round", {"round": round_, "rounds": federation.rounds})
    cohort = federation.sample(list(desk.clients.values()), desk.setup.seeds, round_)
    watch("selected", {"round": round_, "cohort": cohort})
    opened = desk.setup.opening(state.theta, round_)
    state = state if opened is state.theta else replace(state, theta=opened)
    exchange = Exchange(desk, state, Kind.TRAIN, cohort, watch)
    fold = Fold(desk, state, exchange.sent)
    inbox = exchange.run(engine, fold.take)

    after, abandoned = replace(state, round=round_, abandoned=state.abandoned + bool(cohort)), None
    subspace = NOTHING
    try:
        commit = fold.finish(federation.quorum(len(cohort)))
    except CotuneError as error:
        abandoned = str(error)
    else:
        subspace = fold.subspace.finish(commit.theta, commit.base)
        desk.journal.append(Increment(round_, desk.moved(round_), commit.base, fold.replies))
        after = State(
            round=round_,
            theta=commit.theta,
            server=commit.server,
            aux=commit.aux,
            base=state.base.plus(commit.base) if commit.base else state.base,
            accepted={**state.accepted, **dict.fromkeys(inbox.accepted, round_)},
        )
    watch("aggregated", {"round": round_, "accepted": inbox.accepted, "abandoned": abandoned})
    scores = evaluate(desk, after, engine, fold, watch)
    rate = desk.setup.method.budget.rate(round_, federation.rounds)
    record = RoundRecord(
        round=round_,
        cohort=Cohort(
            selected=tuple(cohort),
            accepted=tuple(inbox.accepted),
            dropped=inbox.by_code(),
            reasons={client: str(error) for client, error in inbox.dropped.items()},
        ),
        abandoned=abandoned,
        weights=fold.normalised(),
        global_metrics=scores.overall,
        cells=scores.cells,
        client_metrics=scores.clients,
        diagnostics={
            "change_norm": distance(state.theta, after.theta),
            **({} if abandoned else fold.conflict.finish()),
            **subspace.numbers,
            **desk.setup.method.trainable.describe(after.theta, desk.setup.spec),
            **desk.setup.method.optimizer.describe(list(fold.replayed.values()), rate),
            **scores.general,
        },
        subspace=subspace.record,
        train_loss=fold.train_loss(),
        flops=fold.flops(),
        uplink_bytes=exchange.spent("up"),
        downlink_bytes=exchange.spent("down"),
        evaluation_bytes=sum(line.total_bytes for line in scores.ledger),
        seconds=time.monotonic() - started,
        theta_sha256=after.theta.sha256(),
        evaluated=scores.which,
    )
    return Played(after, record, (*exchange.ledger, *scores.ledger), scores.rows)
