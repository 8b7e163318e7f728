"""The memory of one conversation: written at inference, private by its type, and forgotten on request.

A session can be neither pickled, copied, packed nor printed. It holds, for every layer, the state S (rows, heads, d_v,
d_k) and the last few raw keys, which token shift and pooling look back at; and the cache of the softmax path.

    memory = model.memory_session()
    memory.read(ids)                                       # write a text into the memory, at constant size
    model(ids, **memory.arguments)                         # and go on from there
    memory.freeze()                                        # from here on the memory is read, not written
    memory.reset()                                         # every bit of it is gone
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from cotune.core.errors import Code, CotuneError
from cotune.core.state import Session


@dataclass(frozen=True, eq=False, repr=False)
class Carried(Session):
    """What one layer carries from one call to the next.

    Attributes:
        state: S (rows, heads, d_v, d_k), float32; for titans the pair (S, Z) stacked in front.
        keys: the last two raw keys (rows, heads, 2, d_k), the latest last; None where no rule looks back.
        known: how many of them are there, for each row (rows,).
    """

    state: Tensor
    keys: Tensor | None = None
    known: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """All there is."""
        return [tensor for tensor in (self.state, self.keys, self.known) if tensor is not None]

    def rows(self, index: Tensor) -> Carried:
        """The same for the rows at `index`."""
        state = self.state.index_select(self.state.dim() - 4, index)
        return Carried(state, *(None if t is None else t.index_select(0, index) for t in (self.keys, self.known)))


class MemorySession(Session):
    """The private memory of one conversation, or of a batch of them, one state a row.

    Attributes:
        cache: of keys and values; it takes this session along.
        cap: the largest Frobenius norm of a head's state between calls; a larger state is scaled down to it.
        clipped: how often that happened.
        frozen: whether the memory is read only.
        tokens: how many tokens it has seen.
    """

    __slots__ = ("_carried", "_model", "_places", "cache", "cap", "clipped", "frozen", "tokens")

    def __init__(self, model: Any, cap: float, places: int | None = None) -> None:
        from cotune.trainable.memory.cache import MemoryCache

        self._model, self._places = model, places  # how many tokens have a place; None for all
        self.cache = MemoryCache(self)
        self.cap = cap
        self.frozen = False
        self.reset()

    def reset(self) -> None:
        """Forget everything: states, keys, counters and the cache of the softmax path."""
        self._carried: dict[int, Carried] = {}
        self.cache.layers = []
        self.clipped = 0
        self.tokens = 0

    @property
    def arguments(self) -> dict[str, Any]:
        """What to call the model or its `generate` with so that it goes on from this session."""
        return {cache_argument(self._model): self.cache, "use_cache": True}

    def freeze(self) -> None:
        """Read the memory from here on, and write nothing."""
        self.frozen = True

    def thaw(self) -> None:
        """Write again."""
        self.frozen = False

    @property
    def state_bytes(self) -> int:
        """Bytes of the states and the few keys beside them."""
        kept = (tensor for carried in self._carried.values() for tensor in carried.tensors)
        return sum(tensor.numel() * tensor.element_size() for tensor in kept)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the keys and values that the softmax path keeps."""
        return cache_bytes(self.cache)

    @property
    def norms(self) -> dict[int, list[float]]:
        """Layer -> the largest Frobenius norm among the rows, for each head: how full it is, and not of what."""
        return {
            layer: torch.linalg.matrix_norm(carried.state).flatten(0, -2).amax(0).tolist()
            for layer, carried in sorted(self._carried.items())
        }

    def carried(self, layer: int) -> Carried | None:
        """What a layer carries; None before the first token."""
        return self._carried.get(layer)

    def carry(self, layer: int, carried: Carried) -> None:
        """Take what a layer carries on, its state within the cap."""
        state = carried.state.detach()
        norm = torch.linalg.matrix_norm(state, keepdim=True)
        over = norm > self.cap
        self.clipped += int(over.sum())
        state = torch.where(over, state * (self.cap / norm), state)
        self._carried[layer] = Carried(state, None if carried.keys is None else carried.keys.detach(), carried.known)

    def choose(self, index: Tensor) -> None:
        """Take over the rows at `index`, as beam search does."""
        self._carried = {layer: carried.rows(index) for layer, carried in self._carried.items()}

    def repeat(self, times: int) -> None:
        """Take over each row `times` times."""
        for carried in [*self._carried.values()][:1]:
            rows = torch.arange(carried.state.shape[-4], device=carried.state.device)
            self.choose(rows.repeat_interleave(times))

    def saw(self, tokens: int) -> None:
        """Count tokens.

        Raises:
            CotuneError: E_CONFLICT past the last position of a model that has learned a vector for each.
        """
        if self._places is not None and self.tokens + tokens > self._places:
            raise CotuneError(
                Code.CONFLICT,
                f"{type(self._model).__name__} has a vector for each position, and no more of them",
                where="memory",
                got=f"{self.tokens + tokens} tokens",
                expected=f"at most {self._places}",
                fix="reset the memory, or use a backbone with rotary positions",
            )
        self.tokens += tokens

    def read(self, ids: Tensor, segment: int = 512) -> Tensor:
        """Logits (rows, vocabulary) after the last of `ids` (rows, tokens), all of which are written, by segments."""
        *_, logits = self._stream(ids, segment, last_only=True)
        return logits[:, -1]

    def generate(self, ids: Tensor, tokens: int, stop: int | None = None, segment: int = 512) -> Tensor:
        """The likeliest continuation of `ids` (rows, any), which are read first: at most `tokens` more (rows, tokens).

        It ends early with the token at which every row has said `stop`; a row that is done goes on beside the others,
        and what it says then counts for nothing. The last token of the answer is not read yet.
        """
        return greedy(lambda part: self.read(part, segment), ids, tokens, stop)

    def losses(self, ids: Tensor, segment: int = 512) -> Tensor:
        """−log p of every token of `ids` (rows, tokens) given all before it, float32; NaN for the first of them."""
        found, before = [], None
        parts = torch.split(ids, segment, dim=1)
        for part, logits in zip(parts, self._stream(ids, segment, last_only=False), strict=True):
            found.append(surprise(part, logits, before))
            before = logits[:, -1]
        return torch.cat(found, 1)

    def _stream(self, ids: Tensor, segment: int, *, last_only: bool) -> Iterator[Tensor]:
        """The logits of each segment in turn; what came before is in the memory and in the window."""
        keep = {"logits_to_keep": 1} if last_only else {}
        for part in torch.split(ids, segment, dim=1):
            with torch.no_grad():
                yield self._model(input_ids=part, **self.arguments, **keep).logits


