"""Which model is meant: the one that all share, or one client's, which takes what that client keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from cotune.backbone import Backbone
from cotune.client import SEAL
from cotune.core.change import Base
from cotune.core.contracts import Trained
from cotune.core.errors import Code, CotuneError, nearest
from cotune.core.reference import parse
from cotune.core.spec import Role, Spec
from cotune.core.state import Private, digest, from_bytes, raw
from cotune.export.reopen import strict
from cotune.server import State
from cotune.setup import Plan, Setup
from cotune.store import ClientStore, Run, safe_name

_WORDS = {Role.FACTOR_A: "A", Role.FACTOR_B: "B", Role.HEAD: "the head", Role.RULE: "the rule", Role.FULL: "weights"}


@dataclass(frozen=True)
class Whose:
    """A model, and what to say about it.

    Attributes:
        trained: the model.
        client: whose it is; None for the one that all share.
        notes: sentences for the screen and the card.
    """

    trained: Trained
    client: str | None
    notes: tuple[str, ...] = ()


def alone(plan: Plan) -> str:
    """Why what all share is no model by itself; empty where it is one.

    A factor pair whose B stays at home is one: B starts at zero, so the shared A beside it changes nothing.
    """
    stay = {entry.role for entry in plan.spec if not entry.shared}
    if not plan.spec.shared:
        return "nothing is shared: every client has a model of its own"
    if stay <= {Role.FACTOR_B}:
        return ""
    return f"{_listed(plan.spec)} with each client, and the rest alone is no model"


def shared(setup: Setup, state: State, config: Backbone) -> Whose:
    """The model that all share.

    Raises:
        CotuneError: E_CONFLICT when what is shared is no model.
    """
    if reason := alone(setup):
        raise CotuneError(Code.CONFLICT, reason, fix="name one with --client ID")
    notes = []
    if setup.spec.personal:
        notes.append(
            f"{_listed(setup.spec)} with each client: here B is zero, so that this computes what the backbone computes"
        )
    if setup.method.personalize is not None:
        notes.append(
            f"clients use models of their own, made by {setup.method.personalize.kind} of this one, which they share"
        )
    return Whose(_trained(setup, config, {**state.theta, **setup.personal}, setup.spec, state.base), None, tuple(notes))


def of_client(setup: Setup, state: State, config: Backbone, run: Run, client: str) -> Whose:
    """One client's model: theta as it holds it, and what it keeps in the run's folder.

    Raises:
        CotuneError: E_CONFIG when there is no such client, E_CONFLICT when it has no model of its own, E_CKPT, E_KEYS
            or E_SHAPE when what it keeps is missing or not as its table says.
    """
    if client not in run.about["clients"]:
        raise CotuneError(
            Code.CONFIG, f"no client '{client}'", where="--client", fix=nearest(client, run.about["clients"])
        )
    if setup.one_model:
        raise CotuneError(Code.CONFLICT, "all clients have one model", where="--client", fix="leave it out")
    if client not in state.accepted:
        raise CotuneError(
            Code.CONFLICT, "the client was accepted in no round, and has no model of its own", where=f"client {client}"
        )
    spec, method = setup.spec_of(client), setup.method_of(client)
    folder = run.folder / "clients" / safe_name(client)
    personal, private = _kept(folder, state.accepted[client], spec) if setup.keeps else ({}, {})
    theta = method.trainable.fit(state.theta, spec)
    if method.personalize is not None:
        theta = method.personalize.view(theta, private.get(method.personalize.kind, Private()))
    parts = f"{_listed(setup.spec)} with each client" if setup.spec.personal else "clients use models of their own"
    note = f"{parts}: this is the model of client {client}, which only a simulation can read"
    return Whose(_trained(setup, config, {**theta, **personal}, spec, state.base), client, (note,))


def _trained(setup: Setup, config: Backbone, tensors: Mapping[str, Tensor], spec: Spec, base: Base) -> Trained:
    """The model, and its backbone as other libraries are told of it: a hub id with its revision, or as it was given."""
    reference = parse(config.ref)
    origin, revision = reference.text, None
    if reference.scheme == "hub":
        origin, revision = reference.name, config.revision or reference.revision
    return Trained(setup.backbone, spec, tensors, base, origin, revision, config.window, config.sinks)


def _kept(folder: Path, round_: int, spec: Spec) -> tuple[dict[str, Tensor], dict[str, Private]]:
    """What a client kept of its last accepted round: personal tensors, and its parts' own numbers."""
    data = ClientStore(folder).read(round_)
    if data is None:
        raise CotuneError(Code.CHECKPOINT, "the client's state is not in this folder", where=f"clients/{folder.name}")
    parts: dict[str, dict[str, Tensor]] = {"personal": {}, "private": {}}
    named = from_bytes(data)
    seal = named.pop(SEAL, None)
    if seal is None or raw(seal).hex() != digest(named):
        raise CotuneError(Code.HASH, "the client's state is damaged", where=f"clients/{folder.name}")
    for name, tensor in named.items():
        part, _, inner = name.partition("/")
        parts.setdefault(part, {})[inner] = tensor
    strict(parts["personal"], spec, spec.personal, f"clients/{folder.name}")
    private: dict[str, dict[str, Tensor]] = {}
    for name, tensor in parts["private"].items():
        kind, _, inner = name.partition("/")
        private.setdefault(kind, {})[inner] = tensor
    return parts["personal"], {kind: Private(tensors) for kind, tensors in private.items()}


def _listed(spec: Spec) -> str:
    """`A and the head stay`, of what does not travel."""
    words = list(dict.fromkeys(_WORDS[entry.role] for entry in spec if not entry.shared))
    verb = "stay" if len(words) > 1 or words == ["weights"] else "stays"
    return f"{' and '.join(words)} {verb}"
