"""The rules of a memory as two files of an adapter folder: their values, and what they were trained beside.

peft reads neither of them: it loads the factors that may lie there too, and the memory is put back by
`cotune.attach_memory`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import safetensors
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from cotune.core.errors import Code, CotuneError, one_line
from cotune.core.explain import explain
from cotune.core.state import from_bytes, to_bytes
from cotune.trainable.memory.options import Rules
from cotune.trainable.memory.sites import Site

VERSION = 1  # of the two files
TENSORS, CONFIG = "memory_rules.safetensors", "memory_config.json"


class Saved(BaseModel):
    """memory_config.json.

    Attributes:
        version: of the two files.
        backbone: what the rules were trained on, as other libraries name it.
        revision: of a hub id.
        window: tokens that softmax attention saw in training; None for all.
        sinks: first tokens that stayed visible beside the window.
        rules: the options of the memory.
        sites: the attention layers that have one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    backbone: str
    revision: str | None = None
    window: Annotated[int, Field(ge=2)] | None = None
    sinks: Annotated[int, Field(ge=0)] = 0
    rules: Rules
    sites: tuple[Site, ...]

    def files(self, tensors: Mapping[str, Tensor]) -> dict[str, bytes]:
        """File name -> content; the same bytes for the same values."""
        text = json.dumps(self.model_dump(mode="json"), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        return {TENSORS: to_bytes(tensors, {"format": "pt"}), CONFIG: text.encode()}


def read(folder: Path) -> tuple[Saved, dict[str, Tensor]]:
    """What the two files of a folder hold.

    Raises:
        CotuneError: E_MODEL where they are missing or cannot be read, E_VERSION for those of another version, E_CONFIG
            for an option that is not known.
    """
    for name in (CONFIG, TENSORS):
        if not (folder / name).is_file():
            raise CotuneError(
                Code.MODEL, "no memory is in the folder", where=str(folder), expected=name, fix="name an adapter folder"
            )
    try:
        about: Any = json.loads((folder / CONFIG).read_text("utf-8"))
        tensors = from_bytes((folder / TENSORS).read_bytes())
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise CotuneError(
            Code.MODEL, "cannot read the memory", where=str(folder), got=one_line(str(error), 160)
        ) from error
    version = about.get("version") if isinstance(about, dict) else None
    if version != VERSION:
        raise CotuneError(Code.VERSION, "a memory of another version", where=CONFIG, got=version, expected=VERSION)
    try:
        return Saved.model_validate(about), tensors
    except ValidationError as error:
        raise explain(error, Saved, CONFIG) from error
