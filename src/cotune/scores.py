"""How a committed model scores: on rows that no client has, and on those that each holds back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from cotune import wire
from cotune.core.contracts import Engine
from cotune.core.events import Watch
from cotune.core.message import Envelope, Kind
from cotune.core.record import ClientMetric, LedgerLine, Metric
from cotune.diagnose.metrics import cell_metrics, client_metrics, global_metrics
from cotune.fold import Fold
from cotune.objective import score
from cotune.server import Desk, Exchange, State, check, model_at


@dataclass(frozen=True)
class Scores:
    """How a committed model scores.

    Attributes:
        which: the model that was scored, in words.
        overall: metric -> mean over the test rows.
        cells: share -> stratum of the test rows -> mean over its rows.
        clients: client -> metric -> its own model beside the aggregated one, on its held-back rows.
        rows: metric -> the score of every test row, for paired intervals.
        general: loss per token on general text, and how much higher it is than before training.
        ledger: the lines of the messages it took.
    """

    which: str = ""
    overall: Mapping[str, Metric] = field(default_factory=dict)
    cells: Mapping[str, Mapping[str, Metric]] = field(default_factory=dict)
    clients: Mapping[str, Mapping[str, ClientMetric]] = field(default_factory=dict)
    rows: Mapping[str, Sequence[float]] = field(default_factory=dict)
    general: Mapping[str, float] = field(default_factory=dict)
    ledger: Sequence[LedgerLine] = ()


def evaluate(desk: Desk, state: State, engine: Engine, fold: Fold, watch: Watch) -> Scores:
    """The scores of `state`, when due: test rows here, or through the clients where models are personal."""
    setup = desk.setup
    if not setup.evaluation.due(state.round, setup.federation.rounds):
        return Scores()
    watch("scoring", {"round": state.round, "rows": len(setup.test.examples)})
    accepted = sorted(fold.weights) if state.abandoned == 0 else []
    asked = sorted(c for c, info in desk.clients.items() if info.rows) if setup.evaluation.which == "all" else accepted
    if setup.evaluation.which == "global" and setup.one_model:
        asked = []
    reports: dict[str, Envelope] = {}
    exchange = Exchange(desk, state, Kind.EVALUATE, asked, watch)

    def take(client: str, reply: bytes) -> None:
        envelope = wire.decode(reply, state.limits(setup, client, Kind.EVALUATE))
        check(envelope, exchange.sent[client], Kind.REPORT)
        reports[client] = envelope

    if asked:
        exchange.run(engine, take)
    if setup.one_model:
        which = "global theta"
        with model_at(setup, state.theta, state.base) as (bound, tensors):
            scored = {n: t.tolist() for n, t in score(bound, tensors, setup, setup.test.examples).items()}
    else:
        which = f"mean over the own models of {len(reports)} clients"
        if setup.method.personalize is not None:
            which += f", each of which {setup.method.personalize.kind} makes of the global theta and the client's own"
        parts = [report.part("scores") for _, report in sorted(reports.items())]
        scored = {n: torch.stack([p[n].double() for p in parts]).mean(0).tolist() for n in setup.task.metrics if parts}
    names, ratios = setup.task.metrics, setup.task.ratios
    clients = {}
    for client, report in reports.items():
        rows, *means = report.metrics
        n = int(rows) if 0 <= rows < 2**53 else 0
        federated = dict(zip(names, means, strict=True))
        clients[client] = client_metrics(names, ratios, fold.metrics.get(client, {}), federated, n)
    overall = global_metrics(scored, ratios, setup.corpus.chance)
    cells = cell_metrics(scored, setup.cells, setup.corpus.chance)
    return Scores(which, overall, cells, clients, scored, desk.general(state), exchange.ledger)
