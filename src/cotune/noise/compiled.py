"""The compiled path of the stream, for tensors on the CPU: no direction is ever written down. Needs the extra `fast`.

The functions are plain Python that numba compiles when they are first called, and keeps beside this file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from cotune.noise import philox
from cotune.noise.vectorised import Wide, Words

BLOCK, BITS, ROUNDS = philox.BLOCK, philox.BITS, philox.ROUNDS
M0, M1 = np.uint64(philox.M0), np.uint64(philox.M1)
W0, W1 = np.uint32(philox.W0), np.uint32(philox.W1)
HALF = np.uint64(32)
TILE = 8  # blocks at once: words of so many are made in vectors, and what they move stays in the fastest cache


def _compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`function` as machine code; kept on disk where there is a place for it."""
    try:
        made: Callable[..., Any] = numba.njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:  # neither this folder nor the user's cache can be written to
        made = numba.njit(nogil=True, **options)(function)
    return made


def _tile(made: Words, seed: np.uint64, stream: np.uint64, first: np.uint64) -> None:
    """Words 0 … 3 of blocks `first` … of one direction: made (4, TILE)."""
    for i in range(TILE):
        index = first + np.uint64(i)
        c0, c1, c2, c3 = np.uint32(index), np.uint32(index >> HALF), np.uint32(stream), np.uint32(stream >> HALF)
        k0, k1 = np.uint32(seed), np.uint32(seed >> HALF)
        for _ in range(ROUNDS):
            p0, p1 = np.uint64(c0) * M0, np.uint64(c2) * M1
            c0, c1, c2, c3 = (
                np.uint32(np.uint32(p1 >> HALF) ^ c1 ^ k0),
                np.uint32(p1),
                np.uint32(np.uint32(p0 >> HALF) ^ c3 ^ k1),
                np.uint32(p0),
            )
            k0, k1 = np.uint32(k0 + W0), np.uint32(k1 + W1)
        made[0, i], made[1, i], made[2, i], made[3, i] = c0, c1, c2, c3


_philox = _compiled(_tile, inline="always")


def _words(made: Words, keys: Wide, first: np.uint64) -> None:
    tile = np.empty((4, TILE), np.uint32)
    for d in range(made.shape[0]):
        for at in range(0, made.shape[1], TILE):
            _philox(tile, keys[d, 0], keys[d, 1], first + np.uint64(at))
            for i in range(min(TILE, made.shape[1] - at)):
                for j in range(4):
                    made[d, at + i, j] = tile[j, i]


def _adding(float_: type, whole: type) -> Callable[..., Any]:
    """The pass over numbers of one dtype, given the unsigned integer of its size."""
    last = whole(8 * np.dtype(float_).itemsize - 1)
    top = whole(1) << last  # the bit of the sign

    def add(flat: NDArray[Any], raw: NDArray[Any], keys: Wide, first: np.uint64, skip: int) -> None:
        tile, blocks = np.empty((4, TILE), np.uint32), (skip + len(flat) + BLOCK - 1) // BLOCK
        for at in range(0, blocks, TILE):
            for d in range(len(keys)):
                _philox(tile, keys[d, 0], keys[d, 1], first + np.uint64(at))
                c = raw[d]
                for i in range(min(TILE, blocks - at)):
                    low = (at + i) * BLOCK - skip
                    begin, end = max(low, 0), min(low + BLOCK, len(flat))
                    if end - begin == BLOCK:
                        for j in range(4):  # a loop of fixed length over a slice: the compiler makes vectors of it
                            part, word = flat[begin + j * BITS : begin + (j + 1) * BITS], whole(tile[j, i])
                            for k in range(BITS):
                                part[k] += whole(whole(whole(word << whole(last - k)) & top) ^ c).view(float_)
                    else:
                        for n in range(begin, end):
                            j, k = (n - low) // BITS, (n - low) % BITS
                            word = whole(tile[j, i])
                            flat[n] += whole(whole(whole(word << whole(last - k)) & top) ^ c).view(float_)

    return _compiled(add)


_fill = _compiled(_words)
_pass = {4: _adding(np.float32, np.uint32), 8: _adding(np.float64, np.uint64)}


def words(seeds: Wide, streams: Wide, first: int, blocks: int) -> Words:
    """The same as `vectorised.words`."""
    made = np.empty((len(seeds), blocks, 4), np.uint32)
    _fill(made, np.stack([seeds, streams], axis=1), np.uint64(first))
    return made


def add(flat: NDArray[Any], coefficients: NDArray[Any], seeds: Wide, streams: Wide, start: int) -> None:
    """The same as `vectorised.add`: a sign is the bit of the sign, turned or not."""
    raw, keys = coefficients.view(f"u{flat.itemsize}"), np.empty((len(seeds), 2), np.uint64)
    keys[:, 0], keys[:, 1] = seeds, streams
    _pass[flat.itemsize](flat, raw, keys, np.uint64(start // BLOCK), start % BLOCK)
