"""The folder itself: written beside its place, tried, and renamed, so that it is there as a whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from cotune.backbone import Backbone
from cotune.core.change import Base
from cotune.core.contracts import Trained
from cotune.core.errors import Code, CotuneError, one_line
from cotune.core.events import Say, silent
from cotune.export import whole
from cotune.export.card import Facts, card
from cotune.export.reopen import reopen
from cotune.export.whose import Whose, of_client, shared
from cotune.server import State
from cotune.setup import Blueprint, Setup
from cotune.store import Run, write_atomic
from cotune.trainable.memory.saved import CONFIG

BACKBONE = "backbone"  # the folder of the frozen model, inside that of an adapter
CARD = "README.md"


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        folder: where.
        what: in words.
        notes: what a user of it must know.
    """

    folder: Path
    what: str
    notes: tuple[str, ...]


def export(
    run: Run,
    blueprint: Blueprint,
    to: Path,
    *,
    merge: bool = False,
    client: str | None = None,
    with_backbone: bool = False,
    say: Say = silent,
) -> Exported:
    """A run's model as a folder that other libraries load.

    Args:
        run: its folder; an unfinished run gives what its last checkpoint holds.
        blueprint: of the experiment that the run is of.
        to: the new folder.
        merge: write the whole model, with what was trained added to its weights.
        client: write the model of this client, whose own part is in a simulation's folder.
        with_backbone: write the frozen backbone beside the adapter.
        say: is told before a download.

    Raises:
        CotuneError: E_CONFLICT when the folder has files, or there is no model to write; whatever `reopen` raises;
            E_MODEL when what was written computes something else; E_DISK.
    """
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise CotuneError(Code.CONFLICT, "the folder is not empty", where=str(to), fix="name a new one")
    setup, state = reopen(run, blueprint, say)
    config, trainable = blueprint.backbone, setup.method.trainable
    whose = of_client(setup, state, config, run, client) if client is not None else shared(setup, state, config)
    files, tensors = _form(setup, whose.trained, merge=merge)
    if tensors and with_backbone:
        what = "a whole model has its backbone inside"
        raise CotuneError(Code.CONFIG, what, where="--with-backbone", fix="leave it out")
    with _new(to) as folder:
        moved = None
        _write(folder, files)
        if tensors:
            whole.save(folder, setup.backbone, tensors, setup.corpus.classes)
            moved = whole.difference(folder, whose.trained, setup.corpus, config)
        elif with_backbone:
            frozen = Trained(setup.backbone, setup.spec, {}, Base(), whose.trained.origin)
            whole.save(folder / BACKBONE, setup.backbone, trainable.weights(frozen) or {}, setup.corpus.classes)
        facts = _facts(setup, state, whose, run, files)
        text = card(facts, moved=moved, beside=BACKBONE if with_backbone else "")
        _write(folder, {CARD: text.encode()})
    return Exported(to, _what(facts, moved), (*facts.notes, *_beside(facts, to, with_backbone)))


def finish(setup: Setup, state: State, config: Backbone, run: Run) -> str:
    """Write `adapter/` into the folder of a run that has come to its end; says why not, where there is no model.

    Raises:
        CotuneError: E_DISK or E_MODEL, and nothing is lost: every round is in its checkpoint.
    """
    with _told("adapter"):
        try:
            whose = shared(setup, state, config)
            files, tensors = _form(setup, whose.trained, merge=False)
        except CotuneError as error:
            if error.code is not Code.CONFLICT:
                raise
            return error.text
        with _new(run.folder / "adapter") as folder:
            _write(folder, files)
            if tensors:
                whole.save(folder, setup.backbone, tensors, setup.corpus.classes)
            _write(folder, {CARD: card(_facts(setup, state, whose, run, files)).encode()})
    return ""


def _form(setup: Setup, trained: Trained, *, merge: bool) -> tuple[Mapping[str, bytes], Mapping[str, Tensor]]:
    """The files of an adapter, or the tensors of a whole model: one of the two is empty."""
    trainable = setup.method.trainable
    files = None if merge else trainable.adapter(trained)
    if files is not None:
        return files, {}
    tensors = trainable.weights(trained)
    if tensors is None:
        what = f"no other library has a form for what '{trainable.kind}' trains"
        raise CotuneError(Code.CONFLICT, what, where="method.trainable")
    return {}, tensors


def _facts(setup: Setup, state: State, whose: Whose, run: Run, files: Mapping[str, bytes]) -> Facts:
    adapter = json.loads(files["adapter_config.json"]) if "adapter_config.json" in files else {}
    memory = CONFIG in files
    trained, own = whose.trained, setup.method.trainable
    notes = list(whose.notes)
    rank, asked = adapter.get("r"), getattr(own, "rank", None)
    if quantization := run.about["experiment"]["backbone"].get("quantization"):
        notes.append(f"the backbone was quantised to {quantization} in training; loaded otherwise, logits are others")
    if trained.base and adapter:
        notes.append(f"what the server added to the backbone is in these factors: rank {rank}, and {asked} trains")
    if memory:
        notes.append(_not_by_peft(trained, factors=bool(adapter)))
    return Facts(
        about=run.about,
        records=[record for record in run.rounds if record.round <= state.round],
        origin=trained.origin,
        revision=trained.revision,
        head=setup.corpus.head,
        labels=setup.corpus.classes,
        padding=int(setup.backbone.tokenizer.pad_token_id),
        theta_sha256=state.theta.sha256(),
        rank=rank,
        memory=memory,
        client=whose.client,
        notes=tuple(notes),
    )


def _not_by_peft(trained: Trained, *, factors: bool) -> str:
    """What a loader must do beside peft, or instead of it."""
    alone = "peft alone loads the factors and NOT the memory" if factors else "peft does not load a memory"
    window = f", and the window of {trained.window} tokens on attention," if trained.window is not None else ""
    return f"{alone}: `cotune.attach_memory` puts the memory{window} on the model"


def _what(facts: Facts, moved: float | None) -> str:
    parts = [f"adapter of rank {facts.rank}"] if facts.rank is not None else []
    parts += ["memory rules"] if facts.memory else []
    if parts:
        return f"{' and '.join(parts)} for {facts.origin}"
    return f"whole model · its logits differ by at most {moved:.1e} from the run's"


def _beside(facts: Facts, to: Path, with_backbone: bool) -> list[str]:
    """Where the backbone is, or how to get one that other libraries load."""
    if with_backbone:
        return [f"its backbone is in {to / BACKBONE}"]
    if facts.whole or facts.loadable:
        return []
    return [f"{facts.origin} is no folder or hub id: --with-backbone writes one beside"]


@contextmanager
def _new(to: Path) -> Iterator[Path]:
    """A folder to fill, which takes its place at the end; what was there goes."""
    to = to.absolute()
    to.parent.mkdir(parents=True, exist_ok=True)
    folder = to.with_name(f".{to.name}.tmp")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
        mode = (folder / CARD).stat().st_mode
        for path in folder.rglob("*"):
            if path.is_file():
                path.chmod(mode)  # some libraries write files that nobody else can read
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        shutil.rmtree(to, ignore_errors=True)
        folder.replace(to)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Whatever goes wrong inside as one line that says that nothing is lost."""
    try:
        yield
    except CotuneError:
        raise
    except Exception as error:
        code = Code.DISK if isinstance(error, OSError) else Code.MODEL
        got = f"{type(error).__name__}: {one_line(str(error), 160)}"
        fix = "every round is kept: repeat with --resume"
        raise CotuneError(code, "cannot write the model", where=what, got=got, fix=fix) from error


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        write_atomic(folder / name, data)
