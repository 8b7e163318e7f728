"""The demo's FedSPZO row: eight clients train a whole model by forward passes alone, and nothing but scalars travels.

The model is `builtin:tiny-llama`, which comes with cotune; the passages are real, of the King James Bible, and the
question is whether they are of its poetry or of its chronicles. Clients send slopes along directions that a seed names;
the server moves its theta by them, and clients that missed rounds move theirs by what the others sent. So no theta ever
travels, and in every message the hash of the client's is held against the server's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

import cotune as ct
from cotune.backbone.bind import bind
from cotune.core.errors import Code
from cotune.diagnose import paired_interval
from cotune.export.reopen import reopen
from cotune.objective import score
from cotune.reproduce.books import Books
from cotune.setup import Setup
from cotune.store import Table

ROUNDS, STEPS, COHORT, CLIENTS = 12, 5, 2, 8
Say = Callable[[str], None]


def experiment() -> ct.Experiment:
    """Twelve rounds of two clients, five steps each."""
    steps = {"steps": STEPS, "lr": 1e-4, "lr_back": 3e-3, "budget.schedule": "linear"}
    return ct.Experiment(
        name="fedspzo",
        method=ct.recipe("fedspzo", downlink={"kind": "replay"}, **steps),
        task=Books(limit=800, test=80, max_tokens=32, partition=ct.task.Iid(clients=CLIENTS)),
        backbone=ct.Backbone(ref="builtin:tiny-llama"),
        federation=ct.Federation(rounds=ROUNDS, cohort=COHORT),
        evaluation=ct.Evaluation(every=ROUNDS, which="global"),
    )


def losses(setup: Setup, theta: dict[str, torch.Tensor]) -> list[float]:
    """Of every row that some client trains on."""
    rows = [row for client in sorted(setup.corpus.clients) for row in setup.encoded(client)[0].examples]
    with bind(setup.backbone.model, theta, setup.spec) as bound:
        return score(bound, theta, setup, rows)["loss"].tolist()


def forward_only(out: Path, say: Say) -> bool:
    """Whether the training loss fell, and every client held the theta that the server did."""
    whole = experiment()
    run = ct.run(whole, out=out, fresh=True, watch=lambda moment, about: _told(moment, about, say))
    (_, state), setup = reopen(run, whole.blueprint()), whole.blueprint().build()
    before, after = losses(setup, dict(setup.start)), losses(setup, dict(state.theta))
    fell, low, high = paired_interval(before, after)
    lines = [line for line in run.ledger if line.purpose == "train"]
    up, down = ([line.total_bytes for line in lines if line.direction == way] for way in ("up", "down"))
    means = [sum(values) / len(values) for values in (before, after)]
    row = (
        "fedspzo",
        f"{means[0]:.3f}",
        f"{means[1]:.3f}",
        f"{fell:.3f} [{low:.3f}, {high:.3f}]",
        f"{sum(up) / len(up):,.0f}",
        f"{sum(down) / len(down):,.0f}",
        f"{4 * setup.start.numel:,}",
    )
    columns = ("row", "loss before", "after", "fell by, 95 %", "bytes up", "bytes down", "bytes of theta")
    print(f"\n{Table(columns, [row])}\n", flush=True)
    wrong = sum(len(record.cohort.dropped.get(Code.BASE.value, ())) for record in run.rounds)
    say(f"loss is over the {len(before)} passages that clients train on; bytes are a message's, with its framing")
    say(f"in {len(down)} messages a client's theta, rebuilt from scalars, had another hash than the server's")
    say(f"{wrong} times; the last is {run.theta_sha256[:16]}…")
    return low > 0 and not wrong


def _told(moment: str, about: object, say: Say) -> None:
    if moment == "fetching" and isinstance(about, dict):
        say(about["line"])
    if moment == "recorded" and isinstance(about, dict) and about["record"].round % 4 == 0:
        record = about["record"]
        say(f"fedspzo: round {record.round} done, mean train loss {record.train_loss:.3f}")
