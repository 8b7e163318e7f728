"""A model cut in two at a layer boundary, without a rewritten forward: back(front(batch), batch) is model(**batch).

The front half is the model's own forward pass, left by an exception where the first layer of the back half begins. The
back half is the whole forward pass again, in which the layers in front hand on what they are given, and the first layer
behind them receives what the front half arrived at: so masks, positions, embeddings that are tied to the head, and the
loss are made by the model's own code. Hooks of the layers in front run in both halves, hooks inside them in the front
half alone. Nothing is left in the model afterwards, also after an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cotune.backbone.layers import layers, named_layers
from cotune.core.errors import Code, CotuneError

Batch = Mapping[str, Any]
Given = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Halfway:
    """What the front half arrives at.

    Attributes:
        hidden: (rows, tokens, width).
        boxed: whether a layer of this model returns a tuple around it.
    """

    hidden: Tensor
    boxed: bool = False


@dataclass(frozen=True)
class Front:
    """The half up to a layer: embeddings and the layers before it."""

    model: nn.Module
    layer: int

    def __call__(self, batch: Batch) -> Halfway:
        """What the layer would be given, for the same keyword arguments that the model takes."""
        _check(batch)
        *_, last, cut = layers(self.model)[: self.layer + 1]
        boxed = False

        def look(_module: nn.Module, _args: object, output: object) -> None:
            nonlocal boxed
            boxed = isinstance(output, tuple)

        def leave(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            raise _Reached(args[0] if args else kwargs["hidden_states"])

        try:
            with _hooked(last.register_forward_hook(look), first(cut, leave)):
                self.model(**batch)
        except _Reached as reached:
            return Halfway(reached.hidden, boxed)
        raise CotuneError(Code.MODEL, "the forward pass goes around the layers", where=type(self.model).__name__)


@dataclass(frozen=True)
class Back:
    """The half from a layer on: the layers behind it and the head."""

    model: nn.Module
    layer: int

    def __call__(self, halfway: Halfway, batch: Batch) -> Any:
        """The model's own output; what it says about single layers in front is void."""
        _check(batch)
        found = layers(self.model)

        def hand_on(*args: Any, **kwargs: Any) -> Any:
            hidden = args[0] if args else kwargs["hidden_states"]
            return (hidden,) if halfway.boxed else hidden

        def receive(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Given:
            return ((halfway.hidden, *args[1:]), kwargs) if args else ((), {**kwargs, "hidden_states": halfway.hidden})

        with ExitStack() as stack:
            for layer in found[: self.layer]:
                stack.enter_context(instead(layer, hand_on))
            stack.enter_context(_hooked(first(found[self.layer], receive)))
            return self.model(**batch)


def split(model: nn.Module, layer: int) -> tuple[Front, Back]:
    """`(front, back)` with `back(front(batch), batch)` equal to `model(**batch)` bit for bit, logits and loss.

    Both read whatever parameters the model has when they are called: inside `bind`, those that are in place.

    Args:
        model: of transformers, with or without something attached; a `batch` is its keyword arguments.
        layer: the first layer of the back half, counted from 0; each half has at least one.

    Raises:
        CotuneError: E_MODEL where the layers cannot be told; E_CONFIG for a layer outside 1 … n − 1.
    """
    count = len(layers(model))
    if not 1 <= layer < count:
        raise CotuneError(
            Code.CONFIG,
            "no such cut",
            where=type(model).__name__,
            got=f"layer {layer}",
            expected=f"1 … {count - 1}",
        )
    return Front(model, layer), Back(model, layer)


def places(model: nn.Module) -> dict[str, int]:
    """Parameter name -> the layer that runs it, from 0; −1 for what runs before them, n for what runs behind.

    A tied parameter belongs to whichever comes first. Layers are told by their names, everything else by whether it
    runs before the first of them, on a row of two tokens.
    """
    words: Any = model.get_input_embeddings()  # type: ignore[operator]
    named, ran = named_layers(model), {id(words.weight)}

    def note(module: nn.Module, _args: object) -> None:
        ran.update(id(parameter) for parameter in module.parameters(recurse=False))

    def leave(*_given: object) -> None:
        raise _Reached(torch.empty(0))

    # Vectors in the place of words, no mask, the cache of its own: nothing looks at values, and shapes are enough.
    row = words.weight.new_zeros(1, 2, words.weight.shape[1])
    owners = [module for module in model.modules() if next(module.parameters(recurse=False), None) is not None]
    notes = (module.register_forward_pre_hook(note) for module in owners)
    with torch.no_grad(), _hooked(*notes, first(named[0][1], leave)), suppress(_Reached):
        model(inputs_embeds=row)
    found = {}
    for name, parameter in model.named_parameters():
        place = next((i for i, (inside, _) in enumerate(named) if name.startswith(f"{inside}.")), None)
        found[name] = place if place is not None else -1 if id(parameter) in ran else len(named)
    return found


def blocks(model: nn.Module, layer: int) -> dict[str, int]:
    """Parameter name -> 0 where the front half of a cut runs it, else 1; a tied one belongs to the front."""
    split(model, layer)
    return {name: int(place >= layer) for name, place in places(model).items()}


def ahead(model: nn.Module, numbers: Mapping[str, int]) -> list[int]:
    """How many of some parameters' numbers come before layer 1, 2, …, and at last all of them, the head's included.

    Args:
        model: of n layers, and so n counts.
        numbers: of each parameter, by name.
    """
    known, count = places(model), len(layers(model))
    within = [sum(size for name, size in numbers.items() if known[name] < layer) for layer in range(1, count)]
    return [*within, sum(numbers.values())]


class _Reached(BaseException):  # not an Exception: nothing on the way out may take it for a failure
    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden


def _check(batch: Batch) -> None:
    """A cache would be written by both halves."""
    carried = [name for name in ("past_key_values", "cache") if batch.get(name) is not None]
    if carried:
        raise CotuneError(Code.CONFLICT, "a pass that goes on from a cache is not cut", where=carried[0])


def first(module: nn.Module, hook: Callable[..., Any]) -> torch.utils.hooks.RemovableHandle:
    """A hook before `module`, ahead of those that are there, with all that it is given."""
    return module.register_forward_pre_hook(hook, with_kwargs=True, prepend=True)


@contextmanager
def _hooked(*handles: torch.utils.hooks.RemovableHandle) -> Iterator[None]:
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def instead(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """`module` with another forward; one that it has as its own, not from its class, comes back."""
    own = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own
