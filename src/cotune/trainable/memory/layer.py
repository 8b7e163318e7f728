"""A memory beside one attention layer: it listens to the layer's projections and adds what it reads before the output.

    out ← out + α (read − out), for each query head, in front of the output projection

The layer's own code runs as it is, with any attention kernel. Within one pass, the projections are taken as they are
computed, before any rotation of queries and keys; the pass ends where the output projection begins, and nothing is kept
from it but what a session carries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cotune.core.errors import Code, CotuneError
from cotune.trainable.memory.chunkwise import run, titans_chunked
from cotune.trainable.memory.fused import fused
from cotune.trainable.memory.options import Rules
from cotune.trainable.memory.session import Carried, MemorySession
from cotune.trainable.memory.sites import Site, heard, listen, output

ARGUMENT = "memory"  # the keyword under which a pass reaches every layer
EPS = 1e-6
BACK = 2  # raw keys that a pooling filter looks back at


@dataclass(frozen=True, eq=False)
class Pass:
    """What every layer needs to know about a forward pass.

    Attributes:
        valid: which of its tokens are no padding, bool (rows, tokens); None for all.
        session: what goes on after it; None where nothing does.
    """

    valid: Tensor | None
    session: MemorySession | None


class MemoryLayer(nn.Module):
    """The rules of one layer, and the hooks that apply them.

    Parameters, of h heads of width d, and g · h query heads (each only where its option is on):
        gate (g h,); beta_weight (h, d), beta_bias (h,), or filter (h d, 3), filter_bias (h d,); shift (h,);
        key_centre (h, d), query_centre (g h, d); decay_weight, decay_bias, momentum_weight, momentum_bias as beta's.
    """

    def __init__(self, site: Site, rules: Rules, device: torch.device) -> None:
        super().__init__()
        self.site, self.rules = site, rules
        for name, value in starts(site, rules).items():
            self.register_parameter(name, nn.Parameter(value.to(device), requires_grad=False))
        self._taken: dict[str, Tensor] = {}
        self._pass: Pass | None = None
        self._heard: list[nn.Module] = []

    def attach(self, module: Any) -> None:
        """Listen to the attention layer, and add to what it is about to project."""
        self._heard = heard(module)  # a list: they stay modules of the attention layer alone
        module.register_forward_pre_hook(self._begin, with_kwargs=True)
        listen(module, self._take)
        output(module).register_forward_pre_hook(self._blend)

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        del args
        if ARGUMENT not in kwargs:
            raise CotuneError(
                Code.MODEL,
                f"{type(module).__name__} is not told what its model is told",
                where=self.site.name,
                fix="call the model itself; if you did, its code passes no keyword arguments on",
            )
        if any(now is not then for now, then in zip(heard(module), self._heard, strict=True)):
            raise CotuneError(
                Code.CONFLICT,
                "projections were exchanged after the memory was attached, and it would not hear them",
                where=self.site.name,
                fix="load the adapter first, then attach the memory",
            )
        self._taken.clear()
        self._pass = kwargs[ARGUMENT]

    def _take(self, name: str, projected: Tensor) -> None:
        self._taken[name] = projected

    def _blend(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        del module
        now, taken = self._pass, dict(self._taken)
        self._pass = None
        self._taken.clear()
        if now is None:
            raise RuntimeError("an output projection ran outside of its attention layer")
        session = now.session
        before = session.carried(self.site.layer) if session else None
        frozen = session is not None and session.frozen
        read, after = self.read(taken["q"], taken["k"], taken["v"], now.valid, before, frozen=frozen)
        if session:
            session.carry(self.site.layer, after)
        out = inputs[0]
        soft = out.view(*out.shape[:-1], self.site.queries, self.site.width)
        mixed = soft + self.alpha()[:, None] * (read.view(soft.shape) - soft)
        return (mixed.flatten(-2).to(out.dtype), *inputs[1:])

    def alpha(self) -> Tensor:
        """How much of each query head's output is memory (g h,)."""
        if self.rules.gate == "constant":
            return torch.full((self.site.queries,), self.rules.gate_start, device=self._device)
        return self.rules.alpha(self._of("gate"))

    def read(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None, before: Carried | None, *, frozen: bool = False
    ) -> tuple[Tensor, Carried]:
        """What the memory answers (rows, tokens, g h · d), float32, and what is carried on.

        Args:
            q: raw queries (rows, tokens, g h · d).
            k: raw keys (rows, tokens, h · d).
            v: raw values, the same.
            valid: bool (rows, tokens); a token that is not leaves no trace.
            before: what the last call carried.
            frozen: whether nothing is written.
        """
        rules, width = self.rules, self.site.width
        q, k, v = (x.float().view(*x.shape[:2], -1, width).transpose(1, 2) for x in (q, k, v))
        near = Neighbours.of(k, valid, before) if rules.looks_back else None
        shifted = k + self._of("shift")[:, None, None] * (near.taps[1] - k) if near and rules.shift else k
        keys, queries = self._features(shifted, "key"), self._features(q, "query")
        if rules.value_scale == "root-width":
            v = v / math.sqrt(width)
        beta = self._filtered(near) if near and rules.beta == "vector" else self._gate_of(keys, "beta")
        beta = rules.beta_max * beta
        decay = self._gate_of(keys, "decay") if rules.decays else None
        written = valid
        if frozen:
            written = torch.zeros(k.shape[0], k.shape[2], dtype=torch.bool, device=k.device)
        if written is not None:
            beta = beta * (written[:, None, :, None] if beta.dim() == 4 else written[:, None])
            decay = None if decay is None else decay.masked_fill(~written[:, None], 1.0)
        state = before.state if before else None
        if decay is not None and rules.rule == "titans":
            momentum = self._gate_of(keys, "momentum")
            pair = None if state is None else (state[0], state[1])
            o, (s, z) = titans_chunked(queries, keys, v, beta, momentum, decay, pair, chunk=rules.chunk, valid=written)
            after = torch.stack([s, z])
        elif rules.kernel == "fla" and k.device.type != "meta" and k.shape[2] > 1:
            o, after = fused(queries, keys, v, beta, decay, state)
        else:
            o, after = run(queries, keys, v, beta, decay, state, rules.chunk, rules.correction)
        o = o.transpose(1, 2).flatten(-2)
        if rules.norm:
            o = functional.rms_norm(o, o.shape[-1:], eps=EPS)
        return o, Carried(after, near.keys, near.known) if near else Carried(after)

    def _features(self, x: Tensor, which: str) -> Tensor:
        """Centred, through SiLU, of length 1; in this order, each where it is on but the last."""
        if self.rules.centre:
            x = x - self._of(f"{which}_centre")[:, None]
        if self.rules.silu:
            x = functional.silu(x)
        return functional.normalize(x, dim=-1, eps=EPS)

    def _gate_of(self, keys: Tensor, name: str) -> Tensor:
        """sigmoid(w · k + b) (rows, h, tokens)."""
        weight, bias = self._of(f"{name}_weight"), self._of(f"{name}_bias")
        return torch.sigmoid((keys * weight[:, None]).sum(-1) + bias[:, None])

    def _filtered(self, near: Neighbours) -> Tensor:
        """The sigmoid of a filter over the last three raw keys, the oldest first (rows, h, tokens, d)."""
        shape = (self.site.heads, 1, self.site.width)
        oldest, older, own = self._of("filter").view(*shape, BACK + 1).unbind(-1)
        two, one, key = near.taps
        return torch.sigmoid(oldest * two + older * one + own * key + self._of("filter_bias").view(shape))

    def _of(self, name: str) -> Tensor:
        """A rule by its name."""
        rule: Tensor = getattr(self, name)
        return rule

    @property
    def _device(self) -> torch.device:
        return next(self.parameters()).device


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Every token's raw key, those of the two valid tokens before it, across calls, and what to carry on.

    Where there is no token before, the token itself, or the oldest there is, stands in.

    Attributes:
        taps: the raw keys two before, one before, and of each token (rows, heads, tokens, d).
        keys: the last two valid raw keys (rows, heads, 2, d).
        known: how many of those there are, for each row (rows,).
    """

    taps: tuple[Tensor, Tensor, Tensor]
    keys: Tensor
    known: Tensor

    @staticmethod
    def of(key: Tensor, valid: Tensor | None, before: Carried | None) -> Neighbours:
        """The neighbours in a call, given what the last one carried."""
        rows, heads, tokens, width = key.shape
        kept, known = (before.keys, before.known) if before else (None, None)
        if kept is None or known is None:
            kept = key.new_zeros(rows, heads, BACK, width)
            known = torch.zeros(rows, dtype=torch.long, device=key.device)
        valid = torch.ones(rows, tokens, dtype=torch.bool, device=key.device) if valid is None else valid
        joined = torch.cat([kept, key], dim=2)
        place = torch.arange(BACK + tokens, device=key.device)
        there = torch.cat([place[:BACK] >= BACK - known[:, None], valid], 1)
        latest = torch.where(there, place, -1).cummax(1).values
        previous = functional.pad(latest[:, :-1], (1, 0), value=-1)
        one = torch.where(previous < 0, place, previous)
        two = previous.gather(1, one)
        two = torch.where(two < 0, one, two)
        # A stable sort by "is there" moves the valid columns to the right end and keeps their order.
        last = torch.argsort(there.int(), dim=1, stable=True)[:, -BACK:]
        taps = (_at(joined, two[:, BACK:]), _at(joined, one[:, BACK:]), key)
        return Neighbours(taps, _at(joined, last), there.sum(1).clamp(max=BACK))


def _at(keys: Tensor, column: Tensor) -> Tensor:
    """The keys at each row's columns (rows, heads, columns, d)."""
    return keys.gather(2, column[:, None, :, None].expand(-1, keys.shape[1], -1, keys.shape[-1]))


