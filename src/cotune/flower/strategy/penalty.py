"""A client's side of Subspace-Reg: the penalty that its own training loop adds to the loss.

| key of the round's config | what |
|---|---|
| `subspace-mu` | of the pull towards the product that came down |
| `subspace-ridge` | of the ridge on both factors |
| `subspace-basis` | of the pull towards the B that came down |
| `subspace-reduction` | whether pairs are averaged or added |
| `subspace-anchor` | the record whose factors are meant: the arrays of the round, before training |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from flwr.app import ArrayRecord
from torch import Tensor, nn

from cotune.core.contracts import Penalty
from cotune.core.errors import Code, CotuneError
from cotune.core.part import resolve
from cotune.core.seeds import Seeds
from cotune.core.spec import Scope, Spec
from cotune.core.state import Personal, Theta
from cotune.core.view import View
from cotune.flower.strategy.arrays import layout_of, tensors_of
from cotune.flower.strategy.table import paired, parameters
from cotune.penalty import KINDS

MU, RIDGE, BASIS = "subspace-mu", "subspace-ridge", "subspace-basis"
REDUCTION, ANCHOR = "subspace-reduction", "subspace-anchor"


def terms(config: Mapping[str, Any]) -> tuple[Penalty, ...]:
    """The parts that a round's config asks for.

    Raises:
        CotuneError: E_CONFIG where it says nothing about them, or what no penalty takes.
    """
    if MU not in config:
        fix = "run SubspaceRegAvg on the server, or give one"
        raise CotuneError(Code.CONFIG, f"no '{MU}' in the round's config", fix=fix)
    reduction = config.get(REDUCTION, "mean-pairs")
    tables: list[dict[str, Any]] = [
        {"kind": "subspace", "mu": config[MU]},
        {"kind": "ridge", "strength": config.get(RIDGE, 0.0)},
        {"kind": "basis", "alpha": config.get(BASIS, 0.0)},
    ]
    parts = [resolve("penalties", KINDS, {**table, "reduction": reduction}) for table in tables]
    return tuple(part for part in parts if isinstance(part, Penalty))


def subspace_penalty(
    model: nn.Module, arrays: ArrayRecord, config: Mapping[str, Any], adapter: str = "default"
) -> Callable[[], Tensor]:
    """μ/2 · mean ‖s B A − s B_g A_g‖² + λ/2 · mean (‖A‖² + ‖B‖²) + α/2 · mean ‖B − B_g‖², as a function of the model.

    Called once a round, with the arrays that came down; what it returns is called at every step, and is 0-dim and
    differentiable. s is what PEFT puts in front of each product. With gradient accumulation, divide by the number of
    portions, as the loss is.

    Args:
        model: with a LoRA adapter, and in it the parameters that train.
        arrays: of the round, by PEFT's names.
        config: of the round.
        adapter: its name in the model.

    Raises:
        CotuneError: E_KEYS, E_SHAPE for arrays without LoRA pairs, or that the model does not have; E_CONFIG.
    """
    penalties, spec = terms(config), paired(layout_of(arrays))
    factors = tuple(entry for pair in spec.pairs.values() for entry in pair)
    places = parameters(model, [entry.name for entry in factors], adapter)
    spec = Spec(tuple(replace(e, scale=_scale(model, places[e.name], adapter)) for e in factors))
    live = {name: model.get_parameter(place) for name, place in places.items()}
    sent = tensors_of(arrays)
    anchor = Theta({name: sent[name].to(parameter.device, torch.float32) for name, parameter in live.items()})
    view = _view(spec, anchor)

    def penalty() -> Tensor:
        tensors = {name: parameter.float() for name, parameter in live.items()}
        return torch.stack([part(tensors, view) for part in penalties]).sum()

    return penalty


def _scale(model: nn.Module, parameter: str, adapter: str) -> float:
    """α / r as the layer of a factor has it."""
    layer = model.get_submodule(parameter.rpartition(".lora_")[0])
    scaling = getattr(layer, "scaling", None)
    if not isinstance(scaling, Mapping) or adapter not in scaling:
        raise CotuneError(
            Code.MODEL, f"no adapter '{adapter}'", where=parameter, fix="give the model of get_peft_model"
        )
    return float(scaling[adapter])


def _view(spec: Spec, anchor: Theta) -> View:
    """What penalties see: the round's start, and that everything trains."""
    scope = Scope(spec.names, spec.names, spec.names)
    return View(1, "", anchor, Personal(), {}, anchor, {}, Seeds(), spec, scope)
