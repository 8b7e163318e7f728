"""The pages of a report, in the order of their tabs; a page with nothing to show is None, and has no tab."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cotune.report.pages.clients import clients
from cotune.report.pages.convergence import convergence
from cotune.report.pages.cost import cost
from cotune.report.pages.memory import memory
from cotune.report.pages.overview import overview
from cotune.report.pages.subspace import subspace
from cotune.report.pages.zeroth_order import zeroth_order
from cotune.report.plot import Page
from cotune.report.shown import Shown

PAGES: tuple[Callable[[Sequence[Shown]], Page | None], ...] = (
    overview,
    convergence,
    clients,
    memory,
    subspace,
    zeroth_order,
    cost,
)
