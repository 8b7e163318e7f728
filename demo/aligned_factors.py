"""The demo's Subspace-Reg row: the clients of the first minute again, and how their factors lie to each other.

Three rows on the same clients, batches and steps: factors averaged one by one, products added and split with an
orthonormal B, and the same with Subspace-Reg's penalties. Overlap is high wherever B is orthonormal and steps are
short: the last column is that of the same rounds with random updates of the same lengths, without data.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import first_minute

import cotune as ct
from cotune.reproduce.nodata import simulated
from cotune.store import Table

ROWS = ("lora-fedavg", "orthonormal-b", "subspace-reg")
COLUMNS = ("row", "perplexity", "overlap", "client-global cosine", "pairwise cosine", "‖B‖", "overlap without data")
Say = Callable[[str], None]


def experiment(row: str) -> ct.Experiment:
    """The experiment of the first minute, by another row; `lora-fedavg` is that one itself."""
    ground = first_minute.experiment()
    if row == ROWS[0]:
        return ground
    return ground.model_copy(update={"name": row, "method": ct.recipe(row, steps=10, batch=8, lr=5e-3)})


def aligned_factors(out: Path, say: Say) -> Table:
    """One line a row, of the last round; the run of the first minute, which is in `out`, is not repeated."""
    rows = []
    for row in ROWS:
        own = row != ROWS[0]
        run = ct.run(experiment(row), out=out, resume=True, fresh=own, watch=first_minute.watcher(say, row))
        last, nobody = run.rounds[-1], simulated(run)[-1]
        told = ("basis_overlap", "client_global_cosine", "pairwise_cosine", "norm_b")
        cells = [f"{last.diagnostics[name]:.4f}" for name in told]
        perplexity = last.global_metrics["perplexity"].value
        rows.append((row, f"{perplexity:.2f}", *cells, f"{nobody['basis_overlap']:.4f}"))
    return Table(COLUMNS, rows)
