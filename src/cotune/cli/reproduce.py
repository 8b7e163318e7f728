"""`cotune reproduce`: a published result and ours, from what it will need to the page that it leaves."""

from __future__ import annotations

from pathlib import Path

from cotune.cli.compare import say


def reproduce(name: str, scale: str, out: Path, *, seeds: int | None, jobs: int) -> None:
    """Carry a reproduction out, print its page, and say where it is.

    Args:
        name: of the reproduction.
        scale: 'laptop' or 'paper'.
        out: the folder of run folders.
        seeds: how many; None for as many as it was made for.
        jobs: runs at once.

    Raises:
        CotuneError: E_CONFIG for an unknown name or scale, and whatever a run raises.
    """
    print(f"loading {name}", flush=True)  # before the libraries, which take a second or more
    from cotune.reproduce import reproduce as carry_out

    found = carry_out(name, scale, out, seeds=seeds, jobs=jobs, say=say)
    print(f"\n{found.page.text()}\n\nfolder {found.folder}", flush=True)
