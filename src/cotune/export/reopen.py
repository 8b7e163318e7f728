"""A run's folder as the server's last state on a loaded backbone; no data is read, and nothing is taken on trust."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from cotune.checkpoint import unpack
from cotune.core.change import Base
from cotune.core.contracts import Corpus
from cotune.core.errors import Code, CotuneError
from cotune.core.events import Say, silent
from cotune.core.spec import Spec
from cotune.core.state import from_bytes
from cotune.server import State
from cotune.setup import Blueprint, Setup
from cotune.store import Checkpoints, Run


def reopen(run: Run, blueprint: Blueprint, say: Say = silent) -> tuple[Setup, State]:
    """The setup of a run, without its data, and the state that its last checkpoint holds.

    Args:
        run: the folder.
        blueprint: of the experiment that the folder is of.
        say: is told before a download.

    Raises:
        CotuneError: E_CKPT or E_HASH when the last checkpoint is missing, damaged or not that of the last record;
            E_KEYS, E_SHAPE or E_DTYPE for a tensor that is not as the run's table says; E_MODEL for another backbone.
    """
    about, files = run.about, _last(run)
    state, facts = unpack(files)
    if "labels" not in about:
        raise CotuneError(Code.VERSION, "a run of an older cotune", where=run.folder.name, fix="run it again")
    corpus = Corpus({}, (), about["head"], tuple(about["labels"]), {})
    config = blueprint.backbone.model_copy(update={"device": "cpu", "gradient_checkpointing": False})
    setup = replace(blueprint, backbone=config).equip(corpus, say)
    if setup.backbone.digest != facts["backbone"]:
        raise CotuneError(
            Code.MODEL,
            "the backbone is not the one that was trained on",
            where=config.ref,
            got=setup.backbone.digest[:16],
            expected=facts["backbone"][:16],
        )
    strict(from_bytes(files["theta.safetensors"]), setup.spec, setup.spec.shared, "theta")
    server = from_bytes(files["server.safetensors"])
    _check_base(state.base, {name for name in server if name.startswith("base/")}, setup.backbone.model)
    if state.theta.sha256() != facts["record"]["theta_sha256"]:
        raise CotuneError(
            Code.HASH,
            "theta is not the one of the record",
            where=run.folder.name,
            got=state.theta.sha256()[:16],
            expected=facts["record"]["theta_sha256"][:16],
        )
    return setup, state


def strict(tensors: Mapping[str, Tensor], spec: Spec, names: tuple[str, ...], where: str) -> None:
    """Raise E_KEYS, E_SHAPE or E_DTYPE unless `tensors` are exactly the named ones of the table."""
    missing, unknown = sorted({*names} - {*tensors}), sorted({*tensors} - {*names})
    if missing or unknown:
        said = [f"{what} {', '.join(n[:2])}" for what, n in (("without", missing), ("with", unknown)) if n]
        raise CotuneError(Code.KEYS, "tensors are not those of the run", where=where, got=" and ".join(said))
    for name in names:
        got, expected = tuple(tensors[name].shape), spec[name].shape
        if got != expected:
            raise CotuneError(Code.SHAPE, "a tensor of another shape", where=name, got=got, expected=expected)
        if str(tensors[name].dtype) != "torch.float32":
            raise CotuneError(Code.DTYPE, "a tensor of another type", where=name, got=tensors[name].dtype)


def _last(run: Run) -> Mapping[str, bytes]:
    """The files of the last checkpoint; an older one would be another model."""
    damaged: list[str] = []

    def watch(_moment: str, about: Mapping[str, Any]) -> None:
        damaged.append(str(about["error"]))

    found = Checkpoints(run.folder / "checkpoints").latest(watch)
    if damaged:
        raise CotuneError(Code.HASH, "the last checkpoint is damaged", where=run.folder.name, got=damaged[0])
    if found is None:
        raise CotuneError(Code.CHECKPOINT, "the run has no checkpoint yet", where=run.folder.name, fix="run it first")
    return found[1]


def _check_base(base: Base, stored: set[str], model: nn.Module) -> None:
    """Refuse a base delta that has no place in the model, or that holds more than its pairs."""
    unread = sorted(stored - {f"base/{name}" for name in base.tensors()})
    layers = dict(model.named_modules())
    unread += [module for module in base if module not in layers]
    if unread:
        raise CotuneError(Code.KEYS, "tensors are not those of the run", where="base", got=f"with {unread[0]}")
    for module, (b, a) in base.factors.items():
        d_out, d_in = _sides(layers[module])
        rank, got = len(a), (tuple(b.shape), tuple(a.shape))
        expected = ((d_out, rank or d_in), (rank, d_in))
        if got != expected:
            raise CotuneError(Code.SHAPE, "a base delta of another shape", where=module, got=got, expected=expected)
        if {str(b.dtype), str(a.dtype)} != {"torch.float32"}:
            raise CotuneError(Code.DTYPE, "a base delta of another type", where=module, got=f"{b.dtype}, {a.dtype}")


def _sides(layer: Any) -> tuple[int, ...]:
    """(d_out, d_in) of a layer, adapted, quantised or transposed."""
    if hasattr(layer, "in_features"):
        return layer.out_features, layer.in_features
    return tuple(reversed(layer.weight.shape)) if hasattr(layer, "nf") else tuple(layer.weight.shape)
