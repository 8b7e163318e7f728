"""An experiment: a frozen value whose hash names its run folder; resolve it, run it, resume it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SerializeAsAny

from cotune import task as task_room
from cotune.backbone import Backbone
from cotune.checkpoint import FileJournal, pack, told, unpack
from cotune.core.contracts import Corpus, Engine, Task
from cotune.core.errors import Code, CotuneError
from cotune.core.events import Watch, quiet
from cotune.core.inbox import WAITING
from cotune.core.part import resolve
from cotune.core.seeds import Seeds
from cotune.diagnose.peak import PeakMemory
from cotune.engine import InlineEngine
from cotune.export import finish
from cotune.federation import Evaluation, Federation
from cotune.method import Method
from cotune.round import server_round
from cotune.server import Desk
from cotune.setup import Blueprint, Setup
from cotune.store import Checkpoints, Lines, Run, clear, lock, read_json, write_json


class Experiment(BaseModel):
    """Everything that decides the bits of a run, with every default filled in.

    Attributes:
        name: for people; the first part of the folder's name, and no part of the hash.
        method: a composition of parts.
        task: data and scoring.
        backbone: what the method adapts.
        federation: rounds and cohorts.
        evaluation: when and on what a model is scored; `every` is no part of the hash.
        seeds: one number, or one a purpose.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")] = "run"
    method: Method
    task: Annotated[SerializeAsAny[Task], BeforeValidator(lambda value: resolve("task", task_room.KINDS, value))]
    backbone: Backbone
    federation: Federation = Federation()
    evaluation: Evaluation = Evaluation()
    seeds: Seeds = Seeds()

    @property
    def hash(self) -> str:
        """16 hex digits over all that decides theta and metrics: everything but the name and the cadence of scores."""
        decisive = self.resolved()
        del decisive["name"], decisive["evaluation"]["every"]
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]

    def resolved(self) -> dict[str, Any]:
        """The experiment as plain values, every default written out."""
        plain = self.model_dump(mode="json")
        plain["seeds"] = self.seeds.resolved().model_dump(mode="json")
        return plain

    def folder(self, out: Path) -> Path:
        """Where its run lives: `NAME-HASH8`."""
        return out / f"{self.name}-{self.hash[:8]}"

    def blueprint(self) -> Blueprint:
        """The values that a process needs to take part."""
        return Blueprint(
            run=self.hash,
            method=self.method,
            federation=self.federation,
            evaluation=self.evaluation,
            task=self.task,
            seeds=self.seeds,
            backbone=self.backbone,
        )


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], where: str = "") -> list[str]:
    """`a.b: 1 -> 2` for every value that differs between two resolved experiments."""
    found = []
    for name in sorted({*ours, *theirs}):
        place = f"{where}.{name}" if where else name
        old, new = ours.get(name), theirs.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += differences(old, new, place)
        elif old != new:
            found.append(f"{place}: {old} -> {new}")
    return found


CHECKPOINTS = "checkpoints"
MakeEngine = Callable[[Setup, Path], Engine]


def run(
    experiment: Experiment,
    out: Path | str = "runs",
    *,
    resume: bool = False,
    fresh: bool = False,
    watch: Watch = quiet,
    make_engine: MakeEngine = InlineEngine,
    corpus: Corpus | None = None,
) -> Run:
    """Carry an experiment out in `out/NAME-HASH8`, and return what it left there.

    A finished run of the same hash is returned as it is. Theta after every round is a function of the experiment
    alone: whatever the engine, the order of replies, or how often the run was killed and resumed.

    Args:
        experiment: what to run.
        out: the folder of run folders.
        resume: continue an unfinished run of the same hash from its last checkpoint.
        fresh: throw away what is there and start again.
        watch: told about every moment of the run.
        make_engine: where clients run; called with the setup and the folder for clients' own state.
        corpus: the server's own rows, where those of the task's data are not here.

    Raises:
        CotuneError: E_LOCK when another process runs it, E_CKPT when checkpoints of an unfinished run are there and
            neither `resume` nor `fresh` is given, E_QUORUM after too many abandoned rounds in a row, and whatever the
            parts raise.
    """
    folder = experiment.folder(Path(out))
    with lock(folder):
        if fresh:
            clear(folder)
        status = folder / "status.json"
        if status.exists():
            _check_same(experiment, folder)
            if read_json(status)["status"] == "finished":
                watch("reused", {"folder": str(folder)})
                return Run(folder)
            if not resume and Checkpoints(folder / CHECKPOINTS).rounds():
                raise CotuneError(
                    Code.CHECKPOINT, "an unfinished run is here", where=folder.name, fix="add --resume, or --fresh"
                )
        _write_status(folder, "running")
        try:
            _rounds(experiment, folder, watch, make_engine, corpus)
        except CotuneError as error:
            _write_status(folder, "failed", error.code.value, str(error))
            raise
        except (KeyboardInterrupt, SystemExit):
            _write_status(folder, "interrupted")
            raise
        except BaseException as error:
            _write_status(folder, "failed", type(error).__name__)
            raise
        _write_status(folder, "finished")
        watch("finished", {"folder": str(folder)})
        return Run(folder)


