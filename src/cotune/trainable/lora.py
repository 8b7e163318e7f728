"""LoRA through peft: frozen W plus (alpha / r) · B A, with B (d_out, r) and A (r, d_in).

Layers come from peft, so an adapter made here loads anywhere; which layers, by name or peft's own choice for the
architecture. A starts uniform in ±1/√d_in (peft's Kaiming start) beside B = 0, or B with orthonormal columns beside
A = 0; drawn by name from the derived seed, so that it depends neither on the order of injection nor on the global
generator. There is no dropout: forwards of one client are the same whoever ran before.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
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

# What peft knows and we refuse, since it is no product of two factors or makes clients differ: its name -> why.
REFUSED: Mapping[str, str] = {
    "use_dora": "its magnitudes are not linear in B A, so that products cannot be added",
    "use_qalora": "its factors act on groups of inputs",
    "use_bdlora": "its factors are blocks",
    "lora_bias": "a bias beside the factors is no part of B A",
    "bias": "trained biases are no part of B A",
    "lora_dropout": "forwards of a client would depend on who ran before",
    "init_lora_weights": "starts that change the frozen weight give every client another backbone; see `init`",
    "rank_pattern": "all layers have one rank; clients' ranks differ by federation.groups",
    "alpha_pattern": "all layers have one alpha",
    "layer_replication": "copied layers share one frozen weight",
    "modules_to_save": "the head alone trains in whole; see `head`",
    "trainable_token_indices": "embeddings do not train",
    "loftq_config": "it changes the frozen weight",
    "eva_config": "its start comes from the data of one client",
    "corda_config": "its start comes from the data of one client",
    "use_rslora": "it is called `stabilised` here",
}


# What `targets = None` adapts where peft names nothing for an architecture. Of Mamba's layers these are the two that
# its forward pass calls: of conv1d, dt_proj and out_proj it, or a kernel, reads the weights, past what stands beside.
DEFAULTS: Mapping[str, Targets] = {"mamba": ("in_proj", "x_proj")}


class LoRA(Trainable):
    """Low-rank factors beside frozen weights, (alpha / r) · B A, and the head.

    Attributes:
        rank: r of the server's factors; groups of clients may hold less.
        alpha: over r, or over √r, the factor in front of every product.
        stabilised: whether it is √r (rank-stabilised LoRA).
        targets: names of layers, or ends of them; None for what peft adapts by default for the architecture, or we.
        train: which factor trains; `alternate` trains B in odd rounds and A in even ones.
        init: `peft`: A at random, B = 0; `orthonormal-b`: B with orthonormal columns, A = 0.
        head: of the task.
    """

    kind: ClassVar[str] = "lora"
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.FACTORS})
    rank: Annotated[int, Field(ge=1, le=4096)] = 8
    alpha: Annotated[float, Field(gt=0)] = 16.0
    stabilised: bool = False
    targets: Targets | None = None
    train: Literal["both", "A", "B", "alternate"] = "both"
    init: Literal["peft", "orthonormal-b"] = "peft"
    head: Head = "shared"

    @model_validator(mode="before")
    @classmethod
    def _supported(cls, value: Any) -> Any:
        for name in value if isinstance(value, Mapping) else ():
            if name in REFUSED:
                raise CotuneError(Code.CONFIG, f"no adapters with '{name}'", where="trainable", fix=REFUSED[name])
        return value

    @model_validator(mode="after")
    def _can_train(self) -> LoRA:
        first = "A" if self.init == "orthonormal-b" else "B"
        if self.train in ("A", "B") and self.train != first:
            raise ValueError(
                f"train = '{self.train}' with init = '{self.init}': {first} is 0 and frozen, so that no factor would "
                f"ever move; train '{first}' or both"
            )
        return self

    def attach(self, backbone: Attachable, seed: int, share: Share) -> tuple[Theta, Personal, Spec]:
        """Injects the layers, once for a model, and returns their start."""
        modules = self._inject(backbone)
        rows, values = [], {}
        for name, module in modules.items():
            for role, inner in ((Role.FACTOR_A, "lora_A"), (Role.FACTOR_B, "lora_B")):
                full_name = f"{name}.{inner}.{ADAPTER}.weight"
                parameter = module.get_parameter(f"{inner}.{ADAPTER}.weight")
                falls = 0.5 if self.stabilised else 1.0
                scale = self.alpha / self.rank**falls
                rows.append(Entry(full_name, tuple(parameter.shape), role, name, scale=scale, falls=falls))
                values[full_name] = self._start(tuple(parameter.shape), role, derive(seed, "lora", full_name))
        head = head_entries(backbone, self.head)
        parameters = dict(backbone.model.named_parameters())
        values |= {entry.name: parameters[entry.name].detach().float().clone() for entry in head}
        spec = Spec((*rows, *head)).sharing(share)
        theta, personal = spec.divide(values)
        return theta, personal, spec

    def scope(self, spec: Spec, round_: int) -> Scope:
        """What `train` names, and the head; a frozen factor neither goes up nor comes down, both sides derive it.

        Where factors alternate, the one that rests in this round has moved in others: it comes down.
        """
        alternate = "B" if (round_ % 2 == 1) == (self.init == "peft") else "A"
        moving = alternate if self.train == "alternate" else self.train
        idle = {"both": (), "A": (Role.FACTOR_B,), "B": (Role.FACTOR_A,)}[moving]
        train = tuple(entry.name for entry in spec if entry.role not in idle)
        up = tuple(name for name in train if spec[name].shared)
        return Scope(train=train, up=up, down=spec.shared if self.train == "alternate" else up)

    def fit(self, theta: Theta, spec: Spec) -> Theta:
        """The leading rows of A and columns of B, as many as the client's rank; its own scale is taken out of B."""
        fitted = {}
        for name, tensor in theta.items():
            entry, axis = spec[name], spec[name].rank_axis
            if axis is None or tensor.shape == entry.shape:
                fitted[name] = tensor
                continue
            rank = entry.shape[axis]
            gain = (rank / tensor.shape[axis]) ** entry.falls if entry.role is Role.FACTOR_B else 1.0
            fitted[name] = (tensor.narrow(axis, 0, rank).double() * gain).to(tensor.dtype).contiguous()
        return Theta(fitted)

    def restart(self, theta: Theta, spec: Spec, seed: int) -> Theta:
        """New numbers for every factor in theta, each by its name."""
        factors = [entry for pair in spec.pairs.values() for entry in pair if entry.name in theta]
        return theta.replace({e.name: self._start(e.shape, e.role, derive(seed, "lora", e.name)) for e in factors})

    def adapter(self, trained: Trained) -> Mapping[str, bytes]:
        """A plain peft folder."""
        return adapter.adapter(trained)

    def weights(self, trained: Trained) -> Mapping[str, Tensor]:
        """The model with every product added to its weight."""
        return plain.weights(trained)

    def _start(self, shape: tuple[int, ...], role: Role, seed: int) -> Tensor:
        zero = Role.FACTOR_A if self.init == "orthonormal-b" else Role.FACTOR_B
        if role is zero:
            return torch.zeros(shape)
        if role is Role.FACTOR_A:
            bound = shape[1] ** -0.5
            return torch.empty(shape).uniform_(-bound, bound, generator=torch_generator(seed))
        d_out, rank = shape
        if rank > d_out:
            raise CotuneError(
                Code.CONFIG,
                "a layer has fewer outputs than the rank, so that no B has orthonormal columns",
                where="trainable.rank",
                got=rank,
                expected=f"at most {d_out}",
            )
        normal = torch.randn(d_out, rank, generator=torch_generator(seed), dtype=torch.float64)
        start: Tensor = torch.linalg.qr(normal).Q.float().contiguous()
        return start

    def _inject(self, backbone: Attachable) -> dict[str, nn.Module]:
        from peft import LoraConfig, inject_adapter_in_model
        from peft.tuners.lora import LoraLayer

        model = backbone.model
        if any(isinstance(module, LoraLayer) for module in model.modules()):
            raise CotuneError(
                Code.CONFLICT, "the backbone has LoRA layers already", fix="load it again for another run"
            )
        kind = getattr(getattr(model, "config", None), "model_type", "")
        named = DEFAULTS.get(kind) if self.targets is None else self.targets
        targets = list(named) if isinstance(named, tuple) else named
        config = LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha,  # type: ignore[arg-type]  # a factor, not a count
            target_modules=targets,
            exclude_modules=sorted({name.rpartition(".")[0] for name in backbone.head}) or None,
            bias="none",
            lora_dropout=0.0,
            use_rslora=self.stabilised,
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
        odd = [name for name in layers if not _plain(model.get_submodule(name))]
        if odd:
            raise CotuneError(
                Code.CONFIG,
                "no low-rank factors for this kind of layer",
                where="trainable.targets",
                got=f"{odd[0]} ({type(model.get_submodule(odd[0])).__name__})",
                expected="linear layers",
            )
        # Only the new layers: `model.eval()` would undo gradient checkpointing, which asks a layer whether it trains.
        return {name: model.get_submodule(name).eval() for name in layers}


def _plain(layer: nn.Module) -> bool:
    """Whether an adapted layer is W x + s B A x, with two matrices for B and A and nothing else."""
    parts: Any = layer
    return all(
        ADAPTER in getattr(parts, half, {}) and isinstance(getattr(parts, half)[ADAPTER], nn.Linear)
        for half in ("lora_A", "lora_B")
    )
