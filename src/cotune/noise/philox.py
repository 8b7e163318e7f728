"""Philox4x32-10 (Salmon, Moraes, Dror and Shaw, 2011) as integers, and where an element of a stream lies in it.

| symbol | what |
|---|---|
| block | 128 elements: what one call of the generator decides, a bit an element |
| counter | (block index: low, high word; stream: low, high word) |
| key | the seed: low, high word |

An element takes word (index mod 128) div 32, and of it bit index mod 32 from the lowest. One round is

    c₀, c₁, c₂, c₃ ← high(M₁ c₂) ⊕ c₁ ⊕ k₀, low(M₁ c₂), high(M₀ c₀) ⊕ c₃ ⊕ k₁, low(M₀ c₀);  k₀, k₁ ← k₀ + W₀, k₁ + W₁
"""

from __future__ import annotations

ROUNDS = 10
M0, M1 = 0xD2511F53, 0xCD9E8D57
W0, W1 = 0x9E3779B9, 0xBB67AE85
WORD = 2**32
LOW = WORD - 1

BITS = 32  # elements a word
BLOCK = 4 * BITS  # elements a call
END = 2**64 * BLOCK  # of every stream


def bumped(seed: int) -> list[tuple[int, int]]:
    """The key of every round."""
    k0, k1 = seed & LOW, seed >> 32
    return [((k0 + i * W0) & LOW, (k1 + i * W1) & LOW) for i in range(ROUNDS)]