def starts(site: Site, rules: Rules) -> dict[str, Tensor]:
    """Name -> value of each rule before training, float32."""
    h, d, queries = site.heads, site.width, site.queries
    found: dict[str, Tensor] = {}
    if rules.gate == "tanh":
        found["gate"] = torch.zeros(queries)
    elif rules.gate == "sigmoid":
        found["gate"] = torch.full((queries,), _logit(rules.gate_start))
    gates = {"beta": rules.beta_start / rules.beta_max} if rules.beta == "scalar" else {}
    gates |= {"decay": rules.decay_start} if rules.decays else {}
    gates |= {"momentum": rules.momentum_start} if rules.rule == "titans" else {}
    for name, start in gates.items():
        found[f"{name}_weight"] = torch.zeros(h, d)
        found[f"{name}_bias"] = torch.full((h,), _logit(start))
    if rules.beta == "vector":
        found["filter"] = torch.full((h * d, BACK + 1), 1 / (BACK + 1))
        found["filter_bias"] = torch.zeros(h * d)
    if rules.shift:
        found["shift"] = torch.full((h,), 0.5)
    if rules.centre:
        found["key_centre"], found["query_centre"] = torch.zeros(h, d), torch.zeros(queries, d)
    return found


def _logit(share: float) -> float:
    return math.log(share / (1 - share))
