"""One client with all rows: what a site of a deployment is to itself."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Annotated, ClassVar

from pydantic import AfterValidator

from cotune.core.contracts import Row
from cotune.task.column import client_names
from cotune.task.dealing import enough
from cotune.task.partition import Partition


def _safe(name: str) -> str:
    if client_names([name]) != [name]:
        raise ValueError("a client's name is the name of a folder: at most 40 of A-Z, a-z, 0-9, '.', '_' and '-'")
    return name


class Alone(Partition):
    """All rows to one client of a given name, as where a site has rows of its own and no others."""

    kind: ClassVar[str] = "alone"

    client: Annotated[str, AfterValidator(_safe)]

    def split(self, rows: Sequence[Row], labels: Sequence[Hashable], seed: int) -> dict[str, list[int]]:
        """The client -> all positions."""
        del labels, seed
        enough(len(rows), 1, 1, f"alone, {self.client}")
        return {self.client: list(range(len(rows)))}
