"""FedNL's trainable: low-rank factors on queries, keys and values, and the rules of a memory beside each attention.

Three levels (Federated Nested Learning, arXiv 2605.16350): within a sequence the memory S is written token by token,
each time by one gradient step on ½‖S k − v‖² (see README.md); a client trains the rules that write and read it, through
the whole trajectory of S; the server averages rules. S itself starts at zero with every sequence and never travels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

import torch
from pydantic import model_validator
from torch import Tensor

from cotune.core.contracts import Attachable, Backbone, Trained
from cotune.core.errors import Code, CotuneError
from cotune.core.part import Capability
from cotune.core.seeds import derive, torch_generator
from cotune.core.spec import Entry, Role, Scope, Share, Spec
from cotune.core.state import Personal, Theta
from cotune.core.view import NamedTensors
from cotune.trainable.head import head_entries
from cotune.trainable.lora import LoRA
from cotune.trainable.memory.attach import CHILD, attach
from cotune.trainable.memory.centre import centres
from cotune.trainable.memory.layer import MemoryLayer
from cotune.trainable.memory.options import Rules
from cotune.trainable.memory.saved import Saved
from cotune.trainable.memory.sites import targets


class Memory(LoRA):
    """A delta-rule memory beside every attention layer, rules that write and read it, and LoRA on q, k and v.

    Attributes:
        rules: of the memory.
        factors: whether there is LoRA; its targets are what the memory listens to, unless they are named.
        train_rules: whether the rules train; where they do not, they stay as they start, and do not travel.
        centre_text: a reference of public text, with a column `text`, whose mean raw keys and queries the offsets of
            `rules.centre` start from, instead of 0; never a client's own.
    """

    kind: ClassVar[str] = "memory"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.DECODER})

    rules: Rules = Rules()
    factors: bool = True
    train_rules: bool = True
    centre_text: str | None = None

    @model_validator(mode="after")
    def _centred(self) -> Self:
        if self.centre_text is not None and not self.rules.centre:
            raise ValueError("centre_text is where offsets start, and rules.centre is off")
        return self

    @property
    def public(self) -> str | None:
        """The text that the offsets start from."""
        return self.centre_text

    def started(self, backbone: Backbone, tensors: NamedTensors, windows: Sequence[Sequence[int]]) -> NamedTensors:
        """The mean raw key and query of every head over the text, in the frozen backbone."""
        del tensors
        return centres(backbone.model, windows, backbone.device)

    def attach(self, backbone: Attachable, seed: int, share: Share) -> tuple[Theta, Personal, Spec]:
        """Attaches factors and memories, once for a model, and returns their start."""
        if self.factors:
            lora = LoRA(**{name: getattr(self, name) for name in LoRA.model_fields})
            lora = lora if lora.targets else lora.model_copy(update={"targets": targets(backbone)})
            theta, personal, spec = lora.attach(backbone, seed, "all")
            values = {**theta, **personal}
        else:
            spec = Spec(tuple(head_entries(backbone, self.head)))
            parameters = dict(backbone.model.named_parameters())
            values = {entry.name: parameters[entry.name].detach().float().clone() for entry in spec}
        rows = []
        for module, memory in attach(backbone, self.rules).items():
            for name, parameter in memory.named_parameters():
                rows.append(Entry(f"{module}.{name}", tuple(parameter.shape), Role.RULE, module))
                values[f"{module}.{name}"] = self._first(f"{module}.{name}", parameter, seed)
        spec = Spec((*spec, *rows)).sharing(share)
        return (*spec.divide(values), spec)

    def scope(self, spec: Spec, round_: int) -> Scope:
        """As of LoRA; rules that do not train neither go up nor come down."""
        whole = super().scope(spec, round_)
        if self.train_rules:
            return whole
        kinds = (whole.train, whole.up, whole.down)
        return Scope(*(tuple(name for name in names if spec[name].role is not Role.RULE) for names in kinds))

    def describe(self, theta: Theta, spec: Spec) -> Mapping[str, float]:
        """`gate/LAYER`: the mean |α| over the query heads of a layer, where the gate is a shared rule."""
        found = {}
        for entry in spec:
            if entry.role is Role.RULE and entry.name.endswith(f".{CHILD}.gate") and entry.name in theta:
                layer = next(part for part in entry.name.split(".") if part.isdecimal())
                found[f"gate/{layer}"] = float(self.rules.alpha(theta[entry.name]).abs().mean())
        return found

    def adapter(self, trained: Trained) -> Mapping[str, bytes]:
        """A plain peft folder of the factors, where there are any, and the rules beside it, which peft does not read.

        Where there is no peft folder, the head and what else no file has come with the rules.
        """
        model = trained.backbone.model
        files = dict(super().adapter(trained)) if self.factors or trained.base else {}
        tensors = {e.name: trained.tensors[e.name] for e in trained.spec if e.role is Role.RULE}
        for name in () if files else (*trained.backbone.head, *trained.backbone.drawn):
            tensors[name] = trained.tensors.get(name, model.get_parameter(name)).float()
        saved = Saved(
            backbone=trained.origin,
            revision=trained.revision,
            window=trained.window,
            sinks=trained.sinks,
            rules=self.rules,
            sites=tuple(module.site for module in model.modules() if isinstance(module, MemoryLayer)),
        )
        return {**files, **saved.files(tensors)}

    def weights(self, trained: Trained) -> Mapping[str, Tensor]:
        """The frozen model, of nothing trained.

        Raises:
            CotuneError: E_CONFLICT where something is: a memory is no weight of the model.
        """
        if trained.tensors:
            raise CotuneError(
                Code.CONFLICT,
                "a memory is no weight of the model, so it cannot be merged into one",
                where="method.trainable",
                fix="export the adapter: leave --merge out",
            )
        return super().weights(trained)

    def _first(self, name: str, rule: Tensor, seed: int) -> Tensor:
        """A rule before training, the same for every client."""
        start = rule.detach().clone()
        if self.rules.start == "documented" or start.is_meta:
            return start
        return start + torch.randn(start.shape, generator=torch_generator(derive(seed, "rules", name)))
