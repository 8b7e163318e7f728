"""What a memory holds is nowhere but in its session: not on the wire, in no file, no log, no report and no traceback.

S and the keys and values of the window are searched for as they are, any 8 bytes in a row of them at any place; the
same search finds what is planted.
"""

from __future__ import annotations

import copy
import gc
import io
import json
import logging
import math
import pickle
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import cotune as ct
from cotune import report
from cotune.cli import main
from cotune.core.contracts import OnReply, Outcome
from cotune.core.errors import Code, CotuneError
from cotune.engine import InlineEngine
from cotune.export import export
from cotune.resolve import load
from cotune.setup import Setup
from cotune.store import Run
from cotune.trainable.memory import MemorySession, Rules
from cotune.trainable.memory.layer import MemoryLayer
from cotune.trainable.memory.session import Carried
from cotune.trainable.memory.sites import Site

SIGN = b"CANARY42"  # as two float32, 12.891 and 1.05e-8
PRINTED = "1.2891e+01"  # how torch prints the first of them beside the second
TEXT = " ".join(f"k{i % 60} v{(7 * i) % 61} ; f{i % 16}" for i in range(300))

Numbers = NDArray[np.uint64]


def windows(data: bytes) -> Numbers:
    """All 8 bytes in a row, each as a number; in no order."""
    shifted = [
        np.frombuffer(data, np.uint64, (len(data) - start) // 8, start) for start in range(8) if start < len(data)
    ]
    return np.concatenate([np.empty(0, np.uint64), *shifted])


def mixed(numbers: Numbers) -> Numbers:
    """24 bits of each."""
    return (numbers * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)


class Needles:
    """Every 8 bytes in a row of some tensors; not those, zeros above all, that have fewer than 6 different bytes."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        found = np.unique(np.concatenate([windows(t.detach().contiguous().numpy().tobytes()) for t in tensors]))
        rows = np.sort(found.view(np.uint8).reshape(-1, 8), axis=1)
        self.known = found[(np.diff(rows, axis=1) != 0).sum(1) >= 5]
        self._table = np.zeros(2**24, dtype=np.bool_)  # rules most places out
        self._table[mixed(self.known)] = True

    def hits(self, data: bytes) -> int:
        """At how many places of the data one of them is."""
        places = windows(data)
        likely = places[self._table[mixed(places)]]
        nearest = self.known[np.searchsorted(self.known, likely).clip(max=len(self.known) - 1)]
        return int((nearest == likely).sum())


class Wire(InlineEngine):
    """An engine that keeps a copy of every message."""

    def __init__(self, setup: Setup, folder: Path) -> None:
        super().__init__(setup, folder)
        self.sent: list[bytes] = []

    def exchange(self, downs: Mapping[str, bytes], deadline: float | None, min_ok: int, on_reply: OnReply) -> Outcome:
        def heard(client: str, reply: bytes | CotuneError) -> None:
            self.sent.append(reply if isinstance(reply, bytes) else str(reply).encode())
            on_reply(client, reply)

        self.sent += downs.values()
        return super().exchange(downs, deadline, min_ok, heard)


@dataclass
class Lived:
    """All that a run and its use left anywhere, and what memories held meanwhile."""

    run: Run
    places: dict[str, bytes] = field(default_factory=dict)
    trained: list[Tensor] = field(default_factory=list)
    talked: list[Tensor] = field(default_factory=list)
    kept: list[Tensor] = field(default_factory=list)


def blueprint(run: Run) -> Any:
    return ct.Experiment.model_validate(run.about["experiment"]).blueprint()


def copying(into: list[Tensor]) -> Any:
    """`MemoryLayer.read` that also copies the state that it ends with."""
    read = MemoryLayer.read

    def copied(*given: Any, **named: Any) -> tuple[Tensor, Carried]:
        out, after = read(*given, **named)
        into.append(after.state.detach().clone())
        return out, after

    return copied


@pytest.fixture
def crash() -> Callable[[Any, str, Tensor], str]:
    """The traceback, with all locals, of a pass that fails in a module, after the memory was written."""

    def fail(*_: Any) -> None:
        raise RuntimeError("no more")

    def crashed(model: Any, module: str, ids: Tensor) -> str:
        hook = model.get_submodule(module).register_forward_hook(fail)
        session = model.memory_session()
        signed(session, model)
        try:
            session.read(ids)
        except RuntimeError as error:
            return "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
        finally:
            hook.remove()
        raise AssertionError("it did not fail")

    return crashed


def signed(session: MemorySession, model: Any) -> None:
    """Put a known pattern into every state, and freeze it there."""
    pattern = torch.frombuffer(bytearray(SIGN * (32 * 32 // 2)), dtype=torch.float32).view(1, 1, 32, 32)
    for layer in range(model.config.num_hidden_layers):
        session.carry(layer, Carried(pattern.expand(1, 2, 32, 32).clone()))
    session.freeze()


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    """A federated run, its report, its adapter exported, and a conversation, all of it logged at DEBUG."""
    root = tmp_path_factory.mktemp("canary")
    log = io.StringIO()
    handler, logger = logging.StreamHandler(log), logging.getLogger()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    wires: list[Wire] = []

    def wired(setup: Setup, folder: Path) -> Wire:
        wires.append(Wire(setup, folder))
        return wires[-1]

    experiment = load(
        "fednl",
        backbone="builtin:tiny-recall",
        task="recall?rows=16&held=4&test_rows=2&clients=2",
        rounds=2,
        sets=[
            "method.budget.steps=2",
            "method.budget.batch=2",
            "backbone.window=12",
            'method.trainable.rules={gate="sigmoid"}',
        ],
    )
    trained: list[Tensor] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryLayer, "read", copying(trained))
        run = ct.run(experiment, out=root / "runs", make_engine=wired)
    found = Lived(run, trained=trained)
    found.places["wire"] = b"".join(wires[0].sent)
    export(run, blueprint(run), root / "exported", with_backbone=True)
    report.write([run.folder])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryLayer, "read", copying(found.talked))
        with ct.converse(run, blueprint(run)) as talk:
            reader: Any = talk._reader
            for part in range(0, len(TEXT), 400):
                talk.read(TEXT[part : part + 400])
                found.kept += [t.clone() for layer in reader.cache.layers for t in (layer.keys, layer.values)]
            answer = talk.answer(" k1 ?", 3)
            found.places["words"] = f"{answer} {reader!r} {reader.cache!r} {reader.carried(0)!r} {talk!r}".encode()
    for folder in ("runs", "exported"):
        files = [path for path in (root / folder).rglob("*") if path.is_file()]
        assert files
        found.places |= {str(path.relative_to(root)): path.read_bytes() for path in files}
    logger.removeHandler(handler)
    logger.setLevel(level)
    found.places["log"] = log.getvalue().encode()
    return found


@pytest.fixture(scope="module")
def known(lived: Lived) -> Needles:
    return Needles([*lived.trained, *lived.talked, *lived.kept])


def test_there_is_something_to_look_for_and_everywhere_to_look(lived: Lived, known: Needles) -> None:
    for states in (lived.trained, lived.talked):
        assert len(states) > 20
        assert all(bool(torch.isfinite(state).all()) for state in states)
    assert len(known.known) > 10**5
    names = " ".join(lived.places)
    for name in ("rounds.jsonl", "ledger.jsonl", "scores/", "checkpoints/", "adapter/", "report.html", "memory_rules"):
        assert name in names
    assert len(lived.places["wire"]) > 10**5


def test_no_byte_of_a_memory_is_on_the_wire_in_a_file_a_log_or_a_report(lived: Lived, known: Needles) -> None:
    assert {name: known.hits(data) for name, data in lived.places.items()} == dict.fromkeys(lived.places, 0)


def test_the_search_finds_what_is_planted(lived: Lived, known: Needles) -> None:
    for tensors in (lived.trained, lived.talked, lived.kept):
        for tensor in tensors[:: max(len(tensors) // 5, 1)]:
            data = tensor.numpy().tobytes()
            middle = data[len(data) // 2 + 1 : len(data) // 2 + 25]
            assert known.hits(lived.places["wire"][:999] + middle + b"x" * 9) > 0


def test_only_theta_travels(lived: Lived) -> None:
    """The payloads in the ledger are those of the trained tensors to the byte: there is no room for anything else."""
    sent = [line for line in lived.run.ledger if line.direction == "up" and line.purpose == "train"]
    assert sent
    for line in sent:
        assert sum(line.payload_bytes.values()) == 4 * lived.run.about["trained"]["shared"]
        assert line.framing_bytes < 20_000


def test_what_the_command_prints_has_nothing_of_it(
    lived: Lived, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[Tensor] = []
    monkeypatch.setattr(MemoryLayer, "read", copying(states))
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    words = ["generate", str(lived.run.folder), "--prompt", " k1 ?", "--stream", str(text), "--tokens", "3"]
    for more in ([], ["--json"], ["--debug"]):
        assert main([*words, *more]) == 0
    assert states
    out = "".join(capfd.readouterr())
    assert "forgotten" in out
    assert Needles(states).hits(out.encode()) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"text.txt"}


@pytest.mark.parametrize("module", ["lm_head", "model.layers.1.self_attn", "model.layers.1.mlp"])
def test_a_crash_tells_nothing_of_it_even_with_every_local(
    module: str, lived: Lived, crash: Callable[[Any, str, Tensor], str]
) -> None:
    with ct.converse(lived.run, blueprint(lived.run)) as talk:
        model: Any = talk.backbone.model
        said = crash(model, module, torch.arange(5, 25)[None])
    assert "MemorySession" in said
    assert "no more" in said
    state = torch.frombuffer(bytearray(SIGN * 2), dtype=torch.float32)
    assert Needles([state]).hits(said.encode()) == 0
    assert PRINTED in repr(state)
    assert PRINTED not in said


# ---- by its type


@pytest.fixture
def model(lived: Lived) -> Iterator[Any]:
    with ct.converse(lived.run, blueprint(lived.run)) as talk:
        yield talk.backbone.model


IDS = (torch.arange(400) * 7 % 149)[None]


@pytest.mark.parametrize("what", ["session", "cache", "carried"])
def test_it_can_neither_be_pickled_copied_saved_nor_printed(what: str, model: Any) -> None:
    session = model.memory_session()
    session.read(IDS)
    secret = {"session": session, "cache": session.cache, "carried": session.carried(0)}[what]
    ways: tuple[Callable[[Any], object], ...] = (
        pickle.dumps,
        copy.copy,
        copy.deepcopy,
        lambda value: torch.save(value, io.BytesIO()),
        lambda value: pickle.dumps({"a": [value]}),
        lambda value: copy.deepcopy({"a": [value]}),
    )
    for way in ways:
        with pytest.raises(CotuneError, match="session memory never leaves its process") as caught:
            way(secret)
        assert caught.value.code is Code.CONFLICT
    with pytest.raises(TypeError, match="not JSON serializable"):
        json.dumps(secret)
    assert repr(secret) == str(secret) == f"<{type(secret).__name__}>"


def test_a_model_holds_nothing_of_a_session(model: Any) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    session = model.memory_session()
    session.read(IDS)
    known = Needles([t for i in (0, 1) for t in session.carried(i).tensors])
    after = model.state_dict()
    assert {*after} == {*before}
    for name, tensor in after.items():
        assert torch.equal(tensor, before[name])
        assert known.hits(tensor.contiguous().numpy().tobytes()) == 0
    for layer in (module for module in model.modules() if isinstance(module, MemoryLayer)):
        own = {name: value for name, value in vars(layer).items() if name not in ("_parameters", "_modules")}
        assert not [name for name, value in own.items() if isinstance(value, Tensor | MemorySession | Carried)]
        assert (layer._pass, layer._taken) == (None, {})


def test_a_reset_session_is_a_fresh_one_to_the_bit_and_what_it_held_is_gone(model: Any) -> None:
    session = model.memory_session()
    session.read(IDS)
    held = [weakref.ref(t) for i in (0, 1) for t in session.carried(i).tensors]
    held += [weakref.ref(t) for layer in session.cache.layers for t in (layer.keys, layer.values)]
    session.reset()
    gc.collect()
    assert [ref() for ref in held] == [None] * 6
    assert (session.state_bytes, session.cache_bytes, session.tokens, session.clipped) == (0, 0, 0, 0)
    other = (torch.arange(70) * 11 % 149)[None]
    fresh = model.memory_session()
    assert torch.equal(session.read(other), fresh.read(other))
    for layer in (0, 1):
        ours, theirs = session.carried(layer), fresh.carried(layer)
        assert all(torch.equal(a, b) for a, b in zip(ours.tensors, theirs.tensors, strict=True))
    for ours, theirs in zip(session.cache.layers, fresh.cache.layers, strict=True):
        assert torch.equal(ours.keys, theirs.keys)
        assert torch.equal(ours.values, theirs.values)


# ---- at constant size


def census() -> tuple[int, int]:
    """How many tensors there are, and the bytes of all that they keep alive."""
    gc.collect()
    found = [thing for thing in gc.get_objects() if type(thing) in (Tensor, torch.nn.Parameter)]
    tensors = [tensor for tensor in found if tensor.layout is torch.strided]  # others have no storage of their own
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return len(tensors), sum(storages.values())


def test_memory_is_the_same_to_the_byte_after_1k_and_20k_tokens_and_keeps_no_graph(model: Any) -> None:
    session = model.memory_session()

    def look() -> tuple[int, int, tuple[int, int]]:
        return session.state_bytes, session.cache_bytes, census()

    session.read(IDS.repeat(1, 3)[:, :1000])
    after = look()
    for _ in range(19):
        session.generate(IDS[:, :2], 2)
        session.read(IDS.repeat(1, 3)[:, :1000])
    assert session.tokens == 1000 + 19 * (1000 + 2 + 1)
    assert look() == after
    assert after[0] == 2 * 2 * 32 * 32 * 4
    kept = [t for i in (0, 1) for t in session.carried(i).tensors]
    kept += [t for layer in session.cache.layers for t in (layer.keys, layer.values)]
    assert sum(t.untyped_storage().nbytes() for t in kept) == after[0] + after[1]
    assert all(t.grad_fn is None and not t.requires_grad for t in kept)
    extra = [torch.zeros(7)]
    assert look()[2] == (after[2][0] + 1, after[2][1] + 28)
    del extra


def test_a_pass_that_trains_leaves_no_graph_in_the_session(model: Any) -> None:
    rules = [p for m in model.modules() if isinstance(m, MemoryLayer) for p in m.parameters()]
    placed = [torch.nn.Parameter(p.detach().clone()) for p in rules]
    owners = [(m, n) for m in model.modules() if isinstance(m, MemoryLayer) for n in m._parameters]
    before: list[Any] = [m._parameters[n] for m, n in owners]
    try:
        for (m, n), p in zip(owners, placed, strict=True):
            m._parameters[n] = p
        session = model.memory_session()
        logits = model(IDS[:, :20], **session.arguments).logits
        assert logits.grad_fn is not None
        assert all(session.carried(i).state.grad_fn is None for i in (0, 1))
    finally:
        for (m, n), p in zip(owners, before, strict=True):
            m._parameters[n] = p


# ---- within its cap


def near_parallel(tokens: int, angle: float) -> tuple[Tensor, Tensor]:
    """Keys and values (1, tokens, 4) that drive an uncapped S to a norm of about 2/angle.

    Two keys at `angle` take turns, and their values are opposite.
    """
    one, other = torch.tensor([1.0, 0, 0, 0]), torch.tensor([math.cos(angle), math.sin(angle), 0, 0])
    keys = torch.stack([one, other]).repeat(tokens // 2, 1)[None]
    values = torch.tensor([[1.0, 0, 0, 0], [-1.0, 0, 0, 0]]).repeat(tokens // 2, 1)[None]
    return keys, values


def driven(cap: float, angle: float, call: int) -> tuple[MemorySession, list[float], Tensor]:
    """A session of one layer that has read the stream, `call` tokens a call, the norms after each, and the state."""
    site = Site("only", 0, 1, 1, 4)
    layer = MemoryLayer(site, Rules(cap=cap, gate="constant", beta_start=0.999), torch.device("cpu"))
    session = MemorySession(SimpleNamespace(), cap)
    keys, values = near_parallel(4000, angle)
    norms, state = [], torch.empty(0)
    with torch.no_grad():
        for start in range(0, keys.shape[1], call):
            k, v = keys[:, start : start + call], values[:, start : start + call]
            _, after = layer.read(k, k, v, None, session.carried(0))
            session.carry(0, after)
            carried = session.carried(0)
            assert carried is not None
            state = carried.state
            norms.append(float(torch.linalg.matrix_norm(state).max()))
    return session, norms, state


@pytest.mark.parametrize("call", [2, 64, 1000])
def test_near_parallel_keys_stay_within_the_cap_and_are_counted(call: int) -> None:
    free, high, _ = driven(1e3, 0.05, call)
    assert free.clipped == 0
    assert max(high) > 35  # nearly 2/0.05
    held, norms, state = driven(3.0, 0.05, call)
    assert max(norms) <= 3.0 * (1 + 1e-6)
    assert 0 < held.clipped <= len(norms)
    assert bool(torch.isfinite(state).all())
    held.reset()
    assert held.clipped == 0


def test_random_tokens_stay_finite_and_within_the_cap(model: Any) -> None:
    session = model.memory_session()
    session.cap = 5.0
    ids = torch.randint(0, 149, (4, 2500), generator=torch.Generator().manual_seed(0))
    session.read(ids)
    assert session.clipped > 0
    assert max(norm for norms in session.norms.values() for norm in norms) <= 5.0 * (1 + 1e-6)
    assert all(bool(torch.isfinite(session.carried(i).state).all()) for i in (0, 1))
