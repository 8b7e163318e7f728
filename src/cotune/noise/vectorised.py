"""The NumPy path of the stream, for tensors on the CPU: unsigned 64-bit arithmetic on whole arrays of counters."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cotune.noise.philox import BLOCK, LOW, M0, M1, ROUNDS, W0, W1

Words = NDArray[np.uint32]
Wide = NDArray[np.uint64]

AT_ONCE = 2**14  # counters in one pass: fewer, and calls cost more than arithmetic; more, and they leave the cache
PIECE = 2**9  # blocks that are added at once: 64 Ki elements stay in the cache while all directions pass over them


def words(seeds: Wide, streams: Wide, first: int, blocks: int) -> Words:
    """The four words of blocks `first`, `first` + 1, … of every direction: (directions, blocks, 4), little-endian.

    Args:
        seeds: (directions,).
        streams: (directions,).
        first: index of a block.
        blocks: how many.
    """
    low, half, shape = np.uint64(LOW), np.uint64(32), (len(seeds), blocks)
    m0, m1, w0, w1 = (np.uint64(constant) for constant in (M0, M1, W0, W1))
    index = np.arange(blocks, dtype=np.uint64)[None] + np.uint64(first)
    upper = index >> half
    k0, k1 = (seeds & low)[:, None], (seeds >> half)[:, None]
    c0, c1 = index & low, upper[:, :1] if first >> 32 == (first + blocks) >> 32 else upper
    c2, c3 = (streams & low)[:, None], (streams >> half)[:, None]
    for _ in range(2):  # at first, words are the same for all directions, or for all blocks
        p0, p1 = c0 * m0, c2 * m1
        c0, c1, c2, c3 = (p1 >> half) ^ c1 ^ k0, p1 & low, (p0 >> half) ^ c3 ^ k1, p0 & low
        k0, k1 = (k0 + w0) & low, (k1 + w1) & low
    c0, c1, c2, c3 = (w if w.shape == shape else np.broadcast_to(w, shape).copy() for w in (c0, c1, c2, c3))
    p0, p1 = np.empty(shape, np.uint64), np.empty(shape, np.uint64)
    for _ in range(ROUNDS - 2):
        np.multiply(c0, m0, out=p0)
        np.multiply(c2, m1, out=p1)
        np.right_shift(p1, half, out=c0)
        c0 ^= c1
        c0 ^= k0
        np.right_shift(p0, half, out=c2)
        c2 ^= c3
        c2 ^= k1
        p1 &= low
        p0 &= low
        c1, p1, c3, p0 = p1, c1, p0, c3
        k0, k1 = (k0 + w0) & low, (k1 + w1) & low
    made = np.empty((*shape, 4), "<u4")
    for i, word in enumerate((c0, c1, c2, c3)):
        made[..., i] = word
    return made


def add(flat: NDArray[Any], coefficients: NDArray[Any], seeds: Wide, streams: Wide, start: int) -> None:
    """`flat[i] += coefficient · sign(start + i)`, in place, direction after direction for every element.

    Args:
        flat: (numbers,), float32 or float64, C order.
        coefficients: (directions,), the dtype of `flat`.
        seeds: (directions,).
        streams: (directions,).
        start: stream index of `flat[0]`.
    """
    skip, first = start % BLOCK, start // BLOCK
    blocks = -(-(skip + len(flat)) // BLOCK)
    wide = max(PIECE, AT_ONCE // len(seeds))
    together = max(1, AT_ONCE // wide)
    tables = _tables(coefficients)
    room = np.empty((PIECE * BLOCK // 8, 8), flat.dtype)
    for at in range(0, blocks, wide):
        count = min(wide, blocks - at)
        for of in range(0, len(seeds), together):
            group = slice(of, of + together)
            made = words(seeds[group], streams[group], first + at, count).view(np.uint8)
            for begin in range(0, count, PIECE):
                size = min(PIECE, count - begin)
                low = (at + begin) * BLOCK - skip
                part = flat[max(low, 0) : low + size * BLOCK]
                inside = slice(max(-low, 0), max(-low, 0) + len(part))
                signed = room[: size * BLOCK // 8]
                for table, bits in zip(tables[group], made[:, begin : begin + size], strict=True):
                    np.take(table, bits.reshape(-1), axis=0, out=signed, mode="wrap")
                    part += signed.reshape(-1)[inside]


def _tables(coefficients: NDArray[Any]) -> NDArray[Any]:
    """What each of the 256 bytes stands for, (directions, 256, 8): −coefficient where a bit is set, lowest first."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little").astype(bool)
    return np.where(bits, -coefficients[:, None, None], coefficients[:, None, None])


def signs(made: Words) -> NDArray[np.int8]:
    """The signs that words stand for, (32 · words,): 1 − 2 · bit."""
    bits = np.unpackbits(made.astype("<u4", copy=False).reshape(-1).view(np.uint8), bitorder="little").view(np.int8)
    one = np.int8(1)
    return one - (bits << one)
