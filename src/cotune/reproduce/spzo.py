"""FedSPZO against its peers: predicted from gradients, then run to the same loss, and what that takes on a device."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from cotune import experiment as experiments
from cotune import resolve
from cotune.backbone import Backbone
from cotune.core.errors import Code, CotuneError
from cotune.cuts import Cuts, measure
from cotune.diagnose import mean_interval, paired_interval
from cotune.estimate import estimate
from cotune.experiment import Experiment
from cotune.method import Method
from cotune.reproduce import paper, spzo_page
from cotune.reproduce.device import Device
from cotune.reproduce.page import Page
from cotune.reproduce.race import Curve
from cotune.reproduce.reproduction import Found, Laptop, Reproduction
from cotune.reproduce.spzo_rows import LORA, SPZO, Entrant, Size, ground, searched, settled
from cotune.store import Run

TUNING = 1000  # the seed of the search, which is none of the others
DIVERGED = (Code.QUORUM, Code.NONFINITE)


@dataclass(frozen=True)
class Finished:
    """A row: the setting that it chose, and its run under each seed.

    Attributes:
        label: of the row.
        setting: the name of what it chose.
        tried: name -> the loss on what clients hold back, on the tuning seed; None where training fell apart.
        experiments: one a seed.
        runs: of the same.
    """

    label: str
    setting: str
    tried: Mapping[str, float | None]
    experiments: Sequence[Experiment]
    runs: Sequence[Run]

    @property
    def curves(self) -> list[Curve]:
        """One a seed."""
        return [Curve.of(run.rounds) for run in self.runs]

    def scores(self, metric: str) -> list[float]:
        """Of every test row of every seed, after the last round."""
        return [value for run in self.runs for value in run.scores(run.rounds[-1].round)[metric]]


class SPZOPrompted(Reproduction):
    """FedSPZO: compute and time to the same loss against DeComFL, FedZO, MeZO and LoRA, and where its cut wins."""

    name: ClassVar[str] = "spzo-prompted"
    source: ClassVar[str] = "fedspzo"
    files: ClassVar[tuple[str, ...]] = ("roberta-large.toml", "opt-1.3b.toml", "llama-3.2-3b.toml")
    size: ClassVar[Size] = Size()
    device: ClassVar[Device] = Device()

    def laptop(self, setting: Laptop) -> Found:
        """The probe, six settings of every row on one seed, then every row under every other seed."""
        size = self.size
        rows = searched(size)
        setting.say("probing the cuts")
        found = probe(size, next(iter(rows[SPZO].settings.values())))
        finished, methods = dict[str, Finished](), dict[str, Method]()
        for label, entrant in rows.items():
            chosen, tried = _choose(label, entrant, size, setting)
            methods[label] = entrant.settings[chosen]
            finished[label] = _run(label, methods[label], entrant, size, setting)
            finished[label] = replace(finished[label], setting=chosen, tried=tried)
        for label, entrant in settled(size, methods).items():
            method = next(iter(entrant.settings.values()))
            finished[label] = _run(label, method, entrant, size, setting)
        numbers = paper.expected(self.source)
        results = {"name": self.name, "scale": "laptop", **told(finished, found, size, self.device)}
        results |= {"published": published(numbers)}
        page = spzo_page.page(results, numbers)
        return Found(page, json.loads(json.dumps(results)), _folder(setting)).written(f"{self.name}-laptop")

    def beside(self, runs: Mapping[str, Run]) -> Page:
        """The paper's numbers beside the accuracy of the published setting."""
        accuracies = {file: run.rounds[-1].global_metrics for file, run in runs.items()}
        return spzo_page.beside(paper.expected(self.source), accuracies)


def _folder(setting: Laptop) -> Path:
    """Of all runs."""
    return setting.out / "spzo-prompted-laptop"


def probe(size: Size, method: Method) -> Cuts:
    """What cutting the setting's model is worth, measured on the tuning seed."""
    return measure(ground(size, method, 1, TUNING).blueprint().build(), size.batches)


