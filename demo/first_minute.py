"""The demo's first minute, without a download: what each row would send, then a run that is killed and resumed.

The model is `builtin:tiny-llama`, which comes with cotune; the text is synthetic. The same experiment runs once to its
end and once in a process that kills itself (SIGKILL) in round 3; resumed, it arrives at the same bits.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cotune as ct
from cotune import forecast, wire
from cotune.core.contracts import Corpus, Split
from cotune.core.message import Kind
from cotune.resolve import recipes
from cotune.store import Table

# The shapes of Llama-3.2-1B; its weights are not needed to know what would travel.
LLAMA_1B = "random:llama?layers=16&hidden=2048&heads=32&kv_heads=8&intermediate=8192&vocab=128256&tied=true"
CLIENTS, ROUND = 10, 3  # in the first rounds some rows send less: nothing has changed that a client does not have
KILLED_IN = 3
Say = Callable[[str], None]


def what_each_row_sends() -> Table:
    """Payload bytes a client and round on the shapes of Llama-3.2-1B, both ways, once all clients are under way."""
    rows = []
    for name in recipes():
        experiment = ct.Experiment(
            method=ct.recipe(name), task=ct.task.Text(data="synth:prose"), backbone=ct.Backbone(ref=LLAMA_1B)
        )
        clients = {f"client-{i}": Split([{}], []) for i in range(CLIENTS)}
        plan = experiment.blueprint().sketch(Corpus(clients, [], "causal", (), {}))
        down = wire.payload(forecast.request(plan, "client-0", ROUND, Kind.TRAIN, ROUND - 1))
        up = wire.payload(forecast.reply(plan, "client-0", ROUND, Kind.TRAIN).layout or {})
        trained = sum(entry.numel for entry in plan.spec)
        rows.append((name, f"{trained:,}", f"{sum(down.values()):,}", f"{sum(up.values()):,}"))
    return Table(("row", "numbers trained", "bytes down", "bytes up"), rows)


def experiment() -> ct.Experiment:
    """Four clients, each with its own animals, tune tiny-llama for four rounds."""
    return ct.Experiment(
        name="first-minute",
        method=ct.recipe("lora-fedavg", steps=10, batch=8, lr=5e-3),
        task=ct.task.Text(data="synth:prose?clients=4&rows=400", max_tokens=64),
        backbone=ct.Backbone(ref="builtin:tiny-llama"),
        federation=ct.Federation(rounds=4),
        evaluation=ct.Evaluation(rows=64, which="global"),
    )


def watcher(say: Say, label: str) -> Callable[[str, Mapping[str, Any]], None]:
    """One line a round."""

    def watch(moment: str, about: Mapping[str, Any]) -> None:
        if moment == "recorded":
            record = about["record"]
            perplexity = record.global_metrics["perplexity"].value
            say(f"{label}: round {record.round}, train loss {record.train_loss:.3f}, test perplexity {perplexity:.1f}")
        elif moment == "resumed":
            say(f"{label}: resumed after round {about['round']}")

    return watch


def killed_and_resumed(out: Path, say: Say) -> bool:
    """Whether a run that was killed arrives, resumed, where an uninterrupted one does; both hashes are said."""
    whole = experiment()
    uninterrupted = ct.run(whole, out=out / "uninterrupted", fresh=True, watch=watcher(say, "tiny-llama"))
    say(f"the same in a process that kills itself in round {KILLED_IN}")
    victim = subprocess.run([sys.executable, __file__, str(out / "killed")], check=False)
    say(f"the process ended with signal {-victim.returncode} ({signal.Signals(-victim.returncode).name})")
    resumed = ct.run(whole, out=out / "killed", resume=True, watch=watcher(say, "tiny-llama"))
    say(f"theta_sha256 uninterrupted      {uninterrupted.theta_sha256}")
    say(f"theta_sha256 killed and resumed {resumed.theta_sha256}")
    return uninterrupted.theta_sha256 == resumed.theta_sha256


def die(moment: str, about: Mapping[str, Any]) -> None:
    """Kill this process once the replies of a round are folded and nothing of it is on the disk."""
    if moment == "aggregated" and about["round"] == KILLED_IN:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    ct.run(experiment(), out=sys.argv[1], fresh=True, watch=die)
