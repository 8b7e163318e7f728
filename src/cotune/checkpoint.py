"""The server's state and journal as bytes: what a checkpoint holds, and how it comes back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from cotune.core.change import Base
from cotune.core.errors import Code, CotuneError
from cotune.core.journal import Increment
from cotune.core.state import Theta, apart, digest, from_bytes, to_bytes
from cotune.server import Played, State
from cotune.store import KEPT, write_atomic
from cotune.wire import stack, unstack

VERSION = 1
_SERVER_PARTS = ("server", "aux", "base")


def pack(played: Played, facts: Mapping[str, Any]) -> dict[str, bytes]:
    """A played round as the files of its checkpoint; the record and ledger lines come along, so that none is lost."""
    state = played.state
    named: dict[str, Mapping[str, Tensor]] = {"server": state.server, "aux": state.aux, "base": state.base.tensors()}
    server = {f"{part}/{n}": t for part, tensors in named.items() for n, t in tensors.items()}
    about = {
        "version": VERSION,
        "round": state.round,
        "names": list(state.theta),
        "accepted": dict(state.accepted),
        "abandoned": state.abandoned,
        **facts,
        **told(played),
    }
    return {
        "theta.safetensors": to_bytes(state.theta),
        "server.safetensors": to_bytes(server),
        "state.json": _written(about),
    }


def told(played: Played) -> dict[str, Any]:
    """What readers are told of a round, as plain values: record, ledger and scores; ledger lines as they are taken."""
    return {
        "record": played.record.model_dump(mode="json"),
        "scores": {name: list(values) for name, values in played.rows.items()},
        "ledger": (line.model_dump(mode="json") for line in played.ledger),
    }


def _written(about: dict[str, Any]) -> bytes:
    """A table as JSON, its ledger line by line: of many clients, plain values would be most of the server's memory."""
    lines = about.pop("ledger")
    text = bytearray(json.dumps(about).encode())
    text[-1:] = b', "ledger": ['
    for number, line in enumerate(lines):
        text += (", " if number else "").encode() + json.dumps(line).encode()
    text += b"]}"
    return bytes(text)


def unpack(files: Mapping[str, bytes]) -> tuple[State, dict[str, Any]]:
    """The state behind a checkpoint's files, and what else was written beside it.

    Raises:
        CotuneError: E_VERSION for a checkpoint of a newer cotune, E_CKPT when something is missing or no checkpoint.
    """
    try:
        about = json.loads(files["state.json"])
        if about["version"] > VERSION:
            raise CotuneError(
                Code.VERSION, "checkpoint of a newer cotune", got=about["version"], expected=VERSION, fix="upgrade"
            )
        # safetensors has no order, sums of floats do
        theta = Theta(from_bytes(files["theta.safetensors"])).select(about["names"])
        parts: dict[str, dict[str, Tensor]] = {part: {} for part in _SERVER_PARTS}
        for name, tensor in from_bytes(files["server.safetensors"]).items():
            part, _, inner = name.partition("/")
            parts[part][inner] = tensor
        state = State(
            round=about["round"],
            theta=theta,
            server=parts["server"],
            aux=parts["aux"],
            base=Base.from_tensors(parts["base"]),
            accepted=about["accepted"],
            abandoned=about["abandoned"],
        )
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as error:
        raise CotuneError(Code.CHECKPOINT, "checkpoint cannot be read", got=type(error).__name__) from error
    return state, about


def _seal(round_: int, names: Sequence[str], tensors: Mapping[str, Tensor]) -> str:
    return hashlib.sha256(json.dumps([round_, names, digest(tensors)]).encode()).hexdigest()


class FileJournal:
    """journal/increment-00007.safetensors: one file a committed round.

    Where messages build on no more than the last few rounds, older files go when a round is committed; a few more stay,
    since a server that is killed falls back by as many rounds as there are checkpoints.
    """

    def __init__(self, folder: Path, last: int | None = None) -> None:
        self.folder = folder
        self.most = None if last is None else last + KEPT + 1

    def append(self, increment: Increment) -> None:
        """Write a round's increment; the same round again replaces it."""
        named = {"base": increment.base.tensors(), "replies": stack([increment]), "none": {"": torch.empty(0)}}
        tensors = apart({f"{part}/{name}": t for part, rows in named.items() for name, t in rows.items()})
        seal = _seal(increment.round, increment.names, tensors)
        about = {"round": increment.round, "names": increment.names, "sha256": seal}
        path = self.folder / f"increment-{increment.round:05d}.safetensors"
        write_atomic(path, to_bytes(tensors, {"increment": json.dumps(about)}))
        for old in self._paths()[: -self.most] if self.most else ():
            old.unlink()

    def since(self, held: int) -> Sequence[Increment]:
        """The increments of rounds after `held`, in their order."""
        return [self._read(path) for path in self._paths() if self._round(path) > held]

    def cut_after(self, round_: int) -> None:
        """Forget increments of later rounds: their round was never committed."""
        for path in self._paths():
            if self._round(path) > round_:
                path.unlink()

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("increment-*"), key=self._round)

    @staticmethod
    def _round(path: Path) -> int:
        return int(path.stem.partition("-")[2])

    @staticmethod
    def _read(path: Path) -> Increment:
        try:
            with safetensors.safe_open(path, "pt") as file:
                about = json.loads(file.metadata()["increment"])
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            if about["sha256"] != _seal(about["round"], about["names"], tensors):
                raise ValueError("damaged")
            parts: dict[str, dict[str, Tensor]] = {"base": {}, "replies": {}, "none": {}}
            for name, tensor in tensors.items():
                part, _, inner = name.partition("/")
                parts[part][inner] = tensor
            replies = tuple(reply for one in unstack(parts["replies"]) for reply in one.replies)
            return Increment(about["round"], tuple(about["names"]), Base.from_tensors(parts["base"]), replies)
        except (safetensors.SafetensorError, CotuneError, OSError, KeyError, ValueError, TypeError) as error:
            raise CotuneError(Code.CHECKPOINT, "journal cannot be read", where=path.name) from error
