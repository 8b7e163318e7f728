"""What a memory rule is made of, as a frozen value."""

from __future__ import annotations

from typing import Annotated, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

Rule = Literal["delta", "gated-delta", "hebbian", "titans"]


class Rules(BaseModel):
    """The options of the memory beside each attention layer.

    Keys and queries are the raw projections before any rotation; what is done to them comes in the order below.

    Attributes:
        rule: delta: S += β (v − S k) kᵀ; gated-delta: the same on a S; hebbian: S += β v kᵀ; titans: with momentum.
        shift: a key is mixed with the key of the token before it, k_t + μ (k_{t−1} − k_t), μ learned for each head and
            ½ at the start: so the value of a token is stored under what came before it.
        centre: keys and queries lose a learned offset, 0 at the start: raw keys of real models are nearly parallel.
        silu: keys and queries go through x · sigmoid(x).
        beta: the step size: 'scalar', sigmoid(w · k + b) for each head, or 'vector', the sigmoid of a filter over the
            last three raw keys, for each channel.
        beta_start: of the scalar form.
        beta_max: the largest step; up to 2 the memory is stable, above 1 it overshoots.
        decay_start: a, where the rule has one.
        momentum_start: of titans.
        value_scale: what values are multiplied by: 1, or 1/√width.
        norm: whether what is read is divided by its root mean square over all heads.
        gate: how much of the output is memory, α for each query head: 'tanh' of a learned a, which is 0 at the start,
            so that the model starts as its backbone; 'sigmoid' of a learned a; or 'constant'.
        gate_start: α at the start of 'sigmoid', and α of 'constant'.
        chunk: tokens of a block of the parallel form.
        cap: the largest norm of a head's state between calls of a session.
        start: where rules begin: 'documented' above, or 'random': each number a standard normal draw from there.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    rule: Rule = "delta"
    shift: bool = False
    centre: bool = False
    silu: bool = False
    beta: Literal["scalar", "vector"] = "scalar"
    beta_start: Annotated[float, Field(gt=0, lt=2)] = 0.5
    beta_max: Annotated[float, Field(gt=0, le=2)] = 1.0
    decay_start: Annotated[float, Field(gt=0, lt=1)] = 0.999
    momentum_start: Annotated[float, Field(gt=0, lt=1)] = 0.5
    value_scale: Literal["one", "root-width"] = "one"
    norm: bool = False
    gate: Literal["tanh", "sigmoid", "constant"] = "tanh"
    gate_start: Annotated[float, Field(ge=0, le=1)] = 0.5
    chunk: Annotated[int, Field(ge=1, le=1024)] = 64
    kernel: Literal["torch", "fla"] = "torch"
    cap: Annotated[float, Field(gt=0)] = 1e3

    @model_validator(mode="after")
    def _kernel_can(self) -> Self:
        if self.kernel == "fla" and (self.beta == "vector" or self.rule not in ("delta", "gated-delta")):
            raise ValueError(f"kernel 'fla' has no {self.rule} rule with a {self.beta} step")
        return self

    start: Literal["documented", "random"] = "documented"

    @model_validator(mode="after")
    def _possible(self) -> Rules:
        if self.gate == "sigmoid" and self.gate_start in (0, 1):
            raise ValueError(f"a sigmoid never is {self.gate_start:g}: start the gate between 0 and 1")
        return self

    @property
    def decays(self) -> bool:
        """Whether the state decays."""
        return self.rule in ("gated-delta", "titans")

    @property
    def correction(self) -> Literal["delta", "hebbian"]:
        """Whether what the memory answers already is taken off what is written."""
        return "hebbian" if self.rule == "hebbian" else "delta"

    @property
    def looks_back(self) -> bool:
        """Whether a token's rule needs the keys of the tokens before it."""
        return self.shift or self.beta == "vector"

    def alpha(self, gate: Tensor) -> Tensor:
        """The share of memory in the output of each query head, of its learned a."""
        return torch.tanh(gate) if self.gate == "tanh" else torch.sigmoid(gate)
