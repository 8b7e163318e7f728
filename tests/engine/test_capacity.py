"""How many workers there are: what was asked for, as far as cores, memory and GPUs go."""

from __future__ import annotations

import os

import psutil
import pytest

from cotune.core.errors import Code, CotuneError
from cotune.engine import InlineEngine, named
from cotune.engine.capacity import Room, capacity, device_of

GIB = 2**30
ROOM = Room(cores=8, free=64 * GIB, each=GIB, gpus=2)


@pytest.mark.parametrize(
    ("asked", "of", "expected", "said"),
    [
        (4, (100, 1, "cpu"), 4, ""),
        (8, (100, 1, "cpu"), 8, ""),
        (9, (100, 1, "cpu"), 8, "8 of 9 workers · 8 cores"),
        (4, (100, 4, "cpu"), 2, "2 of 4 workers · 8 cores, threads = 4"),
        (4, (3, 1, "cpu"), 3, ""),
        (1, (100, 16, "cpu"), 1, ""),
        (None, (100, 1, "cpu"), 8, ""),
        (None, (3, 1, "cpu"), 3, ""),
        (4, (100, 1, "cuda"), 2, "2 of 4 workers · device cuda, one GPU a worker"),
        (2, (100, 1, "cuda:1"), 1, "1 of 2 workers · device cuda:1"),
    ],
)
def test_workers_are_as_many_as_asked_for_or_as_there_is_room_for_and_a_line_says_so(
    asked: int | None, of: tuple[int, int, str], expected: int, said: str
) -> None:
    count, line = capacity(asked, *of, ROOM)
    assert count == expected
    assert line.startswith(said)
    assert bool(line) == bool(said)


def test_memory_keeps_a_fifth_free_and_always_leaves_one_worker() -> None:
    short = Room(cores=8, free=5 * GIB, each=GIB, gpus=0)
    assert capacity(5, 100, 1, "cpu", short) == (4, "4 of 5 workers · 5.4 GB free, 1.1 GB each")
    assert capacity(5, 100, 1, "cpu", Room(cores=8, free=0, each=GIB, gpus=0))[0] == 1


def test_room_is_measured_on_this_machine() -> None:
    room, memory = Room.measured(), psutil.virtual_memory()
    assert 1 <= room.cores <= (os.cpu_count() or 1)
    assert 0 < room.each <= psutil.Process().memory_info().rss
    assert room.each < room.free <= memory.total


def test_each_worker_has_a_gpu_of_its_own_unless_one_is_named() -> None:
    assert [device_of("cuda", place) for place in range(3)] == ["cuda:0", "cuda:1", "cuda:2"]
    assert device_of("cuda:1", 0) == "cuda:1"
    assert device_of("cpu", 5) == "cpu"


@pytest.mark.parametrize(
    ("name", "workers", "hint"),
    [("pol", None, "did you mean 'pool'?"), ("pool", 0, "got 0"), ("inline", 2, "use engine pool")],
)
def test_an_engine_that_is_not_there_is_refused(name: str, workers: int | None, hint: str) -> None:
    with pytest.raises(CotuneError) as caught:
        named(name, workers)
    assert caught.value.code is Code.CONFIG
    assert hint in str(caught.value)
    assert named("inline") is InlineEngine
