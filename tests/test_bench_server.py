"""`cotune bench server`: that its rivals are right, its errors can be large, and its figures are the ones promised."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cotune.bench import Server
from cotune.bench import server as room
from cotune.bench.benchmark import measured
from cotune.bench.rounds import smallest_round
from cotune.linalg import Factors, squared_distance

SMALL = Server.quick()


def dense(pair: Factors) -> Tensor:
    return pair[0].double() @ pair[1].double()


def test_it_has_every_figure_that_was_promised_with_its_goal() -> None:
    result = measured("server", quick=True)
    figures = [(figure["name"].partition(" · ")[0], figure["goal"]) for figure in result["figures"]]
    assert figures == [
        ("penalty, forward and backward", 30.0),
        ("penalty and gradient, float32 error at gaps 1 to 1e-06", 1.0),
        ("penalty and gradient, float32 error at gaps 1 to 1e-06", None),
        ("iterated, 30 clients", 10.0),
        ("two sums, 30 clients", 20.0),
        ("iterated, 30 clients, error of rank 4", 1 / 1.01),
        ("two sums, 30 clients, error of rank 4", 1 / 1.01),
        ("diagnostics of a round, 2 clients", 20.0),
    ]
    assert all(figure["met"] is None and figure["ours"] > 0 for figure in result["figures"])
    assert (Server().clients, Server().rank, Server().side) == (100, 8, 1024)


def test_the_figures_that_are_no_times_reach_their_goals_even_when_small() -> None:
    figures = {figure.name: figure for figure in SMALL.figures() if figure.unit == "relative"}
    assert len(figures) == 4
    assert all(figure.met in (True, None) for figure in figures.values())


def test_the_rivals_are_the_dense_definitions() -> None:
    replies, weights = SMALL._replies(SMALL.side)
    whole = torch.stack([w * dense(pair) for w, pair in zip(weights, replies, strict=True)]).sum(0)
    torch.testing.assert_close(room.dense_sum(replies, weights).double(), whole, rtol=1e-4, atol=1e-4)
    u, sigma, v = torch.linalg.svd(whole)
    best = u[:, :4] * sigma[:4] @ v[:4]
    b, a = room.dense_step(replies, weights, 4)
    assert float((dense((b, a)) - best).norm()) <= 1e-5 * float(best.norm())
    torch.testing.assert_close(b.mT @ b, torch.eye(4), atol=1e-5, rtol=0)
    one, two = replies[:2]
    exact = (dense(one) - dense(two)).square().sum().float()
    torch.testing.assert_close(room.dense_distance(one, two), exact)


def test_clients_differ_from_the_server_by_their_drift_and_not_from_each_other_by_chance_of_the_call() -> None:
    replies, _ = SMALL._replies(SMALL.side)
    b, a = SMALL._pair(SMALL.side, "server")
    own_b, own_a = SMALL._pair(SMALL.side, 3)
    torch.testing.assert_close(replies[3], (b + 0.5 * own_b, a + 0.5 * own_a))
    again, _ = SMALL._replies(SMALL.side)
    assert all(
        torch.equal(x, y) for one, two in zip(replies, again, strict=True) for x, y in zip(one, two, strict=True)
    )


def test_a_round_is_timed_with_its_diagnostics_and_they_are_timed_alone() -> None:
    diagnostics, rounds = smallest_round(SMALL.backbone, 2, 2, 0)
    assert len(diagnostics) == len(rounds) == 2
    assert all(0 < ours < whole for ours, whole in zip(diagnostics, rounds, strict=True))


def three_traces(left: Factors, right: Factors) -> Tensor:
    """The same by expanding the square, which cancels."""

    def trace(one: Factors, two: Factors) -> Tensor:
        return ((one[0].mT @ two[0]) * (one[1] @ two[1].mT)).sum()

    return trace(left, left) - 2 * trace(left, right) + trace(right, right)


def half_the_gradient(left: Factors, right: Factors) -> Tensor:
    """The right value, and a wrong gradient."""
    value = squared_distance(left, right)
    return value.detach() + (value - value.detach()) / 2


@pytest.mark.parametrize(("distance", "gap", "least"), [(three_traces, 1e-4, 0.1), (half_the_gradient, 1.0, 0.49)])
def test_the_error_sees_a_distance_that_cancels_and_a_wrong_gradient(
    distance: Callable[[Factors, Factors], Tensor], gap: float, least: float
) -> None:
    assert SMALL._error(distance, gap) > least
    assert SMALL._error(squared_distance, gap) < 1e-5


def test_bytes_are_counted_where_a_matrix_would_be_seen() -> None:
    bench = Server(wide=2048, clients=20)
    matrix = 4 * bench.wide**2 / 2**20
    assert bench._peak("two sums", bench.wide) < matrix / 2
    assert bench._peak("dense", 1024) > 2 * 4  # the sum, and at least one of its bases
