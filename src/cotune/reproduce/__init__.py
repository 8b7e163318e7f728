"""Published results and ours, side by side: one file a reproduction, one line here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cotune.core.errors import Code, CotuneError, nearest
from cotune.core.events import Say, silent
from cotune.reproduce.ablation import FedNLAblation
from cotune.reproduce.mmlu import FedNLMMLU
from cotune.reproduce.needle import FedNLNeedle
from cotune.reproduce.reproduction import Found, Laptop, Reproduction
from cotune.reproduce.spzo import SPZOPrompted
from cotune.reproduce.stream import FedNLStream
from cotune.reproduce.subspace import SubspaceHellaSwag

__all__ = ["REPRODUCTIONS", "Found", "Laptop", "Reproduction", "named"]

REPRODUCTIONS: Mapping[str, type[Reproduction]] = {
    FedNLMMLU.name: FedNLMMLU,
    FedNLNeedle.name: FedNLNeedle,
    FedNLAblation.name: FedNLAblation,
    FedNLStream.name: FedNLStream,
    SubspaceHellaSwag.name: SubspaceHellaSwag,
    SPZOPrompted.name: SPZOPrompted,
}


def named(name: str) -> Reproduction:
    """The reproduction of this name.

    Raises:
        CotuneError: E_CONFIG when there is none.
    """
    if name not in REPRODUCTIONS:
        raise CotuneError(
            Code.CONFIG, f"no reproduction '{name}'", where="cotune reproduce", fix=nearest(name, REPRODUCTIONS)
        )
    return REPRODUCTIONS[name]()


def reproduce(
    name: str, scale: str, out: Path | str = "runs", *, seeds: int | None = None, jobs: int = 1, say: Say = silent
) -> Found:
    """Carry a reproduction out at a scale, 'laptop' or 'paper', and leave its page in its run folder.

    Args:
        name: of the reproduction.
        scale: the synthetic one that runs here, or the published model and data, which need a hub.
        out: the folder of run folders.
        seeds: how many; None for as many as it was made for.
        jobs: runs at once, each in a process of its own.
        say: is told one line at a time what happens.

    Raises:
        CotuneError: E_CONFIG for an unknown name or scale, and whatever a run raises.
    """
    found = named(name)
    match scale:
        case "laptop":
            return found.laptop(Laptop(Path(out), seeds=seeds or found.seeds, jobs=jobs, say=say))
        case "paper":
            return found.published(Path(out), say)
    raise CotuneError(Code.CONFIG, f"no scale '{scale}'", where="--scale", expected="laptop or paper")
