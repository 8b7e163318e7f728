"""Backbones in the Hugging Face layout: one loader for a local folder, a hub snapshot and a package's folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from cotune.core.errors import Code, CotuneError, one_line
from cotune.core.reference import Reference

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
_VOCABULARIES = ("tokenizer.json", "vocab.*", "*.model", "*.spm", "*.tiktoken")
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack")


@dataclass(frozen=True)
class Folder:
    """A folder with a config, a tokenizer and safetensors weights.

    Attributes:
        where: how the user named it.
        find: the folder on this machine; `find(False)` when its config is all that is needed.
    """

    where: str
    find: Callable[[bool], Path]

    def config(self) -> PreTrainedConfig:
        """The model's configuration, as it lies in the folder."""
        from transformers import AutoConfig

        folder = self.find(False)
        if not (folder / "config.json").is_file():
            found = "adapter_config.json" if (folder / "adapter_config.json").is_file() else "no config.json"
            raise CotuneError(Code.MODEL, "the folder is no model", where=self.where, got=found, expected="config.json")
        with reading(Code.MODEL, "cannot read the model's config", self.where):
            config: PreTrainedConfig = AutoConfig.from_pretrained(folder, **_LOCAL)
        return config

    def tokenizer(self) -> Any:
        """The tokenizer in the folder."""
        from transformers import AutoTokenizer

        folder = self.find(True)
        if not any(any(folder.glob(pattern)) for pattern in _VOCABULARIES):
            raise CotuneError(
                Code.TOKENIZER,
                "the folder has no tokenizer",
                where=self.where,
                expected="tokenizer.json",
                fix="save it there with tokenizer.save_pretrained",
            )
        with reading(Code.TOKENIZER, "cannot read the tokenizer", self.where):
            return AutoTokenizer.from_pretrained(folder, **_LOCAL)

    def model(self, kind: Any, config: PreTrainedConfig, dtype: torch.dtype, attention: str) -> tuple[Any, list[str]]:
        """The model, and the names of weights that the folder does not have: those are drawn at random."""
        folder = self.find(True)
        if not any(folder.glob("*.safetensors")):
            pickled = next((file.name for file in sorted(folder.iterdir()) if file.suffix in _PICKLED), None)
            raise CotuneError(
                Code.MODEL,
                "weights are read from safetensors alone",
                where=self.where,
                got=pickled or "no weights",
                expected="model.safetensors",
                fix="save them with model.save_pretrained" if pickled else "",
            )
        if (folder / "adapter_config.json").is_file():
            raise CotuneError(
                Code.MODEL, "the folder has an adapter beside the model", where=self.where, fix="merge or remove it"
            )
        model, report = kind.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=attention,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **_LOCAL,
        )
        return model, sorted({*report["missing_keys"], *(row[0] for row in report["mismatched_keys"])})


@contextmanager
def reading(code: Code, what: str, where: str) -> Iterator[None]:
    """Turn whatever a library raises while it reads a model into one line."""
    try:
        yield
    except CotuneError:
        raise
    except Exception as error:
        reason = one_line(str(error), 200) or type(error).__name__
        raise CotuneError(code, what, where=where, got=reason) from error


def local(ref: Reference) -> Folder:
    """The folder that a `path` reference names; whether there is one is found out when it is needed."""

    def find(_whole: bool) -> Path:
        if not ref.path.is_dir():
            found = "a file" if ref.path.exists() else "nothing there"
            raise CotuneError(Code.MODEL, "no such folder", where=ref.text, got=found, expected="a model's folder")
        return ref.path

    return Folder(ref.text, find)
