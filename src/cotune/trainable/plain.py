"""The model as it is with nothing attached: its names, and its weights with what was trained folded in.

`W + scale · B A + base`, in float64, with one cast to the dtype of W at the end; the shared model stays as it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NoReturn

import torch
from torch import Tensor, nn

from cotune.core.contracts import Trained
from cotune.core.errors import Code, CotuneError
from cotune.core.spec import Entry, Role, Spec

Wanted = Callable[[str], bool]


def everything(name: str) -> bool:
    """Whether a tensor is wanted when all are."""
    del name
    return True


def modules(model: nn.Module) -> dict[str, nn.Module]:
    """Name -> module of the model without adapters: an adapted layer stands as what it wraps."""
    wrapped = _wrapped(model)
    found = {}
    for name, module in model.named_modules():
        if name and not any(above in wrapped for above in _above(name)):
            found[name] = wrapped.get(name, module)
    return found


def plain_name(name: str, wrapped: Mapping[str, nn.Module]) -> str | None:
    """A tensor's name without adapters; None for a tensor of an adapter."""
    for above in _above(name):
        if above in wrapped:
            inner = name[len(above) + 1 :]
            return f"{above}.{inner.removeprefix('base_layer.')}" if inner.startswith("base_layer.") else None
    return name


def transposed(module: nn.Module) -> bool:
    """Whether a layer holds its weight as (d_in, d_out), as GPT-2's do."""
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, Conv1D)


def pairs(spec: Spec) -> dict[str, tuple[Entry, Entry]]:
    """Module -> its (B, A)."""
    of = {(entry.module, entry.role): entry for entry in spec}
    return {e.module: (e, of[e.module, Role.FACTOR_A]) for e in spec if e.role is Role.FACTOR_B}


def weights(trained: Trained, wanted: Wanted = everything) -> dict[str, Tensor]:
    """Every wanted tensor of the model with nothing attached, on the CPU; those of tied names are one tensor.

    Raises:
        CotuneError: E_CONFLICT when a change to one layer would change another that its weight is tied to, or a weight
            is quantised.
    """
    model = trained.backbone.model
    wrapped, layers = _wrapped(model), modules(model)
    rules = {entry.name for entry in trained.spec if entry.role is Role.RULE}
    state, tied = _frozen(model, wrapped, rules)
    for entry in trained.spec:
        if entry.role in (Role.FULL, Role.HEAD) and entry.name in trained.tensors:
            name = plain_name(entry.name, wrapped) or entry.name
            placed = trained.tensors[entry.name].to(state[name].device, state[name].dtype)
            state |= dict.fromkeys(tied[name], placed)
    state = {name: tensor.detach().cpu() for name, tensor in state.items() if wanted(name)}
    for name, tensor in state.items():
        if name.endswith(".weight") and not tensor.is_floating_point():
            _refuse("a quantised weight has no plain form", name, tensor.dtype)
    for module in changed(trained):
        name, products = f"{module}.weight", terms(trained, module)
        if not (products and wanted(name)):
            continue
        if len(tied[name]) > 1:
            _refuse("a tied weight cannot take a change of its own", module, f"the weight of {', '.join(tied[name])}")
        delta = torch.stack([scale * (b.double() @ a.double()) for scale, b, a in products]).sum(0)
        delta = delta.mT if transposed(layers[module]) else delta
        state[name] = (state[name].double() + delta).to(state[name].dtype)
    return state


def _frozen(
    model: nn.Module, wrapped: Mapping[str, nn.Module], rules: Collection[str]
) -> tuple[dict[str, Tensor], dict[str, list[str]]]:
    """Plain name -> tensor, and plain name -> every name of that tensor; `rules` stand beside the model."""
    state, names = dict[str, Tensor](), defaultdict[int, list[str]](list)
    for attached, tensor in model.state_dict(keep_vars=True).items():
        name = plain_name(attached, wrapped)
        if name is not None and attached not in rules:
            state[name] = tensor
            names[id(tensor)].append(name)
    return state, {name: group for group in names.values() for name in group}


def _refuse(what: str, where: str, got: object) -> NoReturn:
    raise CotuneError(Code.CONFLICT, what, where=where, got=got, fix="export the adapter alone")


def changed(trained: Trained) -> list[str]:
    """The modules that factors or base deltas change, in the model's order."""
    touched = {*pairs(trained.spec), *trained.base}
    return [name for name in modules(trained.backbone.model) if name in touched]


def terms(trained: Trained, module: str) -> list[tuple[float, Tensor, Tensor]]:
    """(scale, B, A) of everything that is added to a module; a dense base delta comes beside an identity."""
    found = []
    for b, a in [pair for name, pair in pairs(trained.spec).items() if name == module]:
        if b.name in trained.tensors and a.name in trained.tensors:
            found.append((b.scale, trained.tensors[b.name].cpu(), trained.tensors[a.name].cpu()))
    if module in trained.base.factors:
        left, right = trained.base.factors[module]
        found.append((1.0, left, right) if right.numel() else (1.0, *factored(left)))
    return found


def factored(dense: Tensor) -> tuple[Tensor, Tensor]:
    """A dense matrix as two factors, exactly: itself beside the smaller identity."""
    d_out, d_in = dense.shape
    return (torch.eye(d_out), dense) if d_out < d_in else (dense, torch.eye(d_in))


def _wrapped(model: nn.Module) -> dict[str, nn.Module]:
    """Name -> what it wraps, of every adapted layer."""
    return {name: m._modules["base_layer"] for name, m in model.named_modules() if m._modules.get("base_layer")}


def _above(name: str) -> Iterator[str]:
    """`a`, `a.b` of `a.b.c`."""
    for at, sign in enumerate(name):
        if sign == ".":
            yield name[:at]
