"""Aggregation drop: what a client loses when its own model is replaced by the aggregated one."""

from __future__ import annotations

from cotune.core.record import SHARES, ClientMetric


def client_metric(name: str, local: float | None, federated: float | None, n: int) -> ClientMetric:
    """`drop = local − federated` on the same held-back rows, in percentage points for a share of rows."""
    drop = None
    if local is not None and federated is not None:
        drop = (local - federated) * (100.0 if name in SHARES else 1.0)
    return ClientMetric(local=local, federated=federated, drop=drop, n=n)
