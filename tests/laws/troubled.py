"""A part that does to its process, once for each client named, what processes suffer; found by name in any process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from cotune.core.contracts import Penalty
from cotune.core.view import NamedTensors, View

KIND = "troubled:Troubled"
SECRET = "a row of somebody"


class Troubled(Penalty):
    """Zero, but the first time that a client named here trains, in its round, its process comes to harm.

    Attributes:
        folder: where each trouble leaves a file, so that it comes once.
        harm: client -> (round, what): kill, raise or sleep.
    """

    kind: ClassVar[str] = "troubled"
    folder: str
    harm: Mapping[str, tuple[int, str]]

    def __call__(self, tensors: NamedTensors, view: View) -> Tensor:
        """Zero, if it comes to that."""
        round_, what = self.harm.get(view.client, (0, ""))
        mark = Path(self.folder) / f"{view.client}-{what}"
        if round_ == view.round and not mark.exists():
            mark.write_text(str(os.getpid()))
            match what:
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "sleep":
                    time.sleep(600)
                case _:
                    raise ValueError(SECRET)
        return next(iter(tensors.values())).sum() * 0