def surprise(ids: Tensor, logits: Tensor, before: Tensor | None) -> Tensor:
    """−log p of each token of a segment given all before it (rows, tokens), float32.

    Args:
        ids: (rows, tokens).
        logits: after each of them (rows, tokens, vocabulary).
        before: logits after the token in front of the segment (rows, vocabulary); None where there is none, and NaN is
            the first token's.
    """
    said = logits[:, :-1] if before is None else torch.cat([before[:, None], logits[:, :-1]], 1)
    told = ids[:, 1:] if before is None else ids
    nll = functional.cross_entropy(said.float().flatten(0, 1), told.flatten(), reduction="none").view(told.shape)
    return functional.pad(nll, (1, 0), value=torch.nan) if before is None else nll


def cache_argument(model: Any) -> str:
    """What this version of transformers calls the cache that a model is given and returns."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def cache_bytes(cache: Any) -> int:
    """Bytes of the keys and values that the softmax path keeps."""
    kept = [tensor for layer in cache.layers for tensor in map(vars(layer).get, ("keys", "values"))]
    return sum(tensor.numel() * tensor.element_size() for tensor in kept if tensor is not None)


def greedy(read: Callable[[Tensor], Tensor], ids: Tensor, tokens: int, stop: int | None = None) -> Tensor:
    """The continuation of `ids` (rows, any) that takes the likeliest token each time; see `MemorySession.generate`.

    Args:
        read: gives logits (rows, vocabulary) after tokens (rows, any), and remembers them.
        ids: to go on from.
        tokens: the most tokens.
        stop: the id that ends an answer.
    """
    done, said = torch.zeros(len(ids), dtype=torch.bool, device=ids.device), list[Tensor]()
    while len(said) < tokens:
        ids = read(ids).argmax(-1, keepdim=True)
        said.append(ids)
        if stop is not None:
            done = done | (ids[:, 0] == stop)
            if bool(done.all()):
                break
    return torch.cat(said, 1) if said else ids[:, :0]
