"""Models that read long streams token by token: what each token costs, and what is kept on the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cotune.backbone.bind import bind
from cotune.core.record import ContextBytes, LayerMemory
from cotune.diagnose.peak import PeakMemory
from cotune.experiment import Experiment
from cotune.export.reopen import reopen
from cotune.setup import Setup
from cotune.store import Run
from cotune.trainable.memory.layer import MemoryLayer
from cotune.trainable.memory.session import cache_argument, cache_bytes, surprise

WIDTH = 1024  # tokens of a bin, and of a segment


@dataclass(frozen=True)
class Streams:
    """Streams of one kind: ids (streams, tokens), which of them are scored, and what they are."""

    ids: Tensor
    scored: Tensor
    source: str


@dataclass(frozen=True)
class Read:
    """What reading some streams came to.

    Attributes:
        nll: −log p of every token given all before it (streams, tokens), float32; NaN for the first.
        peak_bytes: the largest resident memory of this process during each bin.
        kept_bytes: the memory's state and the cache of the softmax path after each bin, of all streams together.
        layers: of the memory, where there is one.
    """

    nll: Tensor
    peak_bytes: list[int] = field(default_factory=list)
    kept_bytes: list[tuple[int, int]] = field(default_factory=list)
    layers: list[LayerMemory] = field(default_factory=list)


@contextmanager
def reopened(run: Run) -> Iterator[Setup]:
    """The setup of a finished run whose global model is in place."""
    experiment = Experiment.model_validate(run.about["experiment"])
    setup, state = reopen(run, experiment.blueprint())
    tensors = {**state.theta, **setup.personal}
    with bind(setup.backbone.model, tensors, setup.spec, state.base) as bound:
        bound.place(tensors)
        yield setup


def read(model: Any, ids: Tensor, width: int = WIDTH) -> Read:
    """Streams (streams, tokens) read at constant memory, bin by bin, through a memory and a window, or a window."""
    session = model.memory_session() if hasattr(model, "memory_session") else None
    cache = session.cache if session else None
    named = cache_argument(model)
    parts, peaks, kept = [], [], []
    before = None
    for part in torch.split(ids, width, dim=1):
        with PeakMemory() as peak, torch.no_grad():
            said = model(input_ids=part, use_cache=True, **{named: cache})
            cache = getattr(said, named)
            parts.append(surprise(part, said.logits, before))
            before = said.logits[:, -1]
        peaks.append(peak.bytes)
        kept.append((session.state_bytes if session else 0, cache_bytes(cache)))
    layers = [] if session is None else _layers(model, session)
    return Read(torch.cat(parts, 1), peaks, kept, layers)


def context_bytes(model: Any, lengths: Sequence[int]) -> list[ContextBytes]:
    """Bytes of one stream after each length: state and window as measured, full attention as its shapes say."""
    config = model.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    each = 2 * 4 * config.num_hidden_layers * config.num_key_value_heads * width
    found = []
    for length in lengths:
        read_ = read(model, torch.zeros(1, length, dtype=torch.long))
        state, window = read_.kept_bytes[-1]
        found.append(ContextBytes(tokens=length, state=state, window=window, full=length * each))
    return found


def _layers(model: Any, session: Any) -> list[LayerMemory]:
    memories = [module for module in model.modules() if isinstance(module, MemoryLayer)]
    with torch.no_grad():
        gates = {memory.site.layer: tuple(memory.alpha().tolist()) for memory in memories}
    norms = session.norms
    return [
        LayerMemory(layer=layer, gate=gates[layer], state_norm=tuple(norms[layer]), clipped=session.clipped)
        for layer in sorted(norms)
    ]
