"""The memory's rule by chunks against its definition, against what a matrix product can do, and against attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, Self

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize, scaled_dot_product_attention

from cotune.bench.benchmark import Benchmark
from cotune.bench.measure import Figure, compared, interleaved, peak_bytes
from cotune.core.seeds import torch_generator
from cotune.trainable.memory.blocks import fitted
from cotune.trainable.memory.chunkwise import chunked
from cotune.trainable.memory.lean import lean
from cotune.trainable.memory.rule import scan

Forms = Literal["scan", "lean"]


class DeltaRule(Benchmark):
    """The delta rule by chunks and its lean backward, against the sequential scan, matmul peak and full attention.

    Attributes:
        tokens: in a sequence.
        long: tokens of the sequence that attention is compared on.
        heads: of the memory.
        width: of keys and of values.
        chunk: tokens a chunk, at most.
        square: rows of the matrices whose product is the peak.
        repeats: of every measurement.
        few: repeats of what takes long.
        seed: of the inputs, which are random with unit keys.
    """

    tokens: int = Field(default=2048, ge=1)
    long: int = Field(default=8192, ge=1)
    heads: int = Field(default=9, ge=1)
    width: int = Field(default=64, ge=1)
    chunk: int = Field(default=64, ge=1)
    square: int = Field(default=1024, ge=1)
    repeats: int = Field(default=7, ge=1)
    few: int = Field(default=3, ge=1)
    seed: int = 0

    @classmethod
    def quick(cls) -> Self:
        """A tenth of everything."""
        return cls(tokens=256, long=512, heads=2, width=16, square=128, repeats=2, few=1)

    def figures(self) -> Iterator[Figure]:
        """Times of forward and backward, bytes, and the share of the peak."""
        given, chunks = self._inputs(self.tokens), partial(chunked, chunk=self.chunk)
        square = self._normal(self.square, self.square)
        times = interleaved(
            {
                "scan": lambda: _trained(scan, given),
                "chunked": lambda: _trained(chunks, given),
                "lean": lambda: _trained(partial(lean, chunk=self.chunk), given),
                "forward": lambda: _read(chunks, given),
                "matmul": lambda: square @ square,
            },
            self.repeats,
        )
        rival = [1e3 * seconds for seconds in times["scan"]]
        for name, goal in (("chunked", 12.0), ("lean", 9.0)):
            ours = [1e3 * seconds for seconds in times[name]]
            yield compared(f"{name}, forward and backward · against the scan", ours, rival, "ms", goal)
        peaks = {form: [self._peak(form) for _ in range(self.few)] for form in ("lean", "scan")}
        name = "lean, peak memory of forward and backward · against the scan"
        yield compared(name, peaks["lean"], peaks["scan"], "MiB", 5.0)
        ours = [self._flops() / seconds / 1e9 for seconds in times["forward"]]
        peak = [2 * self.square**3 / seconds / 1e9 for seconds in times["matmul"]]
        name = f"chunked, forward · against a {self.square}³ matmul"
        yield compared(name, ours, peak, "GFLOP/s", 0.25, more_is_better=True)
        yield self._against_attention()

    def _against_attention(self) -> Figure:
        q, k, v, beta = self._inputs(self.long)
        times = interleaved(
            {
                "chunked": lambda: _trained(partial(chunked, chunk=self.chunk), (q, k, v, beta)),
                "attention": lambda: _trained(partial(scaled_dot_product_attention, is_causal=True), (q, k, v)),
            },
            self.few,
        )
        ours, rival = ([1e3 * seconds for seconds in times[name]] for name in ("chunked", "attention"))
        name = f"chunked, forward and backward, {self.long} tokens · against full causal attention"
        return compared(name, ours, rival, "ms", 6.0)

    def _inputs(self, tokens: int) -> tuple[Tensor, ...]:
        """q, k, v, beta."""
        shape, g = (1, self.heads, tokens), torch_generator(self.seed)
        q, k = (normalize(torch.randn(*shape, self.width, generator=g), dim=-1) for _ in range(2))
        v, beta = torch.randn(*shape, self.width, generator=g), torch.rand(*shape, generator=g)
        return tuple(x.requires_grad_() for x in (q, k, v, beta))

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=torch_generator(self.seed))

    def _flops(self) -> float:
        """Of the forward pass as it is carried out: scores, half a solve, three products with the state, the reads."""
        c, d = fitted(self.chunk, torch.empty(1, 1, self.tokens, 1)), self.width
        return self.heads * self.tokens * (4 * c * d + c * 2 * d + 6 * d * d + 2 * c * d)

    def _peak(self, form: Forms) -> float:
        return peak_bytes(_job, self.model_dump(), form) / 2**20


def _job(settings: dict[str, Any], form: Forms) -> Callable[[], object]:
    """Forward and backward of one form, ready to be called in a process of its own."""
    bench = DeltaRule(**settings)
    call: Callable[..., Any] = scan if form == "scan" else partial(lean, chunk=bench.chunk)
    _trained(call, bench._inputs(2 * bench.chunk))  # what a library allocates once is not the job's
    return partial(_trained, call, bench._inputs(bench.tokens))


def _trained(call: Callable[..., Any], given: tuple[Tensor, ...]) -> None:
    """Forward, and the gradient of the sum of what was read."""
    read = call(*given)
    read = read if isinstance(read, Tensor) else read[0]
    torch.autograd.grad(read, given, torch.ones_like(read))


def _read(call: Callable[..., Any], given: tuple[Tensor, ...]) -> None:
    with torch.no_grad():
        call(*given)
