"""Live bytes: what is alive at once is counted once, and what is gone is not."""

from __future__ import annotations

import torch

from cotune.diagnose.live import LiveBytes

A = torch.zeros(1000)
SIZE = 4000


def test_a_tensor_counts_while_it_is_alive_and_a_view_of_it_not_at_all() -> None:
    with LiveBytes([A, A[10:]]) as live:
        assert (live.now, live.peak) == (SIZE, SIZE)
        made = A + 1
        part = made.view(10, 100)[2:]
        assert A[5:].add_(0) is not None
        assert live.now == 2 * SIZE
        del made
        assert live.now == 2 * SIZE, "a view keeps the whole"
        del part
        assert (live.now, live.peak) == (SIZE, 2 * SIZE)


def test_the_peak_is_of_what_is_there_at_one_time() -> None:
    with LiveBytes() as live:
        chain = ((A + 1) * 2) * 3
        assert (live.now, live.peak) == (SIZE, 2 * SIZE)
        pair = torch.stack([chain, chain]).max(0)
        assert live.peak == SIZE + 2 * SIZE + SIZE + 2 * SIZE, "values, and int64 indices"
    assert pair.values is not None


def test_what_a_backward_pass_keeps_is_alive_until_it_has_run() -> None:
    weight = torch.ones(1000, requires_grad=True)
    with LiveBytes([weight]) as live:
        with torch.no_grad():
            (weight * 2).exp().exp().sum()
        alone = live.peak
        loss = (weight * 2).exp().exp().sum()
        kept = live.now
        torch.autograd.grad(loss, weight)
        del loss
        assert alone == SIZE + 2 * SIZE
        assert kept == SIZE + 2 * SIZE + 4, "both exponentials, and the sum"
        assert live.now == SIZE
