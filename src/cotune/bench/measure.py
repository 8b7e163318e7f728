"""Times and bytes for benchmarks: repeats that take turns, process time, peaks in a process of their own."""

from __future__ import annotations

import gc
import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

LIBRARIES = ("cotune", "torch", "numpy")


@dataclass(frozen=True)
class Figure:
    """One number that we hold against a rival's.

    Attributes:
        name: what is compared, with whom.
        ours: median over repeats, in `unit`.
        rival: the same of the rival.
        ratio: how much better ours is: above 1, ours is.
        unit: of `ours` and `rival`.
        spread: half the range between the quartiles of the repeats' own ratios, over their median.
        goal: the ratio to reach; None where there is none.
        met: whether it is reached; None where it is not judged.
    """

    name: str
    ours: float
    rival: float
    ratio: float
    unit: str
    spread: float
    goal: float | None = None
    met: bool | None = None

    def unjudged(self) -> Figure:
        """The same, of settings that say nothing about the goal."""
        return replace(self, met=None)

    def as_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


def compared(
    name: str,
    ours: Sequence[float],
    rival: Sequence[float],
    unit: str,
    goal: float | None = None,
    *,
    more_is_better: bool = False,
) -> Figure:
    """The figure of repeats that were measured pair by pair.

    Args:
        name: what is compared, with whom.
        ours: a value a repeat.
        rival: the same of the rival, from the same repeats.
        unit: of both.
        goal: the ratio to reach.
        more_is_better: as with a throughput; else less is, as with a time.
    """

    def better(a: float, b: float) -> float:
        return a / b if more_is_better else b / a

    ratios = sorted(better(a, b) for a, b in zip(ours, rival, strict=True))
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    mine, theirs = statistics.median(ours), statistics.median(rival)
    ratio = better(mine, theirs)
    spread = (high - low) / 2 / statistics.median(ratios)
    return Figure(name, mine, theirs, ratio, unit, spread, goal, None if goal is None else ratio >= goal)


def interleaved(jobs: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of process time of every repeat of every job; jobs take turns, so that a busy machine hits all alike."""
    for job in jobs.values():
        job()
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    names = list(jobs)
    gc.collect()
    gc.disable()
    try:
        for i in range(repeats):
            turn = i % len(names)
            for name in names[turn:] + names[:turn]:
                start = time.process_time()
                jobs[name]()
                seconds[name].append(time.process_time() - start)
    finally:
        gc.enable()
    return seconds


def peak_bytes(prepare: Callable[..., Callable[[], object]], *args: Any) -> int:
    """How far a job lifts the resident memory of a fresh process of one thread, at its highest.

    Args:
        prepare: called there with `args`, it returns the job; a function of a module.
        args: what can be sent to a process.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_lifted, prepare, args).result()


def _lifted(prepare: Callable[..., Callable[[], object]], args: tuple[Any, ...]) -> int:
    import torch

    torch.set_num_threads(1)
    job = prepare(*args)
    rise = Rise()
    job()
    return rise.bytes


class Rise:
    """How far the resident memory of this process has risen since this was made, at its highest.

    What was once needed lies above what is in use, and would hide the first bytes of what comes: it is filled up.

    Attributes:
        resident: bytes that were in use then.
    """

    def __init__(self) -> None:
        gc.collect()
        self.resident = int(psutil.Process().memory_info().rss)
        self._ballast = bytearray(max(_highest() - self.resident, 0))
        self._ballast[:: 2**12] = b"\1" * len(self._ballast[:: 2**12])
        self._before = _highest()

    @property
    def bytes(self) -> int:
        """So far."""
        return _highest() - self._before


def _highest() -> int:
    """The most bytes that were ever resident in this process."""
    status = Path("/proc/self/status")  # getrusage would count the parent's, from before this process was itself
    if status.exists():
        line = next(line for line in status.read_text("ascii").splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def machine() -> dict[str, Any]:
    """The processor, how many, and how much memory."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
    }


def _processor() -> str:
    about = Path("/proc/cpuinfo")
    if about.exists():
        for line in about.read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def load() -> float:
    """Processes that wanted to run, a mean over the last minute."""
    return round(float(psutil.getloadavg()[0]), 2)


def versions() -> dict[str, str]:
    """Of Python and of the libraries that do the work."""
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in LIBRARIES}}
