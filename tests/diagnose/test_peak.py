"""Peak memory sees what was allocated and given back in between."""

from __future__ import annotations

import mmap
import threading
import time

import psutil
import pytest
from psutil import Process

from cotune.diagnose.peak import INTERVAL_SECONDS, PeakMemory

SIZE = 64 * 2**20


def touched() -> mmap.mmap:
    """Fresh pages, every one of them written: an allocator might hand out what it has kept."""
    block = mmap.mmap(-1, SIZE)
    for start in range(0, SIZE, mmap.PAGESIZE):
        block[start] = 1
    return block


def test_an_allocation_that_is_gone_at_the_end_is_seen() -> None:
    before = Process().memory_info().rss
    with PeakMemory() as peak:
        block = touched()
        time.sleep(6 * INTERVAL_SECONDS)
        block.close()
        after = Process().memory_info().rss
    assert after - before < SIZE / 4, "the control: at the end nothing shows"
    assert peak.bytes - before > 0.95 * SIZE


def test_an_allocation_that_is_still_there_is_seen_however_short_the_stretch() -> None:
    before = Process().memory_info().rss
    with PeakMemory() as peak:
        block = touched()
    assert peak.bytes - before > 0.95 * SIZE
    block.close()


def test_no_thread_is_left_after_the_end_or_an_exception() -> None:
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError), PeakMemory() as peak:
        raise ZeroDivisionError
    assert threading.active_count() == before
    assert 0 < peak.bytes <= psutil.virtual_memory().total
