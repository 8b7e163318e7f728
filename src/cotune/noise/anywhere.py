"""The PyTorch path of the stream, for any device and any dtype: signed 64-bit integers that never overflow."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cotune.noise.philox import BITS, BLOCK, LOW, M0, M1, bumped

PIECE = 2**11  # blocks at once: 256 Ki elements


def words(seed: int, stream: int, first: int, blocks: int, device: torch.device) -> Tensor:
    """The four words of blocks `first`, `first` + 1, …: (blocks, 4), int64."""
    index = torch.arange(blocks, dtype=torch.int64, device=device) + (first & LOW)
    c0, c1 = index & LOW, (index >> 32) + (first >> 32)
    c2, c3 = torch.full_like(index, stream & LOW), torch.full_like(index, stream >> 32)
    for k0, k1 in bumped(seed):
        (high0, low0), (high1, low1) = _product(c0, M0), _product(c2, M1)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
    return torch.stack([c0, c1, c2, c3], dim=-1)


def _product(a: Tensor, b: int) -> tuple[Tensor, Tensor]:
    """The high and the low word of a · b, for words a and b: b in two halves, since 64 bits and a sign do not fit."""
    upper, lower = a * (b >> 16), a * (b & 0xFFFF)
    return (upper + (lower >> 16)) >> 16, (((upper & 0xFFFF) << 16) + lower) & LOW


def octets(seed: int, stream: int, first: int, blocks: int, device: torch.device) -> Tensor:
    """The signs of the blocks by eights, lowest bit first: int64 (16 · blocks,), each below 256."""
    made = words(seed, stream, first, blocks, device).unsqueeze(-1)
    return ((made >> torch.arange(0, BITS, 8, device=device)) & 255).view(-1)


def meant(values: Tensor) -> Tensor:
    """What each of the 256 octets stands for, (…, 256, 8): −value where a bit is set, of values (…,)."""
    octet, bit = torch.arange(256, device=values.device), torch.arange(8, device=values.device)
    minus = ((octet[:, None] >> bit) & 1).bool()
    c = values[..., None, None]
    return torch.where(minus, -c, c)


def add(flat: Tensor, coefficients: Tensor, seeds: Sequence[int], streams: Sequence[int], start: int) -> None:
    """`flat[i] += coefficient · sign(start + i)`, in place, direction after direction for every element.

    Args:
        flat: (numbers,), any floating dtype.
        coefficients: (directions,), the dtype and device of `flat`.
        seeds: one a direction.
        streams: one a direction.
        start: stream index of `flat[0]`.
    """
    skip, first = start % BLOCK, start // BLOCK
    blocks, tables = -(-(skip + len(flat)) // BLOCK), meant(coefficients)
    for at in range(0, blocks, PIECE):
        count, low = min(PIECE, blocks - at), at * BLOCK - skip
        part = flat[max(low, 0) : low + count * BLOCK]
        inside = slice(max(-low, 0), max(-low, 0) + len(part))
        for table, seed, stream in zip(tables, seeds, streams, strict=True):
            part += table[octets(seed, stream, first + at, count, flat.device)].view(-1)[inside]
