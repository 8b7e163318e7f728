"""A backbone as a configuration, and what loading it gives: a frozen model, its tokenizer, and their digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import nn

from cotune.backbone import tokens
from cotune.backbone.checkpointing import recompute
from cotune.backbone.head import attends, auto_class, check_complete, gives, head_names
from cotune.backbone.hf import reading
from cotune.backbone.layers import trunk
from cotune.backbone.quantized import Quantization, check_installed, hush, mark, quantize
from cotune.backbone.quiet import quiet
from cotune.backbone.source import Source, source
from cotune.backbone.window import limit_attention
from cotune.core.errors import Code
from cotune.core.part import Capability
from cotune.core.state import digest

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

# What a saved config says about its file, its task and its run rather than about what the weights compute.
_ABOUT_THE_FILE = ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype", "use_cache")
_BESIDE = frozenset((*_ABOUT_THE_FILE, "id2label", "label2id", "num_labels", "problem_type"))


@dataclass(frozen=True, eq=False)
class Loaded:
    """A loaded backbone: everything in it is frozen.

    Attributes:
        model: in evaluation mode; nothing in it requires a gradient.
        head: parameter names of a head that is new, none for a language model.
        tokenizer: pads to the right, and has a padding token.
        config: what it was loaded by.
        digest: SHA-256 of the model's configuration and of every weight but the head's before it was quantised, 64 hex
            digits.
        tokenizer_digest: SHA-256 of what decides the token ids, 64 hex digits.
        gives: `split`, `causal`, `decoder`.
        limit: the most tokens of one input.
        drawn: parameter names outside the head that no file has, a new pooler say: drawn by seed.
    """

    model: nn.Module
    head: tuple[str, ...]
    tokenizer: Any
    config: Backbone
    digest: str
    tokenizer_digest: str
    gives: frozenset[Capability]
    limit: int
    drawn: tuple[str, ...] = ()

    @property
    def device(self) -> str:
        """Where the model is."""
        return self.config.device

    @property
    def trunk(self) -> nn.Module:
        """The module that runs the layers."""
        return trunk(self.model)


@dataclass(frozen=True, eq=False)
class Skeleton:
    """The shapes of a backbone: a model on the `meta` device, which has no numbers.

    Attributes:
        model: of the same modules, names, shapes and dtypes as the loaded one.
        head: parameter names of a head that is new, none for a language model.
        gives: as of the loaded one.
    """

    model: nn.Module
    head: tuple[str, ...]
    gives: frozenset[Capability]

    @property
    def trunk(self) -> nn.Module:
        """The module that runs the layers."""
        return trunk(self.model)


class Backbone(BaseModel):
    """The frozen model that clients train beside.

    Attributes:
        ref: `ORG/NAME[@revision]`, a local folder, `builtin:NAME`, `pkg:NAME` or `random:ARCH?key=value`.
        revision: of a hub id, when it is not in `ref`.
        device: where the model lives.
        dtype: of its weights.
        quantization: of the linear layers between embedding and head.
        attention: which kernel.
        threads: of torch in this process; part of the experiment, because they change bits.
        gradient_checkpointing: keep the inputs of layers alone, and run each again in the backward pass.
        max_tokens: the most tokens of one input, where that is less than the model's own limit; with a window and
            rotary positions there is no other limit.
        window: tokens that softmax attention sees, the token itself among them; None for all.
        sinks: first tokens of a row that stay visible beside the window.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    ref: str
    revision: str | None = None
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    quantization: Quantization | None = None
    attention: Literal["sdpa", "eager"] = "sdpa"
    threads: int = Field(default=1, ge=1, le=1024)
    gradient_checkpointing: bool = False
    max_tokens: int | None = Field(default=None, ge=1)
    window: int | None = Field(default=None, ge=2)
    sinks: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _named(self) -> Self:
        source(self.ref, self.revision)
        if self.sinks and self.window is None:
            raise ValueError("sinks stay visible beside a window, and there is no window")
        return self

    def load(self, head: str, labels: int, seed: int, say: Callable[[str], None] | None = None) -> Loaded:
        """The model with its head, ready to be attached to.

        Args:
            head: one of `head.HEADS`.
            labels: how many classes; used by a classification head alone.
            seed: of weights that no file has: the head, or everything in a `random:` backbone.
            say: is told one line before a download.

        Raises:
            CotuneError: E_MODEL or E_TOKENIZER when it cannot be had or does not fit, E_CONFIG for a device that this
                machine does not have.
        """
        with reading(Code.CONFIG, "cannot use the device", self.device):
            torch.empty(0, device=self.device)
        if self.quantization:
            check_installed(self.ref)
        torch.set_num_threads(self.threads)
        origin = source(self.ref, self.revision, say)
        with quiet():
            config, identity, kind = self._plan(origin, head, labels)
            tokenizer = origin.tokenizer()
            padding = tokens.pad(tokenizer, self.ref)
            with _drawing(seed), reading(Code.MODEL, "cannot load the model", self.ref):
                model, absent = origin.model(kind, config, getattr(torch, self.dtype), self._kernel(config))
            names = head_names(model, head)
            check_complete(absent, names, self.ref)
            tokens.check_rows(tokenizer, model.get_input_embeddings().num_embeddings, self.ref)
            model.config.pad_token_id = padding
            model.requires_grad_(False).eval()
            weights = {name: parameter for name, parameter in model.named_parameters() if name not in names}
            said = f"{identity}|{digest(weights)}"
            if self.quantization:
                said += f"|{self.quantization}"
                quantize(model, self.quantization, names, self.ref)
            model.to(self.device)
            if self.gradient_checkpointing:
                recompute(model, self.ref)
            if self.window:
                limit_attention(model, self.window, self.sinks, self.ref)
        return Loaded(
            model=model,
            head=names,
            tokenizer=tokenizer,
            config=self,
            digest=hashlib.sha256(said.encode()).hexdigest(),
            tokenizer_digest=tokens.digest(tokenizer),
            gives=gives(config, head),
            limit=tokens.limit(tokenizer, model, config, self.max_tokens, windowed=self.window is not None),
            drawn=tuple(name for name in absent if name not in names),
        )

    def skeleton(self, head: str, labels: int) -> Skeleton:
        """The model's shapes, from its configuration alone: no weights are read, drawn or stored."""
        with quiet(), reading(Code.MODEL, "cannot build the model", self.ref):
            config, _, kind = self._plan(source(self.ref, self.revision), head, labels)
            attention = self._kernel(config)
            with torch.device("meta"):
                model = kind.from_config(config, dtype=getattr(torch, self.dtype), attn_implementation=attention)
        names = head_names(model, head)
        if self.quantization:
            mark(model, names, self.ref)
        if self.window:
            limit_attention(model, self.window, self.sinks, self.ref)
        return Skeleton(model.requires_grad_(False).eval(), names, gives(config, head))

    def _kernel(self, config: PreTrainedConfig) -> str:
        """The kernel of attention, as transformers asks for one: an architecture without attention takes `eager`."""
        return self.attention if attends(config) else "eager"

    def _plan(self, origin: Source, head: str, labels: int) -> tuple[PreTrainedConfig, str, Any]:
        """The configuration with its labels, what it says about the backbone alone, and the class to build."""
        hush()
        config = origin.config()
        fields = {key: value for key, value in config.to_diff_dict().items() if key not in _BESIDE}
        kind = auto_class(config, head, labels, self.ref)
        if head == "classification":
            config.num_labels = labels
        return config, json.dumps(fields, sort_keys=True, default=str), kind


@contextmanager
def _drawing(seed: int) -> Iterator[None]:
    """Libraries draw new weights from torch's CPU generator: inside it starts at `seed`, after that it is as before."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
