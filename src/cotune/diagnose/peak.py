"""The largest resident memory of this process over a stretch of time."""

from __future__ import annotations

import threading
from types import TracebackType

import psutil

INTERVAL_SECONDS = 0.05


class PeakMemory:
    """`with PeakMemory() as peak: ...; peak.bytes`: resident bytes, sampled twenty times a second by a thread."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.bytes = 0

    def __enter__(self) -> PeakMemory:
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()

    def _watch(self) -> None:
        while not self._stop.wait(INTERVAL_SECONDS):
            self._sample()

    def _sample(self) -> None:
        self.bytes = max(self.bytes, int(self._process.memory_info().rss))
