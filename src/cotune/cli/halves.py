"""What cutting a model in two is worth to zeroth-order descent, as it is shown."""

from __future__ import annotations

from cotune.cuts import PEER, Cuts
from cotune.store import Table


def halves(found: Cuts) -> str:
    """A line for each cut, and how to set the one that saves most."""
    best = found.best
    if best is None:
        return "cuts: none has something to train on both sides"
    rows = []
    for cut in found.cuts:
        cells = [cut.cost_share, cut.number_share, cut.energy_ratio, cut.saving(1), cut.saving(cut.again)]
        shown = [f"{cell:.3g}" for cell in (*cells, cut.saving(cut.again, PEER))]
        mark = " *" if cut is best else ""
        rows.append([f"{cut.layer}{mark}", *shown[:4], str(cut.again), *shown[4:]])
    heads = ("cut", "F2/F", "d2/d", "R", "saving, P_s = 1", "P_s", "saving there", f"over forward, P = {PEER}")
    table = "\n".join(f"  {line}" for line in str(Table(heads, rows)).split("\n"))
    frozen = f"; the first {found.frozen} layers are frozen and not counted" if found.frozen else ""
    return (
        "cuts: the gradient's energy behind over that in front (R) at the start, exact, "
        f"mean of {found.batches} batches{frozen}\n"
        f"{table}\n"
        "  saving: FLOPs of a precision by central differences of the whole model over those in halves; of variance\n"
        "  alone, see cotune.diagnose.energy\n"
        f"  * --set method.optimizer.cut={best.layer} --set method.optimizer.again={best.again}"
    )
