"""Every part of every room keeps its room's laws; one row here for each part."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from cotune import aggregate, optim, penalty, personalize, trainable, wire
from cotune.core.part import Part
from cotune.laws import Law, laws_of, sentence
from cotune.method import ROOMS
from cotune.trainable.memory import Rules

TABLE: Mapping[str, tuple[Part, ...]] = {
    "trainable": (
        trainable.LoRA(rank=2, alpha=4),
        trainable.LoRA(rank=2, targets="all-linear", head="personal"),
        trainable.LoRA(rank=3, train="B", head="frozen"),
        trainable.LoRA(rank=2, train="alternate", stabilised=True),
        trainable.LoRA(rank=2, train="A", init="orthonormal-b"),
        trainable.Memory(rank=2),
        trainable.Memory(factors=False, rules=Rules(rule="gated-delta", shift=True, centre=True, beta="vector")),
        trainable.Memory(rank=2, train="B", head="personal", rules=Rules(rule="titans", norm=True, silu=True)),
        trainable.Full(),
        trainable.Full(only=("layers.1", "layer.1"), head="frozen"),
    ),
    "penalty": (
        penalty.Proximal(mu=0.3),
        penalty.Subspace(mu=0.3),
        penalty.Subspace(mu=0.3, reduction="sum"),
        penalty.Ridge(strength=0.2),
        penalty.Basis(alpha=0.1),
        penalty.Synaptic(c=0.3),
        penalty.Synaptic(c=0.3, locality=0.9, surrogate_steps=2, damping=0.1),
    ),
    "optimizer": (
        optim.SGD(lr=0.1),
        optim.SGD(lr=0.1, weight_decay=0.01),
        optim.AdamW(lr=0.01),
        optim.AdamW(lr=0.01, weight_decay=0.1, betas=(0.8, 0.9)),
        optim.Scaffold(lr=0.1),
        optim.ZO(lr=0.01),
        optim.ZO(lr=0.01, directions=3, difference="forward", direction="sphere"),
        optim.ZO(lr=0.01, direction="rank1", largest=10.0),
        optim.SplitZO(lr=0.01),
        optim.SplitZO(lr=0.01, lr_back=0.02, directions=2, again=3, share_z2=True, direction="gaussian"),
        optim.SplitZO(lr=0.01, again=2, independent_blocks=True),
        optim.PrivateZO(lr=0.01, limit=20.0, sigma=0.5, noise="reproducible"),
        optim.PrivateZO(lr=0.01, limit=5.0, sigma=0.0, directions=3),
    ),
    "personalize": (
        personalize.ALA(),
        personalize.ALA(layers=3, eta=0.1, first=2, later=3),
    ),
    "uplink": (
        wire.TensorsUplink(),
        wire.ScalarsUplink(),
        wire.ScalarsUplink(seeds="shared", exact=False),
        wire.ScalarsUplink(seeds="client", tick_bits=20),
        wire.PoolUplink(),
    ),
    "downlink": (
        wire.FullDownlink(),
        wire.ChangedDownlink(),
        wire.ReplayDownlink(),
        wire.ReplayDownlink(keep=1),
        wire.AutoDownlink(),
        wire.AutoDownlink(keep=2),
        wire.PoolDownlink(),
    ),
    "aggregator": (
        aggregate.Mean(),
        aggregate.MeanControl(),
        aggregate.ProductSVD(),
        aggregate.ProductSVD(split="orthonormal-a"),
        aggregate.ProductSVD(split="orthonormal-b", restore=True),
        aggregate.Stack(),
        aggregate.Residual(),
        aggregate.Pool(size=16),
        aggregate.Rotation(),
        aggregate.Rotation(reference="B"),
        aggregate.Rotation(reference="both"),
    ),
}
CASES = [(part, law) for parts in TABLE.values() for part in parts for law in laws_of(part)]


@pytest.mark.parametrize(("part", "law"), CASES, ids=[f"{part!r}: {sentence(law)}" for part, law in CASES])
def test_a_part_keeps_the_laws_of_its_room(part: Part, law: Law) -> None:
    law(part)


def test_every_kind_of_every_room_has_a_row() -> None:
    for room, kinds in ROOMS.items():
        assert {part.kind for part in TABLE[room]} == set(kinds)