def _rounds(experiment: Experiment, folder: Path, watch: Watch, make_engine: MakeEngine, corpus: Corpus | None) -> None:
    """Every round that is still to be played, each ending in a checkpoint, a record and its ledger lines."""
    watch("loading", {"backbone": experiment.backbone.ref, "folder": str(folder)})
    setup = experiment.blueprint().build(lambda line: watch("fetching", {"line": line}), corpus)
    journal = FileJournal(folder / "journal", experiment.method.remembers)
    checkpoints = Checkpoints(folder / CHECKPOINTS)
    records, ledger = Lines(folder / "rounds.jsonl"), Lines(folder / "ledger.jsonl")
    engine = make_engine(setup, folder / "clients")
    setup = setup.told(engine.clients())
    desk = Desk(setup, {info.id: info for info in engine.clients()}, journal, spill=folder)
    facts = {"data": setup.corpus.facts.get("manifest"), "backbone": setup.backbone.digest}
    write_json(folder / "experiment.json", _about(experiment, setup))
    watch("loaded", {"clients": len(desk.clients), "facts": setup.facts, "spec": setup.spec})
    setup.check_rows()

    def record(about: Mapping[str, Any]) -> None:
        """What a checkpoint carries along goes into the files that readers open."""
        records.append([about["record"]])
        ledger.append(about["ledger"])
        if about["scores"]:
            write_json(folder / "scores" / f"round-{about['record']['round']:05d}.json", about["scores"])

    state = desk.opening()
    found = checkpoints.latest(watch)
    if found is not None:
        state, about = unpack(found[1])
        moved = [f"{name}: {about[name]} -> {value}" for name, value in facts.items() if about[name] != value]
        if moved:
            raise CotuneError(
                Code.DATA, "data or backbone changed since the checkpoint", where="; ".join(moved), fix="use --fresh"
            )
        records.cut_after(state.round - 1)
        ledger.cut_after(state.round - 1)
        record(about)
        watch("resumed", {"round": state.round})
    journal.cut_after(state.round)
    for left_over in folder.glob(f"{WAITING}*"):
        left_over.unlink()
    try:
        while state.round < experiment.federation.rounds:
            with PeakMemory() as peak:
                played = server_round(desk, state, engine, watch)
            played = replace(played, record=played.record.model_copy(update={"peak_bytes": peak.bytes}))
            files = pack(played, facts)
            checkpoints.write(played.state.round, files, watch)
            record(told(played))
            state = played.state
            watch("recorded", {"record": played.record})
            if state.abandoned >= experiment.federation.patience:
                raise CotuneError(
                    Code.QUORUM,
                    f"{state.abandoned} rounds in a row had too few replies",
                    where=f"round {state.round}",
                    got=played.record.abandoned,
                    fix="see `reasons` in rounds.jsonl",
                )
        if not state.accepted:
            raise CotuneError(Code.QUORUM, "no reply was accepted in any round", fix="see `reasons` in rounds.jsonl")
        watch("exported", {"folder": "adapter", "why_not": finish(setup, state, experiment.backbone, Run(folder))})
    finally:
        engine.close()


def _check_same(experiment: Experiment, folder: Path) -> None:
    """Refuse a folder that belongs to another experiment, with what differs."""
    if not (folder / "experiment.json").exists():
        return
    about = read_json(folder / "experiment.json")
    if about["hash"] != experiment.hash:
        changed = "; ".join(differences(about["experiment"], experiment.resolved()))
        raise CotuneError(Code.CONFLICT, "the folder holds another experiment", where=folder.name, got=changed)


def _write_status(folder: Path, status: str, code: str | None = None, error: str | None = None) -> None:
    write_json(folder / "status.json", {"status": status, "code": code, "error": error})


def _taken(setup: Setup) -> dict[str, Any]:
    """The numbers of the test rows that became examples, where the model does not take all of them."""
    sources, rows = setup.test.sources, setup.corpus.test[: setup.evaluation.rows]
    return {"sources": list(sources)} if sources is not None and len(sources) < len(rows) else {}


def _about(experiment: Experiment, setup: Setup) -> dict[str, Any]:
    """What experiment.json says: the experiment, and what it ran on."""
    packages = ("cotune", "torch", "transformers", "peft", "datasets", "safetensors", "numpy")
    return {
        "hash": experiment.hash,
        "experiment": experiment.resolved(),
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in packages}},
        "machine": {"system": platform.system(), "processor": platform.machine(), "cpus": os.cpu_count()},
        "backbone_sha256": setup.backbone.digest,
        "data": setup.facts,
        "head": setup.corpus.head,
        "labels": list(setup.corpus.labels),
        "clients": {info.id: {"rows": info.rows, "held": info.held} for info in setup.clients},
        "trained": {"numbers": sum(entry.numel for entry in setup.spec), "shared": setup.start.numel},
        "test": {"rows": len(setup.test.examples), "truncated": setup.test.truncated, **_taken(setup)},
    }
