"""The NumPy path of the stream, for tensors on the CPU: unsigned 64-bit arithmetic on whole arrays of counters."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cotune.noise.philox import BLOCK, LOW, M0, M1, ROUNDS, W0, W1

Words = NDArray[np.uint32]
Wide = NDArray[np.uint64]

AT_ONCE = 2**16  # counters in one pass: fewer, and calls cost more than arithmetic; more, and they leave the cache
ROW = 2**13  # blocks of a direction in one pass: in shorter rows NumPy copies what is the same for a row, a key, first
PIECE = 2**9  # blocks that are added at once: 64 Ki elements stay in the cache while all directions pass over them


class Room:
    """Where words are made: arrays that are there already cost a third less than new ones.

    Attributes:
        wide: six times as many uint64 as there are counters.
        made: four words a counter, little-endian, two and two.
    """

    def __init__(self, counters: int) -> None:
        self.wide = np.empty((6, counters), np.uint64)
        self.made = np.empty((counters, 2), "<u8")


def words(seeds: Wide, streams: Wide, first: int, blocks: int, room: Room | None = None) -> Words:
    """The four words of blocks `first`, `first` + 1, … of every direction: (directions, blocks, 4), little-endian.

    Args:
        seeds: (directions,).
        streams: (directions,).
        first: index of a block.
        blocks: how many.
        room: for at least directions · blocks counters; what is returned lies in it.
    """
    low, half, counters = np.uint64(LOW), np.uint64(32), len(seeds) * blocks
    m0, m1, w0, w1 = (np.uint64(constant) for constant in (M0, M1, W0, W1))
    room = room or Room(counters)
    n0, n2, p0, p1, q0, q1 = (row[:counters].reshape(len(seeds), blocks) for row in room.wide)
    index, streams, k0, k1 = np.arange(blocks, dtype=np.uint64)[None], streams[:, None], seeds[:, None], seeds[:, None]
    index, k0, k1 = index + np.uint64(first), k0 & low, k1 >> half
    upper = index >> half if first >> 32 != (first + blocks) >> 32 else np.uint64(first >> 32)
    # The first round by hand: words are still the same for all directions, or for all blocks.
    r0, r1 = (index & low) * m0, (streams & low) * m1
    c0, c1, c3 = (r1 >> half) ^ upper ^ k0, r1 & low, r0 & low
    c2 = np.bitwise_xor(r0 >> half, (streams >> half) ^ k1, out=n2)
    for number in range(1, ROUNDS):
        k0, k1 = (k0 + w0) & low, (k1 + w1) & low
        np.multiply(c0, m0, out=p0)
        np.multiply(c2, m1, out=p1)
        np.right_shift(p1, half, out=n0)
        n0 ^= c1
        n0 ^= k0
        np.right_shift(p0, half, out=n2)
        n2 ^= c3
        n2 ^= k1
        if number + 1 < ROUNDS:
            p1 &= low
            p0 &= low
        c0, c1, c2, c3 = n0, p1, n2, p0
        p0, p1, q0, q1 = q0, q1, p0, p1
    made = room.made[:counters].reshape(len(seeds), blocks, 2)
    for i, (lower, upper) in enumerate(((c0, c1), (c2, c3))):
        np.bitwise_or(lower, np.left_shift(upper, half, out=upper), out=made[..., i])
    return made.view("<u4")


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
    if not blocks:
        return
    wide = -(-blocks // -(-blocks // max(ROW, AT_ONCE // len(seeds))))  # passes of one size
    together = max(1, AT_ONCE // wide)
    tables = _tables(coefficients)
    room = Room(min(together, len(seeds)) * wide)
    signed = np.empty((min(PIECE, wide) * BLOCK // 8, 8), flat.dtype)
    for at in range(0, blocks, wide):
        count = min(wide, blocks - at)
        for of in range(0, len(seeds), together):
            group = slice(of, of + together)
            made = words(seeds[group], streams[group], first + at, count, room).view(np.uint8)
            for begin in range(0, count, PIECE):
                size = min(PIECE, count - begin)
                low = (at + begin) * BLOCK - skip
                part = flat[max(low, 0) : low + size * BLOCK]
                inside = slice(max(-low, 0), max(-low, 0) + len(part))
                out = signed[: size * BLOCK // 8]
                moves = out.reshape(-1)[inside]
                for table, bits in zip(tables[group], made[:, begin : begin + size], strict=True):
                    table.take(bits.reshape(-1), 0, out, "wrap")
                    part += moves


def _tables(coefficients: NDArray[Any]) -> NDArray[Any]:
    """What each of the 256 bytes stands for, (directions, 256, 8): −coefficient where a bit is set, lowest first."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little").astype(bool)
    return np.where(bits, -coefficients[:, None, None], coefficients[:, None, None])


def signs(made: Words) -> NDArray[np.int8]:
    """The signs that words stand for, (32 · words,): 1 − 2 · bit."""
    bits = np.unpackbits(made.astype("<u4", copy=False).reshape(-1).view(np.uint8), bitorder="little").view(np.int8)
    one = np.int8(1)
    return one - (bits << one)
