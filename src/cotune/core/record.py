"""What a round leaves for readers: plain values, no tensors, so that reports need no torch."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

# Metrics that are shares of rows; differences between them are in percentage points.
SHARES = frozenset({"accuracy"})


class Metric(BaseModel):
    """A mean over rows with its 95 % interval (None where one row tells no spread) and what guessing scores."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float
    n: int
    low: float | None
    high: float | None
    chance: float | None = None


class ClientMetric(BaseModel):
    """One client's own model just before aggregation beside the aggregated one, on that client's held-back rows.

    Attributes:
        local: the client's own model.
        federated: the model after aggregation, as this client would use it.
        drop: local minus federated, in percentage points for a share, in its own unit otherwise.
        n: held-back rows.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    local: float | None = None
    federated: float | None = None
    drop: float | None = None
    n: int


class Cohort(BaseModel):
    """Who was asked, who counted, and who did not, by code."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    selected: tuple[str, ...]
    accepted: tuple[str, ...] = ()
    dropped: Mapping[str, tuple[str, ...]] = {}
    reasons: Mapping[str, str] = {}


class RoundRecord(BaseModel):
    """One line of rounds.jsonl.

    Attributes:
        round: counts from 1.
        abandoned: why nothing was committed, or None.
        weights: accepted client -> its normalised weight in the mean.
        global_metrics: of the aggregated model on rows that no client holds.
        client_metrics: client -> metric -> local, federated, drop.
        diagnostics: named numbers about the round.
        flops: of the accepted clients' training: the matrix products, forward and backward.
        uplink_bytes: of training replies, framing included.
        downlink_bytes: of training requests, framing included.
        train_loss: mean over accepted clients of the loss at their last step.
        evaluation_bytes: of scoring messages, both ways.
        seconds: of wall time.
        peak_bytes: the largest resident memory of the server process during the round.
        theta_sha256: of the committed theta.
        evaluated: which model the metrics belong to.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    round: int
    cohort: Cohort
    abandoned: str | None = None
    weights: Mapping[str, float] = {}
    global_metrics: Mapping[str, Metric] = {}
    client_metrics: Mapping[str, Mapping[str, ClientMetric]] = {}
    diagnostics: Mapping[str, float] = {}
    train_loss: float | None = None
    flops: float = 0.0
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    evaluation_bytes: int = 0
    seconds: float = 0.0
    peak_bytes: int = 0
    theta_sha256: str = ""
    evaluated: str = ""


class LedgerLine(BaseModel):
    """One message: its payload by what it carries, and the framing around it.

    Attributes:
        round: of the message.
        client: the other end.
        direction: 'up' or 'down'.
        purpose: 'train' or 'evaluate'.
        payload_bytes: role or part -> bytes; the sum is what papers count.
        framing_bytes: header, names and metrics.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    round: int
    client: str
    direction: str
    purpose: str
    payload_bytes: Mapping[str, int]
    framing_bytes: int

    @property
    def total_bytes(self) -> int:
        """Payload and framing."""
        return sum(self.payload_bytes.values()) + self.framing_bytes
