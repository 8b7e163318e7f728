"""Put tensors into the shared model for a while: the one place that touches it.

`bind` lends a model to one client at a time. Inside, each call of the bound model is a pure function of the tensors it
is given; they stay in place until the next call, because gradient checkpointing runs the forward again during the
backward. On exit, also after an error, every parameter is the frozen one again. A tensor may be one that is made where
it is used (`cotune.core.unmade`): it is put in place as it is, and a cast of it is made there too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cotune.core.change import Base
from cotune.core.errors import Code, CotuneError
from cotune.core.spec import Role, Spec

_MARK = "_cotune_bound"


class Bound:
    """A model with tensors in the places of its trained parameters; see `bind`."""

    def __init__(self, model: nn.Module, tensors: Mapping[str, Tensor], spec: Spec) -> None:
        self.model = model
        self._held = dict(tensors)
        self._slots = _slots(model, tensors)
        self._gains = _gains(model, spec)
        self._frozen = {name: [(m, key, m._parameters[key]) for m, key in slots] for name, slots in self._slots.items()}
        # A factor or rule computes in float32 beside a backbone of any dtype; a weight of the model itself in its own.
        own = [entry.name for entry in spec if entry.role in (Role.FULL, Role.HEAD) and entry.name in tensors]
        self._dtypes = {name: model.get_parameter(name).dtype for name in own}

    def __call__(self, tensors: Mapping[str, Tensor], **inputs: Any) -> Any:
        """The model's output at `tensors`; names that are not given keep the value they were bound with."""
        self.place(tensors)
        return self.model(**inputs)

    def place(self, tensors: Mapping[str, Tensor]) -> None:
        """Put `tensors` in place, for whoever calls the model itself before it is restored."""
        for name, slots in self._slots.items():
            tensor = tensors.get(name, self._held[name])
            gain = self._gains.get(name, 1.0)
            placed = (tensor if gain == 1.0 else tensor * gain).to(self._dtypes.get(name, tensor.dtype))
            for module, key in slots:
                module._parameters[key] = placed  # type: ignore[assignment]

    def restore(self) -> None:
        """Put the frozen parameters back."""
        for slots in self._frozen.values():
            for module, key, parameter in slots:
                module._parameters[key] = parameter


@contextmanager
def bind(model: nn.Module, tensors: Mapping[str, Tensor], spec: Spec, base: Base | None = None) -> Iterator[Bound]:
    """The model at `tensors`, with `base` added beside its frozen weights; restores the model on exit.

    Args:
        model: the shared model, with the trainable attached.
        tensors: every trained tensor by name, shared or personal.
        spec: the table of the client whose tensors these are; its ranks may differ from the model's.
        base: additive factors, applied to the module's input, so that the frozen weight stays as it is.

    Raises:
        CotuneError: E_CONFLICT when the model is bound already; E_KEYS for a name the model does not have.
    """
    if getattr(model, _MARK, False):
        raise CotuneError(Code.CONFLICT, "the model is bound already", fix="leave the first bind before the second")
    bound = Bound(model, tensors, spec)
    hooks = [_add_beside(model, module, *pair) for module, pair in (base.factors if base else {}).items()]
    setattr(model, _MARK, True)
    try:
        yield bound
    finally:
        bound.restore()
        for hook in hooks:
            hook.remove()
        delattr(model, _MARK)


def _slots(model: nn.Module, names: Mapping[str, Tensor]) -> dict[str, list[tuple[nn.Module, str]]]:
    """Every place that holds the named parameter: a tied weight has several."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                places.setdefault(id(parameter), []).append((module, key))
    parameters = dict(model.named_parameters())
    missing = [name for name in names if name not in parameters]
    if missing:
        raise CotuneError(
            Code.KEYS,
            f"{len(missing)} tensors have no place in the model",
            where=", ".join(missing[:5]),
            fix="attach the trainable to this backbone first",
        )
    return {name: places[id(parameters[name])] for name in names}


def _gains(model: nn.Module, spec: Spec) -> dict[str, float]:
    """What to multiply B with where a client's alpha / r differs from the one that the attached module applies."""
    gains = {}
    for entry in spec:
        if entry.role is Role.FACTOR_B:
            scaling = getattr(model.get_submodule(entry.module), "scaling", None)
            applied = next(iter(scaling.values())) if isinstance(scaling, dict) else 1.0
            gains[entry.name] = entry.scale / applied
    return gains


def _add_beside(model: nn.Module, name: str, b: Tensor, a: Tensor) -> torch.utils.hooks.RemovableHandle:
    """`y + (x Aᵀ) Bᵀ` after the module's own forward."""

    def hook(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        x = inputs[0].float()
        beside = (x @ a.mT) @ b.mT if a.numel() else x @ b.mT
        return output + beside.to(output.dtype)

    return model.get_submodule(name).register_forward_hook(hook)
