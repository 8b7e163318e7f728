"""How many workers a machine has room for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil
import torch
from rich.filesize import decimal

SPARED = 0.2  # of the free memory: for activations, gradients and replies
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Room:
    """What there is, and what one worker takes.

    Attributes:
        cores: that this process may use.
        free: bytes of memory.
        each: bytes that one more process with the same setup adds.
        gpus: CUDA devices.
    """

    cores: int
    free: int
    each: int
    gpus: int

    @classmethod
    def measured(cls) -> Self:
        """Of this machine, by this process, which has the same setup loaded.

        Weights that are memory-mapped are not counted again: all processes share their pages.
        """
        process = psutil.Process()
        memory = process.memory_info()
        each = memory.rss - memory.shared if hasattr(memory, "shared") else process.memory_full_info().uss
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
        return cls(len(allowed), _free(), int(each), torch.cuda.device_count())


def capacity(asked: int | None, clients: int, threads: int, device: str, room: Room) -> tuple[int, str]:
    """How many workers there can be, and a line that says why they are fewer than asked for; else no line.

    Args:
        asked: workers; None for as many as there can be.
        clients: more workers than clients have nothing to do.
        threads: of each worker.
        device: of each worker: `cuda` is one GPU a worker, `cuda:1` is that one, for one worker.
        room: of the machine.
    """
    limits = [
        (room.cores // threads, f"{room.cores} cores, threads = {threads}"),
        (int(room.free * (1 - SPARED)) // max(room.each, 1), f"{decimal(room.free)} free, {decimal(room.each)} each"),
    ]
    if device.partition(":")[0] == "cuda":
        limits.append((room.gpus if device == "cuda" else 1, f"device {device}, one GPU a worker"))
    most, why = min(limits, key=lambda limit: limit[0])
    most = max(most, 1)
    wanted = min(most if asked is None else asked, max(clients, 1))
    if wanted <= most:
        return wanted, ""
    return most, f"{most} of {asked} workers · {why}"


def device_of(device: str, place: int) -> str:
    """The device of the worker at a place: `cuda` is one GPU each."""
    return f"cuda:{place}" if device == "cuda" else device


def _free() -> int:
    """Bytes of memory that can be had: the machine's, or what is left of the control group's limit."""
    free = int(psutil.virtual_memory().available)
    try:
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        rows = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such group, or no limit: `max`
        return free
    return max(0, min(free, limit - used + int(rows.get("inactive_file", 0))))
