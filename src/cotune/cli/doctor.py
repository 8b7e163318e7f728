"""`cotune doctor`: this machine as cotune sees it."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import psutil
from rich.filesize import decimal

from cotune.core.errors import CotuneError
from cotune.fetch import cache_root

LIBRARIES = ("torch", "transformers", "peft", "datasets", "safetensors", "numpy", "pydantic", "typer", "rich", "plotly")
_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+).*;.*extra\s*==\s*['\"](?P<extra>[^'\"]+)['\"]")


def report() -> Iterator[str]:
    """One line a finding, as they are found; a line of `warning` says what is odd and what to do."""
    yield f"cotune {_version('cotune')} · python {platform.python_version()} · {sys.executable}"
    yield f"machine {platform.system()} {platform.machine()} · {_cores()} · {_memory()}"
    yield f"libraries {', '.join(f'{name} {_version(name)}' for name in LIBRARIES)}"
    yield from _torch()
    yield from _cache(cache_root())
    for extra, names in sorted(extras().items()):
        absent = [name for name in names if not _installed(name)]
        missing = f"not installed: {', '.join(absent)} · pip install 'cotune[{extra}]'"
        yield f"extra {extra} · {missing if absent else 'installed'}"
    yield from _recipes()


def costs(reference: str, shape: tuple[int, int], device: str) -> Iterator[str]:
    """What every recipe will cost on a backbone, and whether it fits here, before anything is loaded.

    Args:
        reference: of the backbone.
        shape: (rows, tokens) of a batch.
        device: where it would run.

    Raises:
        CotuneError: when the backbone's configuration cannot be had, or no recipe fits it.
    """
    from cotune import resolve
    from cotune.backbone import Backbone
    from cotune.estimate import estimate, measured_flops
    from cotune.store import Table

    backbone, heads = Backbone(ref=reference, device=device), ("causal", "classification")
    speed = measured_flops(backbone.threads, device)
    free = psutil.virtual_memory().available
    rows = []
    for name in resolve.recipes():
        for head in heads:
            try:
                cost = estimate(resolve.recipe(name), backbone, head, 2, shape)
            except CotuneError as error:
                last = error
                continue
            fits = "fits" if cost.training_bytes < free else "does not fit"
            seconds = f"{cost.step_flops / speed:.3g}"
            memory = decimal(cost.training_bytes)
            rows.append((name, head, f"{cost.trained:,}", memory, fits, f"{cost.step_flops / 1e9:.4g}", seconds))
            break
    if not rows:
        raise last
    yield f"{reference} · {cost.parameters:,} weights, {decimal(cost.weight_bytes)} as {backbone.dtype}"
    here = f"{backbone.threads} thread at {speed / 1e9:.0f} GFLOP/s · {decimal(free)} free"
    yield f"a batch of {shape[0]} x {shape[1]} tokens · {here}"
    columns = ("row", "head", "trains", "memory", "here", "GFLOP a step", "seconds a step")
    yield str(Table(columns, rows))


def extras() -> dict[str, list[str]]:
    """Extra -> the distributions that it asks for, from the metadata of the installed package."""
    found: dict[str, list[str]] = {}
    for line in metadata.requires("cotune") or ():
        if asked := _REQUIREMENT.match(line):
            found.setdefault(asked["extra"], []).append(asked["name"])
    return found


def torch_warnings(cuda_build: str | None, gpus: int, gpu_here: bool) -> list[str]:
    """What does not fit between torch's build and the machine.

    Args:
        cuda_build: the CUDA version that torch was built for, or None.
        gpus: how many devices torch sees.
        gpu_here: whether the machine has an NVIDIA device at all.
    """
    if cuda_build and not gpus:
        if gpu_here:
            return [f"warning: torch is built for CUDA {cuda_build} and there is a GPU, but torch cannot use it"]
        return [f"warning: torch is built for CUDA {cuda_build}, without a GPU here · a CPU build is far smaller"]
    if gpu_here and not cuda_build:
        return ["warning: there is a GPU here, but torch is a CPU build · install a CUDA build"]
    return []


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return importlib.util.find_spec(name.replace("-", "_")) is not None
    return True


def _cores() -> str:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{usable} of {os.cpu_count()} cores"


def _memory() -> str:
    memory = psutil.virtual_memory()
    return f"{decimal(memory.available)} of {decimal(memory.total)} memory free"


def _torch() -> Iterator[str]:
    import torch

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
    count = torch.cuda.device_count() if torch.version.cuda else 0
    devices = ["cpu", *(f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(count))]
    devices += ["mps"] if torch.backends.mps.is_available() else []
    threads = torch.get_num_threads()
    yield f"torch {torch.__version__} · {build} build · devices: {', '.join(devices)} · {threads} threads"
    yield from torch_warnings(torch.version.cuda, count, Path("/dev/nvidiactl").exists())


def _cache(root: Path) -> Iterator[str]:
    packages = sorted(path for path in (root / "packages").glob("*") if path.is_dir())
    held = [f"{path.name.rpartition('-')[0]} ({decimal(_size(path))})" for path in packages]
    yield f"cache {root} · {', '.join(held) or 'nothing in it yet'}"


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _recipes() -> Iterator[str]:
    from cotune import resolve

    problems: dict[str, str] = {}
    for name in resolve.recipes():
        try:
            resolve.recipe(name)
        except CotuneError as error:
            problems[name] = str(error)
    able = [name for name in resolve.recipes() if name not in problems]
    yield f"recipes that can run here: {', '.join(able) or 'none'}"
    for name, problem in problems.items():
        yield f"recipe {name} cannot · {problem}"
