"""Parts: frozen values that are their own configuration, found by kind, checked by what they give and need."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from operator import attrgetter
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, ValidationError, model_serializer

from cotune.core.errors import Code, CotuneError, nearest
from cotune.core.explain import explain


class Capability(StrEnum):
    """What parts say to each other; a method fits when every need of a part is given by another."""

    FACTORS = "factors"  # pairs whose product is the change; an aggregator that gives it takes clients of other ranks
    GRADIENT = "gradient"  # the optimizer hands out the gradient of each step
    ANCHOR = "anchor"  # the theta that a round starts from is known to the client
    REPLAY = "replay"  # the steps of a client can be repeated from what it sends
    SCALARS = "scalars"  # what goes up is no more than a replay takes
    POOL = "pool"  # replies are numbers along a fixed set of directions, the candidates
    CANDIDATES = "candidates"  # the server keeps a number for each of them, and sends all
    SPLIT = "split"  # the backbone runs in two halves
    PRIVATE = "private"  # client parts keep numbers between rounds
    AUX = "aux"  # the server broadcasts tensors beside theta
    BASE = "base"  # the server adds to the frozen weights
    CAUSAL = "causal"  # the backbone is a causal language model
    DECODER = "decoder"  # a token of the backbone sees what came before it alone, whatever the head
    SUMMABLE = "summable"  # replies may be added before anyone reads them
    ELEMENTWISE = "elementwise"  # a round comes to theta alone, each number a function of that number before and sent
    LOSSY = "lossy"  # what is opened is not exactly what was packed
    VECTORIZABLE = "vectorizable"  # runs with the clients as a leading axis


# What a backbone, not a part of the method, provides: in words, for those that lack it.
OF_THE_BACKBONE: Mapping[Capability, str] = {
    Capability.SPLIT: "of an architecture whose two halves are known",
    Capability.CAUSAL: "with a task of language",
    Capability.DECODER: "that reads from left to right: an encoder reads both ways at once",
}


class Part(BaseModel):
    """A part of a method: frozen, comparable, hashable, and equal to the TOML table that makes it.

    The first line of its docstring is what `cotune list` prints.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: ClassVar[str]
    gives: ClassVar[frozenset[Capability]] = frozenset()
    needs: ClassVar[frozenset[Capability]] = frozenset()

    @model_serializer(mode="wrap")
    def _with_kind(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"kind": kind_of(type(self)), **handler(self)}

    @classmethod
    def summary(cls) -> str:
        """The first line of the docstring."""
        return (cls.__doc__ or "").strip().partition("\n")[0]


P = TypeVar("P", bound=Part)


def kind_of(cls: type[Part]) -> str:
    """The short kind of one of our parts, the dotted path `module:Class` of anybody else's."""
    ours = cls.__module__.split(".")[0] == __name__.split(".", maxsplit=1)[0]
    return cls.kind if ours else f"{cls.__module__}:{cls.__qualname__}"


def resolve(room: str, kinds: Mapping[str, type[P]], value: object) -> object:
    """A table `{kind = ..., ...}` as the part it names; a part, or None, as itself.

    Raises:
        CotuneError: E_CONFIG for an unknown kind, with the nearest one.
    """
    if value is None or isinstance(value, Part):
        return value
    if isinstance(value, str):
        value = {"kind": value}
    if not isinstance(value, Mapping) or not isinstance(value.get("kind"), str):
        raise CotuneError(Code.CONFIG, "a part needs a kind", where=room, expected=f"one of {', '.join(sorted(kinds))}")
    fields = {name: field for name, field in value.items() if name != "kind"}
    part = find(room, kinds, value["kind"])
    try:
        return part.model_validate(fields)
    except ValidationError as error:
        raise explain(error, part, room) from error


def find(room: str, kinds: Mapping[str, type[P]], kind: str) -> type[P]:
    """The class behind a kind, or behind a dotted path `package.module:Class`."""
    if ":" not in kind:
        if kind in kinds:
            return kinds[kind]
        raise CotuneError(Code.CONFIG, f"no part of kind '{kind}'", where=room, fix=nearest(kind, kinds))
    module, _, name = kind.partition(":")
    try:
        found = attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise CotuneError(Code.CONFIG, f"cannot load part '{kind}'", where=room, got=str(error)) from error
    if not (isinstance(found, type) and issubclass(found, Part)):
        raise CotuneError(Code.CONFIG, f"'{kind}' is not a part", where=room, expected="a subclass of cotune.Part")
    return found  # type: ignore[return-value]


def check_fit(parts: Iterable[tuple[str, Part]], given: Iterable[Capability]) -> None:
    """Raise E_CONFLICT, in words, for the first need that nothing gives.

    Args:
        parts: (where, part) pairs.
        given: what is given besides the parts themselves.
    """
    listed = list(parts)
    extra = frozenset(given)
    for where, part in listed:
        others = extra.union(*(other.gives for _, other in listed if other is not part))
        for need in sorted(part.needs - others):
            words = OF_THE_BACKBONE.get(need)
            instead = f"choose a part that gives '{need}'" if words is None else f"choose a backbone {words}"
            raise CotuneError(
                Code.CONFLICT,
                f"{where} needs '{need}'",
                got=f"only {', '.join(sorted(others)) or 'nothing'}",
                fix=f"drop {kind_of(type(part))}, or {instead}",
            )
