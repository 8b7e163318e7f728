"""The main job on real text and a real model: ten clients, each with its own films, tune MiniLM on review snippets.

    make demo

It begins with two minutes that need no download: a run that is killed and resumed (first_minute.py), the same clients
by Subspace-Reg (aligned_factors.py), and a private memory that reads 16,384 tokens at constant size, answers and
forgets (private_memory.py). Then clients train a model by forward passes alone, on passages of a package that is
fetched, and send scalars (forward_only.py). Then three rows run on the same ten clients, with the same number of
client-steps: `local` (never aggregated), `lora-fedavg` and `fedprox`. Reviews are split by film, and the test films
belong to nobody. The table is printed and written beside the runs; a second call reuses finished runs of the three
rows and says so (`make demo ARGS=--fresh` repeats them).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

START = time.monotonic()
OUT = Path("runs/demo")
ROUNDS, STEPS, COHORT, CLIENTS = 5, 8, 3, 10
LEARNING_RATE = 2e-3


def say(line: str) -> None:
    print(f"{time.monotonic() - START:6.1f} s  {line}", flush=True)


say("cotune demo: first on a model that comes with it, then on MiniLM and real film reviews; loading torch")

import aligned_factors  # noqa: E402  # the first line is on the screen before torch is loaded
import first_minute  # noqa: E402
import forward_only  # noqa: E402
import private_memory  # noqa: E402

import cotune as ct  # noqa: E402
from cotune import report  # noqa: E402
from cotune.diagnose import mean_interval, paired_interval  # noqa: E402
from cotune.store import Table, write_atomic  # noqa: E402

Arguments = dict[str, Any]


def main(arguments: list[str]) -> int:
    """Run the first minutes and the three rows, and hold the result against chance and against staying alone."""
    say("what each row would send for Llama-3.2-1B, payload a client in round 3 of ten clients, from shapes alone:")
    print(f"\n{first_minute.what_each_row_sends()}\n", flush=True)
    if not first_minute.killed_and_resumed(OUT / "first-minute", say):
        say("the resumed run differs from the uninterrupted one")
        return 1
    say("Subspace-Reg: the same clients; how their factors lie to each other, and how they would without any data")
    print(f"\n{aligned_factors.aligned_factors(OUT / 'first-minute' / 'uninterrupted', say)}\n", flush=True)
    say("FedNL: four clients learn to write and to read a private memory, behind a window of 12 tokens")
    if not private_memory.private_memory(OUT / "private-memory", say):
        say("the memory grew with the text, or was on the wire")
        return 1
    say("FedSPZO: eight clients train a model on real passages by forward passes alone, and send scalars")
    if not forward_only.forward_only(OUT / "forward-only", say):
        say("the training loss did not fall, or a client held another theta than the server")
        return 1
    say("now ten clients tune MiniLM-L6 (22.7 M weights, frozen) with LoRA on film reviews")
    task = ct.task.Classify(
        data="pkg:rotten-tomatoes",
        partition=ct.task.Natural(key="movie", clients=CLIENTS),
        group="movie",
        test=400,
        limit=4000,
        max_tokens=48,
    )
    backbone = ct.Backbone(ref="pkg:minilm-l6", threads=2)
    together = ct.Federation(rounds=ROUNDS, cohort=COHORT)
    alone = ct.Federation(rounds=1)
    parts: Arguments = {"lr": LEARNING_RATE, "targets": ["query", "key", "value", "dense"]}
    rows = {
        "local": (ct.recipe("local", steps=ROUNDS * STEPS * COHORT // CLIENTS, **parts), alone),
        "lora-fedavg": (ct.recipe("lora-fedavg", steps=STEPS, **parts), together),
        "fedprox": (ct.recipe("fedprox", steps=STEPS, **parts), together),
    }
    runs: dict[str, ct.Run] = {}
    for name, (method, federation) in rows.items():
        say(f"{name}: {federation.rounds} rounds, {method.budget.steps} steps a client and round")
        runs[name] = ct.run(
            method,
            task=task,
            backbone=backbone,
            federation=federation,
            evaluation=ct.Evaluation(every=ROUNDS, which="all"),
            name=name,
            out=OUT,
            fresh="--fresh" in arguments,
            resume=True,
            watch=watcher(name),
        )
    table = results(runs)
    verdict, good = against_local(runs)
    text = f"{table}\n\n{verdict}\n"
    print(f"\n{text}")
    write_atomic(OUT / "table.txt", text.encode())
    page = report.write([run.folder for run in runs.values()], OUT)
    say(f"runs, ledgers and this table are in {OUT}; the report is {page}")
    return 0 if good else 1


def watcher(name: str) -> Callable[[str, Mapping[str, Any]], None]:
    """Lines for the moments of a run; of the many replies, those to training."""
    training = True

    def watch(moment: str, about: Mapping[str, Any]) -> None:
        nonlocal training
        match moment:
            case "round":
                training = True
            case "fetching":
                say(about["line"])
            case "loaded":
                facts = about["facts"]
                say(f"{facts['used']} snippets of {facts['data']}, {facts['test']['rows']} of them held out by film")
            case "reply" if training or about["error"]:
                say(f"{name}: {about['client']} has answered" + (f" · {about['error']}" if about["error"] else ""))
            case "scoring":
                training = False
                say(f"{name}: scoring {about['rows']} test rows and every client's held-back rows")
            case "recorded":
                record = about["record"]
                say(f"{name}: round {record.round} done, mean train loss {record.train_loss:.3f}")
            case "reused":
                say(f"{name}: finished earlier and reused; ARGS=--fresh repeats it")

    return watch


def results(runs: Mapping[str, ct.Run]) -> Table:
    """One line a row: accuracy on films that nobody has, with its 95 % interval, and what it cost."""
    columns = ("row", "accuracy", "95 % interval", "drop", "worst client", "up MB", "down MB", "seconds", "peak MB")
    rows = []
    for name, run in runs.items():
        records, last = run.rounds, run.rounds[-1]
        metric = last.global_metrics["accuracy"]
        clients = [client["accuracy"] for client in last.client_metrics.values()]
        drops = [client.drop for client in clients if client.drop is not None]
        federated = [client.federated for client in clients if client.federated is not None]
        rows.append(
            (
                name,
                f"{metric.value:.3f}",
                f"{metric.low:.3f} to {metric.high:.3f}",
                f"{mean_interval(drops)[0]:+.1f}" if name != "local" else "-",
                f"{min(federated):.3f}",
                f"{sum(record.uplink_bytes for record in records) / 1e6:.2f}",
                f"{sum(record.downlink_bytes for record in records) / 1e6:.2f}",
                f"{sum(record.seconds for record in records):.0f}",
                f"{max(record.peak_bytes for record in records) / 1e6:.0f}",
            )
        )
    return Table(columns, rows)


def against_local(runs: Mapping[str, ct.Run]) -> tuple[str, bool]:
    """What the table shows, and whether it shows what a federation is for."""
    last = runs["lora-fedavg"].rounds[-1]
    metric = last.global_metrics["accuracy"]
    chance = metric.chance or 0.5
    ours = runs["lora-fedavg"].scores(last.round)["accuracy"]
    theirs = runs["local"].scores(runs["local"].rounds[-1].round)["accuracy"]
    gain, low, high = paired_interval(ours, theirs)
    lines = (
        f"n = {metric.n} test snippets of films that no client has; guessing the larger class scores {chance:.3f}.",
        f"lora-fedavg minus the mean local client: {100 * gain:+.1f} points, 95 % interval {100 * low:+.1f} to "
        f"{100 * high:+.1f} (paired by row).",
        "local: the mean over the ten clients' own models, none of which is ever aggregated.",
        "drop: a client's own model before aggregation minus the aggregated one on its held-back rows, in points,",
        "over the clients of the last cohort. MB are 10^6 bytes, training messages with their framing, all rounds.",
    )
    return "\n".join(lines), metric.low is not None and metric.low > chance


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
