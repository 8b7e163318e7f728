"""Layers in front of everything that trains, run once a row.

Rows do not mix in a model. Where nothing before some layer ever changes, what arrives there is a function of the row
alone: it is computed once, for the row by itself and without padding, and every later pass begins behind it. So it has
the same bits whatever batches a row is in, in whatever order, and in whichever process; beside a pass through
everything, padded rows differ by float32's rounding (1e-6 of a loss; a test holds it). Rows are told by their tokens,
so that tasks need not know.

A loop over P directions thereby pays for the layers that train, and so does everybody else. On the CPU alone: rows one
by one leave an accelerator idle.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cotune.backbone.cut import Front, Given, Halfway, first, instead, places
from cotune.backbone.layers import named_layers

KEPT = 2**29  # bytes of all rows together; those beyond are kept for one step at a time
_PLAIN = frozenset({"input_ids", "attention_mask", "labels", "logits_to_keep", "use_cache"})
Count = Callable[[object, Callable[[], object]], int]  # (what costs the same, an action) -> FLOPs


def unchanging(model: nn.Module, changing: Collection[str]) -> int:
    """How many of the first layers come before every parameter of these names; one layer is always left."""
    known, most = places(model), len(named_layers(model)) - 1
    return max(0, min([most, *(known[name] for name in changing)]))


class Frozen:
    """The unchanging layers of a model, and what arrived behind them for the rows that were met.

    Attributes:
        layers: how many; with 0 of them nothing is kept, and every pass is the model's own.
    """

    def __init__(self, model: nn.Module, layers: int) -> None:
        self.layers = layers
        self._model = model
        self._kept: dict[bytes, Halfway] = {}
        self._bytes = 0
        self._step: dict[bytes, Halfway] = {}
        self._given: Halfway | None = None
        self._depth = 0

    @contextmanager
    def over(self) -> Iterator[None]:
        """Inside, passes of the model begin behind the unchanging layers, whichever half they run; may be nested."""
        if not self.layers or self._depth:
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
            return
        self._depth += 1
        named = [layer for _, layer in named_layers(self._model)]
        try:
            with ExitStack() as stack:
                stack.callback(self._model.register_forward_pre_hook(self._arrive, with_kwargs=True).remove)
                for layer in named[: self.layers]:
                    stack.enter_context(instead(layer, self._handing_on(layer.forward)))
                stack.callback(first(named[self.layers], self._receive).remove)
                yield
        finally:
            self._depth, self._given = 0, None
            self._step.clear()

    def prepare(self, batches: Iterable[Mapping[str, Tensor]], count: Count, met: set[bytes]) -> int:
        """Runs what is missing for the rows of a step; the FLOPs of the rows that are new to `met`, which gets them.

        Args:
            batches: of the step.
            count: a meter.
            met: the rows that a client has met in a round: a client that keeps nothing between rounds runs them once.
        """
        if not self.layers:
            return 0
        self._step.clear()
        flops = 0
        for batch in batches:
            for ids in _rows(batch) or ():
                key = _key(ids)
                self._step[key] = self._halfway(ids)
                if key not in met:
                    met.add(key)
                    flops += count(("frozen", self.layers, len(ids)), partial(self._alone, ids))
        return flops

    def _arrive(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before each pass: what its rows arrive at, or nothing where they are not plain rows."""
        self._given = None
        rows = None if args else _rows(kwargs)
        if rows is None:
            return
        found = [self._halfway(ids) for ids in rows]
        tokens, width = kwargs["input_ids"].shape[1], found[0].hidden.shape[-1]
        hidden = found[0].hidden.new_zeros(len(rows), tokens, width)
        for i, halfway in enumerate(found):
            hidden[i, : halfway.hidden.shape[1]] = halfway.hidden[0]
        self._given = Halfway(hidden, found[0].boxed)

    def _receive(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Given | None:
        if self._given is None:
            return None
        hidden = self._given.hidden
        return ((hidden, *args[1:]), kwargs) if args else ((), {**kwargs, "hidden_states": hidden})

    def _handing_on(self, own: Callable[..., Any]) -> Callable[..., Any]:
        """A layer's forward that hands on what it is given while there is something to begin from."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            if self._given is None:
                return own(*args, **kwargs)
            hidden = args[0] if args else kwargs["hidden_states"]
            return (hidden,) if self._given.boxed else hidden

        return forward

    def _halfway(self, ids: Tensor) -> Halfway:
        key = _key(ids)
        found = self._step.get(key) or self._kept.get(key)
        if found is None:
            found = self._alone(ids)
            size = found.hidden.numel() * found.hidden.element_size()
            if self._bytes + size <= KEPT:
                self._kept[key] = found
                self._bytes += size
        return found

    def _alone(self, ids: Tensor) -> Halfway:
        """What one row arrives at; the pass is not of plain rows, so that it begins where the model does."""
        batch = {"input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None], "return_dict": True}
        with torch.no_grad():
            return Front(self._model, self.layers)(batch)


def _rows(inputs: Mapping[str, Any]) -> list[Tensor] | None:
    """The tokens of each row without padding; None where a row is more than tokens padded on the right."""
    ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
    if not isinstance(ids, Tensor) or ids.dim() != 2 or not {k for k, v in inputs.items() if v is not None} <= _PLAIN:
        return None
    if mask is None:
        return list(ids)
    if mask.shape != ids.shape:
        return None
    lengths = mask.sum(1).tolist()
    places = torch.arange(ids.shape[1], device=ids.device)
    if not all(lengths) or not torch.equal(mask.bool(), places < mask.sum(1, keepdim=True)):
        return None
    return [row[:length] for row, length in zip(ids, lengths, strict=True)]


def _key(ids: Tensor) -> bytes:
    return ids.cpu().numpy().tobytes()
