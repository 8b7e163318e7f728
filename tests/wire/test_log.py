"""Replies of past rounds as tensors: they come back as they were, take the bytes announced, and are read with care."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cotune.core.errors import Code, CotuneError
from cotune.core.journal import Increment, Reply
from cotune.core.state import digest
from cotune.wire import BYTES_A_REPLY, payload, stack, unstack
from cotune.wire.envelope import layouts_of
from cotune.wire.log import stacked

KINDS: Sequence[Callable[[int], dict[str, Tensor]]] = (
    lambda i: {"sign/all": torch.full((2, 3), float(i))},
    lambda i: {"sign/1": torch.full((2, 1), i / 3), "sign/0": torch.full((2, 2), -float(i))},
    lambda i: {"sign/all": torch.full((5, 3), i, dtype=torch.int32), "seed": torch.tensor(2**62 + i)},
)
ROUNDS = st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=4), max_size=4)


def increments(plan: Sequence[Sequence[tuple[int, int]]]) -> list[Increment]:
    """Rounds 1, 3, 5, …: of each reply its group and the kind of its scalars; every number another."""
    numbers = iter(range(100))
    return [
        Increment(
            2 * i + 1,
            (),
            replies=tuple(Reply(g, 2**62 + (n := next(numbers)), 1 / (n + 3), KINDS[k](n)) for g, k in replies),
        )
        for i, replies in enumerate(plan)
    ]


def plain(rounds: Sequence[Increment]) -> list[object]:
    return [
        (one.round, [(reply.group, reply.seed, reply.weight, digest(reply.scalars)) for reply in one.replies])
        for one in rounds
    ]


@given(ROUNDS)
def test_replies_come_back_in_their_order_with_every_number_as_it_was(plan: list[list[tuple[int, int]]]) -> None:
    rounds = increments(plan)
    assert plain(unstack(stack(rounds))) == plain(rounds)


@given(ROUNDS)
def test_shapes_alone_tell_the_layout_and_the_bytes(plan: list[list[tuple[int, int]]]) -> None:
    rounds = increments(plan)
    shapes = [
        Increment(
            one.round,
            (),
            replies=tuple(
                Reply(reply.group, 0, 1.0, {name: t.to("meta") for name, t in sorted(reply.scalars.items())})
                for reply in one.replies
            ),
        )
        for one in rounds
    ]
    announced = stacked(shapes)
    assert layouts_of({"replay": stack(rounds)}) == {"replay": announced}
    replies = [reply for one in rounds for reply in one.replies]
    scalars = sum(tensor.numel() * tensor.element_size() for reply in replies for tensor in reply.scalars.values())
    assert sum(payload({"replay": announced}).values()) == BYTES_A_REPLY * len(replies) + scalars


def test_names_do_not_grow_with_rounds() -> None:
    few, many = (stacked(increments([[(0, 0), (1, 0), (0, 0)]] * n)) for n in (1, 20))
    assert few.keys() == many.keys()


BAD: dict[str, Callable[[dict[str, Tensor]], object]] = {
    "no places": lambda named: named.pop("places"),
    "no seeds": lambda named: named.pop("seeds"),
    "a weight too few": lambda named: named.update(weights=named["weights"][1:]),
    "a place too many": lambda named: named.update(places=torch.cat([named["places"], named["places"][:1]])),
    "a table that is not there": lambda named: named["places"].__setitem__((0, 1), 7),
    "a table below 0": lambda named: named["places"].__setitem__((0, 1), -1),
    "a reply that nobody sent": lambda named: named.update({n: t[:-1] for n, t in named.items() if "/" in n}),
    "replies left over": lambda named: named.update({n: torch.cat([t, t]) for n, t in named.items() if "/" in n}),
    "rounds in another order": lambda named: named.update(places=named["places"].flip(0)),
    "a place that is no pair": lambda named: named.update(places=named["places"][:, 0]),
    "a number without rows": lambda named: named.update({n: t.sum() for n, t in named.items() if "/" in n}),
    "a name that is none": lambda named: named.update({"zero/0/x": torch.zeros(3)}),
    "a name without a table": lambda named: named.update(x=torch.zeros(3)),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_log_of_replies_is_refused_in_one_line(what: str) -> None:
    named = stack(increments([[(0, 0)], [(0, 0), (0, 0)]]))
    assert len(unstack(named)) == 2
    BAD[what](named)
    with pytest.raises(CotuneError) as caught:
        unstack(named)
    assert caught.value.code is Code.FORMAT
