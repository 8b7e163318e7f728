"""Derived randomness: every draw comes from (seed, purpose, coordinates), never from a global generator.

A derived seed is a keyed hash, so purposes and coordinates never collide, adding a purpose changes no other draw, and
no draw depends on the order in which clients happen to run.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Self

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field


class Purpose(StrEnum):
    """The separate streams of an experiment."""

    DATA = "data"
    INIT = "init"
    SAMPLING = "sampling"
    BATCHES = "batches"
    DIRECTIONS = "directions"


def derive(seed: int, *path: int | str) -> int:
    """`blake2b(path, key = seed)` as an unsigned 63-bit integer; the same on every machine."""
    text = "/".join(f"{type(step).__name__}:{step}".replace("/", "//") for step in path)
    key = seed.to_bytes(16, "little", signed=True)
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=key, digest_size=8).digest()) >> 1


def torch_generator(seed: int) -> torch.Generator:
    """A fresh CPU generator that starts at `seed`."""
    return torch.Generator().manual_seed(seed)


def numpy_generator(seed: int) -> np.random.Generator:
    """A fresh NumPy generator that starts at `seed`."""
    return np.random.Generator(np.random.Philox(seed))


class Seeds(BaseModel):
    """One number for an experiment, or one a purpose: a purpose that is not given follows `seed`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(default=0, ge=0, lt=2**63)
    data: int | None = Field(default=None, ge=0, lt=2**63)
    init: int | None = Field(default=None, ge=0, lt=2**63)
    sampling: int | None = Field(default=None, ge=0, lt=2**63)
    batches: int | None = Field(default=None, ge=0, lt=2**63)
    directions: int | None = Field(default=None, ge=0, lt=2**63)

    def of(self, purpose: Purpose, *path: int | str) -> int:
        """The derived seed of `purpose` at `path`, say (round, client)."""
        root: int | None = getattr(self, purpose.value)
        return derive(self.seed if root is None else root, purpose.value, *path)

    def resolved(self) -> Self:
        """The same seeds with every purpose written out."""
        filled = {p.value: self.seed if getattr(self, p.value) is None else getattr(self, p.value) for p in Purpose}
        return self.model_copy(update=filled)
