"""What a round leaves for readers: plain values, no tensors, so that reports need no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict

# Metrics that are shares of rows; differences between them are in percentage points.
SHARES = frozenset({"accuracy", "among", "exact", "f1"})
HEAD, TAIL = "head", "tail"  # strata of test rows: of classes that all clients have, and of those that few have
FEW = 0.1  # of the probability of all tokens: with less in the letters, the best of them is nobody's answer


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


class LayerSubspace(BaseModel):
    """One adapted layer after a round, six digits a number; None where a space or a product is 0.

    Attributes:
        layer: the module's name.
        overlap: by client, ‖Q_gᵀ Q_k‖ / √r of the new global B and the client's.
        cosine: by client, of its product and the mean product.
        cancellation: ‖Σ p Δ‖ / Σ p ‖Δ‖ of the products.
        gap: ‖B̄ Ā − Σ p B A‖ / ‖Σ p B A‖.
        spectrum: the leading singular values of Σ p s B A, as many as the rank.
        tail: the share of ‖Σ p s B A‖² beyond them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    layer: str
    overlap: tuple[float | None, ...] = ()
    cosine: tuple[float | None, ...] = ()
    cancellation: float | None = None
    gap: float | None = None
    spectrum: tuple[float, ...] = ()
    tail: float | None = None


class SubspaceRecord(BaseModel):
    """The low-rank pairs of a round by layer and client.

    Attributes:
        clients: those that were measured, in the order of the layers' tuples.
        layers: in the order of the model.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    clients: tuple[str, ...] = ()
    layers: tuple[LayerSubspace, ...] = ()


class RoundRecord(BaseModel):
    """One line of rounds.jsonl.

    Attributes:
        round: counts from 1.
        abandoned: why nothing was committed, or None.
        weights: accepted client -> its normalised weight in the mean.
        global_metrics: of the aggregated model on rows that no client holds.
        cells: share -> stratum of the test rows -> the same over its rows alone.
        client_metrics: client -> metric -> local, federated, drop.
        diagnostics: named numbers about the round: `change_norm` = ‖theta after − before‖; `agreement_ROLE`,
            `cosine_ROLE`, `update_ROLE` and `clients_ROLE`, as diagnose/conflict.py defines them, and those of
            diagnose/subspace.py, both of a round that was committed; `general_loss` and `forgetting`; and what the
            trainable tells of theta, such as `gate/LAYER`.
        subspace: of a committed round with low-rank pairs, the same by layer and client.
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
    cells: Mapping[str, Mapping[str, Metric]] = {}
    client_metrics: Mapping[str, Mapping[str, ClientMetric]] = {}
    diagnostics: Mapping[str, float] = {}
    subspace: SubspaceRecord | None = None
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


class Bin(BaseModel):
    """The mean loss of some tokens of a stream, with its 95 % interval; None where nothing, or one token, tells it.

    Attributes:
        first: position of the first token, from 0.
        last: of the last one, which belongs to the bin.
        n: scored tokens, of all streams.
        mean: negative log-likelihood a token, in nats.
        low: of the interval: over tokens of one stream, over streams of several.
        high: of the same.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    first: int
    last: int
    n: int
    mean: float | None = None
    low: float | None = None
    high: float | None = None


class StreamSeries(BaseModel):
    """One model on a stream.

    Attributes:
        name: of the model.
        equal: bins of one width over the whole stream.
        doubling: bins of 1, 2, 4 … tokens from its start.
        peak_bytes: the largest memory while each of the equal bins was read.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    equal: tuple[Bin, ...] = ()
    doubling: tuple[Bin, ...] = ()
    peak_bytes: tuple[int, ...] | None = None


class Stream(BaseModel):
    """What was streamed: where its text is from, tokens of each stream, how many streams, and who read them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str = ""
    tokens: int | None = None
    streams: int | None = None
    series: tuple[StreamSeries, ...] = ()


class LayerMemory(BaseModel):
    """One layer: its gate by query head, its state's norm by key-value head, and how often that norm was clipped."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    layer: int
    gate: tuple[float, ...] = ()
    state_norm: tuple[float, ...] = ()
    clipped: int | None = None


class ContextBytes(BaseModel):
    """Bytes kept for a context of `tokens`: the memory's state and the window beside it, or full attention's cache."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: int
    state: int | None = None
    window: int | None = None
    full: int | None = None


class MemoryRecord(BaseModel):
    """memory.json: what a probe of a trained memory found; every part may be missing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    stream: Stream | None = None
    layers: tuple[LayerMemory, ...] = ()
    bytes: tuple[ContextBytes, ...] = ()


def doubt(metrics: Mapping[str, Metric]) -> str:
    """Why an accuracy among letters says little of what the model would write; '' where it does not."""
    mass = metrics.get("letter_mass")
    if mass is None or mass.value >= FEW:
        return ""
    return f"the letters have {100 * mass.value:.2g} % of the probability: the model would mostly write something else"
