"""FedAvg that refuses a reply, never the round."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from torch import Tensor

from cotune.aggregate import Mean
from cotune.core.change import Contribution, Server, Tensors
from cotune.core.contracts import Aggregator, Layout
from cotune.core.errors import Code, CotuneError
from cotune.core.spec import Spec
from cotune.core.state import Theta
from cotune.flower.strategy.arrays import layout_of, read, record_of, tensors_of
from cotune.flower.strategy.table import plain

LOG = logging.getLogger("flwr")  # Flower's own: `flwr log` shows it
DROPPED = "dropped-replies"  # among the metrics of a round
COUNTED = 2**53  # no node has more examples: beyond, a float64 does not know every whole number
POLL = 1.0  # seconds between two looks for nodes


@dataclass(frozen=True)
class Round:
    """What a round of training started from.

    Attributes:
        number: counts from 1.
        arrays: that went down, as Flower holds them.
        layout: of those.
        spec: their table.
        theta: the same as tensors.
        nodes: that were asked.
    """

    number: int
    arrays: ArrayRecord
    layout: Layout
    spec: Spec
    theta: Theta
    nodes: frozenset[int]


class CheckedAvg(FedAvg):
    """Σ n_k θ_k / Σ n_k in float64 over the replies that are what was asked for; rounded once, in any order the same.

    A reply with other names, shapes or dtypes than went down, with numbers that are not finite, or that does not say
    how many examples it is of, costs its node a round and nobody else anything: a line in the log, its code in
    `dropped`, and one more in the metric `dropped-replies`. Too few good replies keep the arrays as they are.

    Attributes:
        aggregator: what is made of the replies.
        dropped: round -> node -> the code of what was wrong.
    """

    def __init__(
        self,
        *,
        aggregator: Aggregator | None = None,
        min_replies: int | None = None,
        most_examples: float = math.inf,
        wait: float = 600.0,
        **fedavg: Any,
    ) -> None:
        """Take FedAvg's own settings by their names.

        Args:
            aggregator: one of ours; the mean where none is given.
            min_replies: how many good replies a round needs; half of those asked, rounded up, where none is given.
            most_examples: what a node may count at most: it says itself how many examples it has.
            wait: seconds for enough nodes to connect, after which the run ends rather than hang.
            fedavg: FedAvg's.
        """
        super().__init__(**fedavg)
        self.aggregator = aggregator or Mean()
        self.dropped: dict[int, dict[int, str]] = {}
        self._min_replies, self._most, self._wait = min_replies, most_examples, wait
        self._round: Round | None = None

    def table(self, layout: Layout) -> Spec:
        """What the arrays are to the aggregator."""
        return plain(layout)

    def told(self) -> Mapping[str, bool | int | float | str]:
        """What nodes are told with every round, beside what the app tells them."""
        return {}

    def contribution(self, round_: Round, node: int, weight: float, record: ArrayRecord) -> Contribution:
        """A node's arrays on their way into the aggregator.

        Raises:
            CotuneError: what is wrong with them.
        """
        sent = {name: wide(tensor) for name, tensor in read(record, round_.layout).items()}
        return Contribution(str(node), weight, Tensors(Theta(sent)), round_.spec)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """FedAvg's messages, and what `told` says.

        Raises:
            CotuneError: E_QUORUM when too few nodes came in time; what `table` raises.
        """
        if self.fraction_train == 0.0:
            return []
        missing = self._missing(grid, max(self.min_train_nodes, self.min_available_nodes))
        if missing is not None:
            raise missing
        layout = layout_of(arrays)
        spec, theta = self.table(layout), Theta({name: wide(t) for name, t in tensors_of(arrays).items()})
        for name, value in self.told().items():
            config[name] = value
        messages = list(super().configure_train(server_round, arrays, config, grid))
        nodes = frozenset(message.metadata.dst_node_id for message in messages)
        self._round = Round(server_round, arrays, layout, spec, theta, nodes)
        return messages

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """FedAvg's messages; none when too few nodes are left to evaluate."""
        if self.fraction_evaluate == 0.0:
            return []
        missing = self._missing(grid, max(self.min_evaluate_nodes, self.min_available_nodes))
        if missing is not None:
            LOG.warning("round %d is not evaluated · %s", server_round, missing)
            return []
        return super().configure_evaluate(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The next arrays, or None to keep those there are, and the metrics of the replies that counted."""
        round_, self._round = self._round, None
        if round_ is None or not round_.nodes:
            return None, None
        taken, dropped = dict[int, tuple[Contribution, RecordDict]](), dict[int, CotuneError]()
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                if node in taken:
                    raise CotuneError(Code.DUPLICATE, "a second reply")
                taken[node] = self._take(round_, reply)
            except CotuneError as error:
                dropped.setdefault(node, error)
                LOG.warning("round %d: a reply of node %d is dropped · %s", server_round, node, error)
        silent = CotuneError(Code.LATE, "no reply")
        lost = {node: dropped.get(node, silent).code.value for node in sorted(round_.nodes - {*taken})}
        self.dropped[server_round] = lost
        count = MetricRecord({DROPPED: len(lost)})
        needed = self._min_replies or math.ceil(len(round_.nodes) / 2)
        if len(taken) < needed:
            LOG.warning(
                "round %d keeps the arrays: %d good replies of %d, %d needed",
                *(server_round, len(taken), len(round_.nodes), needed),
            )
            return None, count
        try:
            arrays = self._fold(round_, [taken[node][0] for node in sorted(taken)])
        except CotuneError as error:
            LOG.warning("round %d keeps the arrays · %s", server_round, error)
            return None, count
        contents = comparable([taken[node][1] for node in sorted(taken)])
        metrics = self.train_metrics_aggr_fn(contents, self.weighted_by_key)
        metrics[DROPPED] = len(lost)
        return arrays, metrics

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The metrics of the replies that are what was asked for; None where there is none."""
        taken = dict[int, RecordDict]()
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                name, metrics, _ = self._metrics(_content(reply))
                taken[node] = RecordDict({name: metrics})
            except CotuneError as error:
                LOG.warning("round %d: an evaluation of node %d is dropped · %s", server_round, node, error)
        if not taken:
            return None
        contents = comparable([taken[node] for node in sorted(taken)])
        return self.evaluate_metrics_aggr_fn(contents, self.weighted_by_key)

    def _take(self, round_: Round, reply: Message) -> tuple[Contribution, RecordDict]:
        """What a reply adds, and its records as they are averaged."""
        content, node = _content(reply), reply.metadata.src_node_id
        if node not in round_.nodes:
            raise CotuneError(Code.CLIENT, "a reply of a node that was not asked")
        if len(content.array_records) != 1:
            raise CotuneError(Code.KEYS, "not one record of arrays", got=len(content.array_records))
        name, metrics, weight = self._metrics(content)
        (key, record), *_ = content.array_records.items()
        return self.contribution(round_, node, weight, record), RecordDict({key: record, name: metrics})

    def _metrics(self, content: RecordDict) -> tuple[str, MetricRecord, float]:
        """The name and the one record of metrics, and what the reply counts."""
        if len(content.metric_records) != 1:
            raise CotuneError(Code.KEYS, "not one record of metrics", got=len(content.metric_records))
        (name, metrics), *_ = content.metric_records.items()
        count, key = metrics.get(self.weighted_by_key), self.weighted_by_key
        if not isinstance(count, int | float):
            raise CotuneError(Code.COUNT, "no number of examples", where=key, got=type(count).__name__)
        if not 0 < count <= COUNTED:
            raise CotuneError(Code.COUNT, "impossible number of examples", where=key, got=count)
        count = min(count, self._most)
        return name, MetricRecord({**metrics, key: count}), float(count)

    def _fold(self, round_: Round, contributions: Sequence[Contribution]) -> ArrayRecord:
        """What the aggregator makes of them, as arrays like those that went down."""
        spec = round_.spec
        fold = self.aggregator.init(round_.theta, Server(round_.number, len(round_.nodes), spec, spec.names))
        for contribution in contributions:
            fold = self.aggregator.add(fold, contribution)
        theta = self.aggregator.finish(fold).theta
        made = {name: _narrow(theta[name], dtype) for name, (dtype, _) in round_.layout.items()}
        for name, tensor in made.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise CotuneError(Code.NONFINITE, "the aggregate is not finite", where=name)
        return record_of(made)

    def _missing(self, grid: Grid, needed: int) -> CotuneError | None:
        """What there is to say when so many nodes have not come in time: Flower itself would wait for ever."""
        ends = time.monotonic() + self._wait
        while (there := len([*grid.get_node_ids()])) < needed:
            left = ends - time.monotonic()
            if left <= 0:
                what = f"too few nodes after {self._wait:g} s"
                return CotuneError(Code.QUORUM, what, got=there, expected=needed, fix="start SuperNodes, or raise wait")
            time.sleep(min(POLL, left))
        return None


def comparable(contents: Sequence[RecordDict]) -> list[RecordDict]:
    """The records with those metrics alone that every reply has, as finite numbers or as lists of the same length.

    What differs between replies would end the run in Flower's own aggregation.
    """
    every = [next(iter(content.metric_records.items())) for content in contents]
    forms = {name: {_form(record.get(name)) for _, record in every} for name in every[0][1]}
    names = [name for name, found in forms.items() if len(found) == 1 and None not in found]
    return [
        RecordDict({key: MetricRecord({name: record[name] for name in names}), **content.array_records})
        for content, (key, record) in zip(contents, every, strict=True)
    ]


def _form(value: Any) -> int | None:
    """The length of a list, −1 of a number; None of what is not finite."""
    numbers = value if isinstance(value, list) else [value]
    if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
        return None
    return len(numbers) if isinstance(value, list) else -1


def _content(reply: Message) -> RecordDict:
    """The records of a reply; E_CLIENT for an error in their place, whose text stays where it is."""
    if reply.has_error():
        raise CotuneError(Code.CLIENT, "an error in place of a reply", got=f"Flower's error {reply.error.code}")
    return reply.content


def wide(tensor: Tensor) -> Tensor:
    """At least float32, which is what aggregators compute with."""
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _narrow(tensor: Tensor, dtype: str) -> Tensor:
    """Back in the dtype that the app uses; whole numbers are rounded."""
    kind: torch.dtype = getattr(torch, dtype)
    return (tensor if kind.is_floating_point else tensor.round()).to(kind)