def published(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """What a client's step on RoBERTa-large costs, counted on its shapes: 16 rows of 256 tokens."""
    backbone = Backbone(ref=numbers["models"]["FacebookAI/roberta-large"]["shapes"])
    cost = estimate(resolve.recipe(LORA), backbone, "classification", 2, (16, 256))
    steps = spzo_page.step_flops(cost.forward_flops, cost.step_flops)
    return {"numbers": cost.parameters - cost.trained, "factors": cost.trained, "step_flops": steps}


def _choose(label: str, entrant: Entrant, size: Size, setting: Laptop) -> tuple[str, dict[str, float | None]]:
    """The setting of the lowest loss on held-back rows after the last round, and all that was tried."""
    tried = dict[str, float | None]()
    rounds = entrant.rounds(size)
    for name, method in entrant.settings.items():
        experiment = ground(size, method, rounds, TUNING, every=rounds, which="all")
        setting.say(f"{label} · {name} · tuning seed")
        try:
            record = experiments.run(experiment, _folder(setting) / "search", resume=True).rounds[-1]
        except CotuneError as error:
            if error.code not in DIVERGED:
                raise
            tried[name] = None
            continue
        held = [one["loss"] for one in record.client_metrics.values() if one["loss"].federated is not None]
        loss = math.fsum((one.federated or 0.0) * one.n for one in held) / sum(one.n for one in held)
        tried[name] = loss if math.isfinite(loss) else None
    known = {name: loss for name, loss in tried.items() if loss is not None}
    if not known:
        raise CotuneError(Code.NONFINITE, f"row '{label}' diverges at every setting", where="spzo-prompted")
    return min(known, key=known.__getitem__), tried


def _run(label: str, method: Method, entrant: Entrant, size: Size, setting: Laptop) -> Finished:
    planned, runs = [], []
    for seed in range(setting.seeds):
        experiment = ground(size, method, entrant.rounds(size), seed, every=1, which="global")
        setting.say(f"{label} · seed {seed}")
        runs.append(experiments.run(experiment, _folder(setting), resume=True))
        planned.append(experiment)
    return Finished(label, "", {}, planned, runs)


def told(rows: Mapping[str, Finished], cuts: Cuts, size: Size, device: Device) -> dict[str, Any]:
    """All that the page says, as plain values; nothing of the machine is in them."""
    best = rows[LORA].scores("accuracy")
    table = {}
    for label, row in rows.items():
        curves, accuracy = row.curves, row.scores("accuracy")
        steps = [_client_steps(one) for one in row.experiments]
        method, first = row.experiments[0].method, row.runs[0].rounds
        table[label] = {
            "setting": row.setting,
            "tried": dict(row.tried),
            "optimizer": method.optimizer.model_dump(mode="json"),
            "rounds": len(first),
            "client_steps": steps[0],
            "flops": math.fsum(curve.flops[-1] for curve in curves) / len(curves),
            "losses": [list(curve.losses) for curve in curves],
            "round_flops": [list(curve.flops) for curve in curves],
            "accuracy": mean_interval(accuracy),
            "accuracy_by_seed": [run.rounds[-1].global_metrics["accuracy"].value for run in row.runs],
            "behind_lora": [100 * value for value in paired_interval(best, accuracy)],
            "scalars_a_step": sum(shape[-1] for _, shape in method.optimizer.traced(1).values()),
            "up_bytes_a_round": _payload(row.runs[0], "up"),
            "energy_ratio": [record.diagnostics.get("energy_ratio") for record in first],
        }
    run = rows[SPZO].runs[0]
    return {
        "size": size.model_dump(mode="json"),
        "device": device.model_dump(mode="json"),
        "seeds": [one.seeds.seed for one in rows[SPZO].experiments],
        "n": len(best),
        "chance": run.rounds[-1].global_metrics["accuracy"].chance,
        "cuts": cuts.plain(),
        "rows": table,
        "hashes": {label: [one.hash for one in row.experiments] for label, row in rows.items()},
    }


def _client_steps(experiment: Experiment) -> int:
    federation = experiment.federation
    return federation.rounds * (federation.cohort or 0) * (experiment.method.budget.steps or 0)


def _payload(run: Run, direction: str) -> int:
    """Bytes that a client's training message of the first round carries, framing aside."""
    lines = [line for line in run.ledger if line.direction == direction and line.purpose == "train"]
    return sum(lines[0].payload_bytes.values())
