"""What a conversation costs with a memory and a window, against full attention with a cache of every token."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, Literal, Self

import psutil
import torch
from pydantic import Field
from torch import Tensor

from cotune.backbone import Backbone
from cotune.bench.benchmark import Benchmark
from cotune.bench.measure import Figure, compared, interleaved, peak_bytes
from cotune.core.seeds import derive, torch_generator
from cotune.generation import Cache, Reader
from cotune.trainable.memory import Memory, Rules

Forms = Literal["ours", "full"]
FORMS: tuple[Forms, ...] = ("ours", "full")
BYTES = 256  # ids of the byte tokenizer that are no special token lie below
WITHIN = 1.1  # how much longer a token may take late in a text


class InferenceMemory(Benchmark):
    """Bytes, time and a cap on memory late in a text: memory and window, against full attention with all keys kept.

    The model is a random llama. Ours has a window on attention and a memory beside every layer, half of whose output is
    memory; the rival is the same model with neither.

    Attributes:
        layers: of the model.
        hidden: its width.
        heads: of queries.
        kv_heads: of keys and values.
        window: tokens that attention sees beside the memory.
        short: tokens of a text, more than the window.
        long: tokens of a longer one.
        segment: tokens that go through the model at once.
        repeats: tokens that are timed at each length.
        apart: whether to measure what takes processes of its own, and seconds to start them: the cap and the peak.
        seed: of the weights and the tokens.
    """

    layers: int = Field(default=4, ge=1)
    hidden: int = Field(default=576, ge=1)
    heads: int = Field(default=9, ge=1)
    kv_heads: int = Field(default=3, ge=1)
    window: int = Field(default=256, ge=2)
    short: int = Field(default=1024, ge=1)
    long: int = Field(default=16384, ge=1)
    segment: int = Field(default=256, ge=1)
    repeats: int = Field(default=64, ge=1)
    apart: bool = True
    seed: int = Field(default=0, ge=0)

    @classmethod
    def quick(cls) -> Self:
        """A small model, a narrow window and short texts; and no cap, which would show nothing of so few bytes."""
        texts = {"short": 64, "long": 512, "segment": 64, "repeats": 2}
        return cls(layers=2, hidden=64, heads=4, kv_heads=2, window=32, apart=False, **texts)

    def figures(self) -> Iterator[Figure]:
        """Bytes carried, milliseconds a token, tokens that fit under a cap, and the peak while a text is read."""
        ours, full = (self._both_lengths(form) for form in FORMS)
        early, late = map(_carried, ours)
        rival_early, rival_late = map(_carried, full)
        short, long = f"{self.short:,} tokens", f"{self.long:,} tokens"
        yield compared(f"carried at {long} · against at {short}", [late], [early], "MiB", 1.0)
        name = f"growth of what is carried, {short} to {long} · against full attention"
        yield compared(name, [late / early], [rival_late / rival_early], "times")
        yield compared(f"carried at {long} · against full attention", [late], [rival_late], "MiB")
        fast, slow = self._milliseconds(ours)
        yield compared(f"a token at {long} · against at {short}", slow, fast, "ms", 1 / WITHIN)
        growth = _growth(fast, slow)
        rival = _growth(*self._milliseconds(full))
        name = f"growth of a token's time, {short} to {long} · against full attention"
        yield compared(name, growth, rival, "times")
        if not self.apart:
            return
        del ours, full
        yield from self._under_a_cap(int(rival_late * 2**20))
        name = f"peak memory added by {long} · against full attention"
        yield compared(name, [self._peak("ours")], [self._peak("full")], "MiB")

    def _under_a_cap(self, cache: int) -> Iterator[Figure]:
        """Tokens that are read in half of the room that full attention needs for its cache of `cache` bytes alone."""
        if sys.platform != "linux":  # nowhere else is a limit on data kept
            return
        room = cache // 2
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            runs = [pool.submit(_until_full, self.model_dump(), room, form) for form in FORMS]
            ours, full = (float(run.result()) for run in runs)
        name = f"read of {self.long:,} tokens with {room:,} bytes to add ·"
        yield compared(f"{name} against all", [ours], [float(self.long)], "tokens", 1.0, more_is_better=True)
        yield compared(f"{name} against full attention", [ours], [full], "tokens", 2.0, more_is_better=True)

    def _reader(self, form: Forms) -> Reader:
        """A model of its own that has read nothing."""
        sizes = f"layers={self.layers}&hidden={self.hidden}&heads={self.heads}&kv_heads={self.kv_heads}"
        ref = f"random:llama?{sizes}&positions={self.long + self.repeats + 1}"
        loaded = Backbone(ref=ref, window=self.window if form == "ours" else None).load("causal", 0, self.seed)
        if form == "full":
            return Cache(loaded.model)
        Memory(rules=Rules(gate="constant", gate_start=0.5), factors=False).attach(loaded, self.seed, "all")
        model: Any = loaded.model
        reader: Reader = model.memory_session()
        return reader

    def _both_lengths(self, form: Forms) -> tuple[Reader, Reader]:
        """Readers of a short and of a long text."""
        short, long = self._reader(form), self._reader(form)
        short.read(self._ids(self.short), self.segment)
        long.read(self._ids(self.long), self.segment)
        return short, long

    def _milliseconds(self, both: tuple[Reader, Reader]) -> tuple[list[float], list[float]]:
        """Of each next token after the short text and after the long one, by turns."""
        token = self._ids(1)
        short, long = (partial(reader.read, token) for reader in both)
        seconds = interleaved({"short": short, "long": long}, self.repeats)
        return [1e3 * s for s in seconds["short"]], [1e3 * s for s in seconds["long"]]

    def _ids(self, tokens: int) -> Tensor:
        """Tokens of a synthetic text (1, tokens)."""
        generator = torch_generator(derive(self.seed, "text"))
        return torch.randint(BYTES, (1, tokens), generator=generator)

    def _peak(self, form: Forms) -> float:
        return peak_bytes(_job, self.model_dump(), form) / 2**20


def _carried(reader: Reader) -> float:
    """Bytes of the memory and of the cache, in MiB."""
    return (reader.state_bytes + reader.cache_bytes) / 2**20


def _growth(early: list[float], late: list[float]) -> list[float]:
    return [b / a for a, b in zip(early, late, strict=True)]


def _job(settings: dict[str, Any], form: Forms) -> Callable[[], object]:
    """The long text to be read, by a reader that has read a segment before: what is allocated once is not the job's."""
    bench = InferenceMemory(**settings)
    reader, text = bench._reader(form), bench._ids(bench.long)
    reader.read(text[:, : bench.segment], bench.segment)
    reader.reset()
    return partial(reader.read, text, bench.segment)


def _until_full(settings: dict[str, Any], room: int, form: Forms) -> int:
    """Tokens read when memory ended, or all; `room` bytes may be added to what the first segment left in use."""
    import resource

    torch.set_num_threads(1)
    bench = InferenceMemory(**settings)
    reader, (first, *others) = bench._reader(form), torch.split(bench._ids(bench.long), bench.segment, 1)
    reader.read(first, bench.segment)
    before, read = resource.getrlimit(resource.RLIMIT_DATA), len(first[0])
    resource.setrlimit(resource.RLIMIT_DATA, (psutil.Process().memory_info().data + room, before[1]))
    try:
        for part in others:
            reader.read(part, bench.segment)
            read += len(part[0])
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError) or "allocate memory" in str(error) or "bad_alloc" in str(error)):
            raise
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
    return read
