"""LoRA through peft: frozen W plus (alpha / r) · B A, with B (d_out, r) and A (r, d_in).

Layers come from peft, so an adapter made here loads anywhere; which layers, by name or peft's own choice for the
architecture. A starts uniform in ±1/√d_in (peft's Kaiming start), drawn by name from the derived seed, so that it
depends neither on the order of injection nor on the global generator; B starts at 0. There is no dropout: forwards of
one client are the same whoever ran before.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from cotune.core.contracts import Attachable, Trainable, Trained
from cotune.core.errors import Code, CotuneError
from cotune.core.part import Capability
from cotune.core.seeds import derive, torch_generator
from cotune.core.spec import Entry, Role, Scope, Share, Spec
from cotune.core.state import Personal, Theta
from cotune.trainable import adapter, plain
from cotune.trainable.head import Head, head_entries

ADAPTER = "default"
Targets = tuple[str, ...] | Literal["all-linear"]


class LoRA(Trainable):
    """Low-rank factors beside frozen weights, (alpha / r) · B A, and the head."""

    kind: ClassVar[str] = "lora"
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.FACTORS})
    rank: Annotated[int, Field(ge=1, le=4096)] = 8
    alpha: Annotated[float, Field(gt=0)] = 16.0
    targets: Targets | None = None  # None: what peft adapts by default for the architecture
    train: Literal["both", "A", "B"] = "both"
    head: Head = "shared"

    def attach(self, backbone: Attachable, seed: int, share: Share) -> tuple[Theta, Personal, Spec]:
        """Injects the layers, once for a model, and returns their start."""
        modules = self._inject(backbone)
        rows, values = [], {}
        for name, module in modules.items():
            for role, inner in ((Role.FACTOR_A, "lora_A"), (Role.FACTOR_B, "lora_B")):
                full_name = f"{name}.{inner}.{ADAPTER}.weight"
                parameter = module.get_parameter(f"{inner}.{ADAPTER}.weight")
                rows.append(Entry(full_name, tuple(parameter.shape), role, name, scale=self.alpha / self.rank))
                values[full_name] = _start(parameter, role, derive(seed, "lora", full_name))
        head = head_entries(backbone, self.head)
        parameters = dict(backbone.model.named_parameters())
        values |= {entry.name: parameters[entry.name].detach().float().clone() for entry in head}
        spec = Spec((*rows, *head)).sharing(share)
        theta, personal = spec.divide(values)
        return theta, personal, spec

    def scope(self, spec: Spec, round_: int) -> Scope:
        """What `train` names, and the head; a frozen factor neither goes up nor comes down, both sides derive it."""
        del round_
        idle = {"both": (), "A": (Role.FACTOR_B,), "B": (Role.FACTOR_A,)}[self.train]
        train = tuple(entry.name for entry in spec if entry.role not in idle)
        shared = tuple(name for name in train if spec[name].shared)
        return Scope(train=train, up=shared, down=shared)

    def fit(self, theta: Theta, spec: Spec) -> Theta:
        """The leading rows of A and columns of B, as many as the client's rank."""
        fitted = {}
        for name, tensor in theta.items():
            axis = spec[name].rank_axis
            fitted[name] = tensor if axis is None else tensor.narrow(axis, 0, spec[name].shape[axis]).contiguous()
        return Theta(fitted)

    def adapter(self, trained: Trained) -> Mapping[str, bytes]:
        """A plain peft folder."""
        return adapter.adapter(trained)

    def weights(self, trained: Trained) -> Mapping[str, Tensor]:
        """The model with every product added to its weight."""
        return plain.weights(trained)

    def _inject(self, backbone: Attachable) -> dict[str, nn.Module]:
        from peft import LoraConfig, inject_adapter_in_model
        from peft.tuners.lora import LoraLayer

        model = backbone.model
        if any(isinstance(module, LoraLayer) for module in model.modules()):
            raise CotuneError(
                Code.CONFLICT, "the backbone has LoRA layers already", fix="load it again for another run"
            )
        targets = list(self.targets) if isinstance(self.targets, tuple) else self.targets
        config = LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha,  # type: ignore[arg-type]  # a factor, not a count
            target_modules=targets,
            exclude_modules=sorted({name.rpartition(".")[0] for name in backbone.head}) or None,
            bias="none",
            lora_dropout=0.0,
        )
        try:
            with warnings.catch_warnings():
                # peft adjusts fan_in_fan_out for GPT-2's transposed layers and says so; the factors stay as documented.
                warnings.filterwarnings("ignore", message="fan_in_fan_out")
                inject_adapter_in_model(config, model, adapter_name=ADAPTER)
        except ValueError as error:
            raise CotuneError(
                Code.CONFIG, "no layer to adapt", where="trainable.targets", got=str(error).split(". ")[0]
            ) from error
        model.requires_grad_(requires_grad=False)
        layers = [name for name, module in model.named_modules() if isinstance(module, LoraLayer)]
        # Only the new layers: `model.eval()` would undo gradient checkpointing, which asks a layer whether it trains.
        return {name: model.get_submodule(name).eval() for name in layers}


def _start(parameter: Tensor, role: Role, seed: int) -> Tensor:
    if role is Role.FACTOR_B:
        return torch.zeros(parameter.shape)
    bound = parameter.shape[1] ** -0.5
    return torch.empty(parameter.shape).uniform_(-bound, bound, generator=torch_generator(seed))
