"""Where a backbone comes from: one reference, one of five sources, all answering the same three questions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch

from cotune.backbone.builtin import Random
from cotune.backbone.hf import local
from cotune.backbone.hub import hub
from cotune.backbone.package import MODELS, package
from cotune.backbone.shipped import shipped
from cotune.core.errors import Code, CotuneError
from cotune.core.reference import parse

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


class Source(Protocol):
    """Where a backbone comes from; nothing is read before it is asked for."""

    def config(self) -> PreTrainedConfig:
        """The model's configuration."""
        ...

    def tokenizer(self) -> Any:
        """The tokenizer that goes with the model."""
        ...

    def model(self, kind: Any, config: PreTrainedConfig, dtype: torch.dtype, attention: str) -> tuple[Any, list[str]]:
        """The model of an auto class, and the names of weights that were drawn because no file has them."""
        ...


def source(text: str, revision: str | None, say: Callable[[str], None] | None = None) -> Source:
    """The source that a reference names.

    Args:
        text: the reference.
        revision: of a hub id, when it is not in the reference.
        say: is told one line before a download.

    Raises:
        CotuneError: E_CONFIG when the reference names no backbone.
    """
    ref = parse(text)
    if revision and (ref.scheme != "hub" or ref.revision not in (None, revision)):
        what = "two revisions of one model" if ref.scheme == "hub" else "only a hub id has revisions"
        raise CotuneError(Code.CONFIG, what, where=text, got=revision)
    if ref.config is not None:
        raise CotuneError(Code.CONFIG, "a model has no configurations to choose from", where=text, got=ref.config)
    match ref.scheme:
        case "random":
            return Random(ref).checked()
        case "builtin":
            return shipped(ref)
        case "pkg":
            return package(ref, say)
        case "path":
            return local(ref)
        case "hub":
            return hub(ref, revision or ref.revision, say)
    packaged = ", ".join(f"pkg:{name}" for name in sorted(MODELS))
    raise CotuneError(
        Code.CONFIG,
        "'synth:' names data, not a backbone",
        where=text,
        expected=f"ORG/NAME, a local folder, builtin:NAME, {packaged}, or random:ARCH",
    )
