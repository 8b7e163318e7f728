"""Tensors that are made where they are used, and dropped after: a model of them has one of its weights at a time.

An `Unmade` has shape, dtype and device, and says how its numbers come about. Every function that is given one gets the
numbers instead. Two functions get less than all of them:

| function | what is made |
|---|---|
| `embedding` | the rows that are looked up |
| `linear` with a vocabulary of outputs | blocks of rows, one after another |

What is looked up, and any weight, has the same bits as if all had been made beforehand. The outputs of a `linear` that
runs in blocks may round in another way, as matrix products of other sizes do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, Self

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_map_only

from cotune.core.errors import Code, CotuneError

BLOCK = 2**22  # numbers of a vocabulary's weight that are there at once; a smaller one runs in one piece
SLENDER = 8  # how many times as many outputs as inputs make a vocabulary: no layer has so many
PIECE = 2**18  # numbers that are made in another dtype than they are given in


class Recipe(Protocol):
    """How the numbers of a tensor come about."""

    @property
    def like(self) -> Tensor:
        """A tensor of the same shape, dtype and device."""
        ...

    def part(self, rows: Tensor | None = None) -> Tensor:
        """All the numbers, or these rows of them, ascending, int64; whoever gets them does not write to them."""
        ...


class Unmade(Tensor):
    """The tensor that a recipe makes, as it stands in for it.

    Attributes:
        recipe: how.
    """

    recipe: Recipe

    @staticmethod
    def __new__(cls: type[Self], recipe: Recipe, dtype: torch.dtype | None = None) -> Self:
        """Of the recipe's dtype, or of another, to which every number is rounded once."""
        like = recipe.like
        made: Self = Tensor._make_wrapper_subclass(cls, like.shape, dtype=dtype or like.dtype, device=like.device)
        made.recipe = recipe
        return made

    def make(self, rows: Tensor | None = None) -> Tensor:
        """The numbers, or some rows of them; in another dtype than the recipe's a piece at a time."""
        like, dtype = self.recipe.like, self.dtype
        if dtype == like.dtype or not like.dim():
            return self.recipe.part(rows).to(dtype)
        count = len(like) if rows is None else len(rows)
        made = torch.empty((count, *like.shape[1:]), dtype=dtype, device=like.device)
        for begin, end in _blocks(made.shape, PIECE):
            wanted = torch.arange(begin, end, device=like.device) if rows is None else rows[begin:end]
            made[begin:end] = self.recipe.part(wanted)
        return made

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: object, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The function of the numbers, or what is known without them."""
        del types
        given = dict(kwargs or {})
        if func in _KNOWN:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **given)
        if func in _IN_PART and (found := _IN_PART[func](*args, **given)) is not None:
            return found
        name = getattr(func, "__name__", "")
        if any(isinstance(written, Unmade) for written in (given.get("out"), args[0] if _writes(name) else None)):
            raise CotuneError(Code.CONFLICT, "a tensor that is made where it is used cannot be written to", where=name)
        return _made(func, args, given)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch says so of instances, and calls the class
        cls, func: Callable[..., Any], types: object, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The function of the numbers, where it is called from below Python."""
        del types
        return _made(func, args, dict(kwargs or {}))


def _made(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    return func(*map(_numbers, args), **{name: _numbers(value) for name, value in kwargs.items()})


def _numbers(value: Any) -> Any:
    """What was given, with numbers in the place of each tensor that is not made."""
    if isinstance(value, Unmade):
        return value.make()
    return tree_map_only(Unmade, Unmade.make, value) if isinstance(value, list | tuple | dict) else value


def _writes(name: str) -> bool:
    """Whether a function of this name writes to its first argument."""
    if name.startswith("__"):
        kept = ("__invert__", "__index__", "__int__", "__iter__")
        return name in ("__set__", "__setitem__") or (name.startswith("__i") and name not in kept)
    return name.endswith("_")


def _blocks(shape: torch.Size, size: int) -> Iterator[tuple[int, int]]:
    """(begin, end) of blocks of rows with at most `size` numbers, but never less than a row."""
    step = max(1, size // max(1, math.prod(shape[1:])))
    for begin in range(0, shape[0], step):
        yield begin, min(begin + step, shape[0])


def _to(tensor: Any, *args: Any, **kwargs: Any) -> Tensor | None:
    """`tensor.to(dtype)` is unmade as well, while that is the first rounding."""
    if kwargs or len(args) != 1 or not isinstance(args[0], torch.dtype) or not isinstance(tensor, Unmade):
        return None
    if args[0] == tensor.dtype:
        return tensor
    return Unmade(tensor.recipe, args[0]) if tensor.dtype == tensor.recipe.like.dtype else None


def _embedding(
    input: Any, weight: Any, padding_idx: int | None = None, max_norm: float | None = None, *args: Any, **kwargs: Any
) -> Tensor | None:
    """The rows that are looked up, where they are not most of the table."""
    del padding_idx, args, kwargs  # they matter to gradients alone
    if not isinstance(weight, Unmade) or isinstance(input, Unmade) or max_norm is not None:
        return None
    rows, places = input.unique(return_inverse=True)
    if 2 * len(rows) > len(weight) or not len(rows) or rows[0] < 0 or rows[-1] >= len(weight):
        return None
    return functional.embedding(places, weight.make(rows))


def _linear(input: Any, weight: Any, bias: Any = None) -> Tensor | None:
    """The outputs, a block of rows of a vocabulary's weight at a time."""
    if not isinstance(weight, Unmade) or isinstance(input, Unmade) or weight.numel() <= BLOCK:
        return None
    outputs, inputs = weight.shape
    if outputs < SLENDER * inputs:
        return None
    found: Tensor = input.new_empty((*input.shape[:-1], outputs))
    for begin, end in _blocks(weight.shape, BLOCK):
        rows = torch.arange(begin, end, device=weight.device)
        block = None if bias is None else bias[begin:end]
        found[..., begin:end] = functional.linear(input, weight.make(rows), block)
    return found


_KNOWN = frozenset(
    (
        *(
            getattr(Tensor, name).__get__
            for name in ("shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_leaf", "grad_fn", "is_meta")
        ),
        *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.__len__, Tensor.is_floating_point, Tensor.element_size),
    )
)
_IN_PART: Mapping[Callable[..., Any], Callable[..., Tensor | None]] = {
    Tensor.to: _to,
    functional.embedding: _embedding,
    functional.linear: _linear,
}
