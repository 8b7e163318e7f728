"""Zeroth-order training in a Flower app: nodes send scalars, and the server makes their models of them again."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from cotune.core.change import Contribution, Origin
from cotune.core.contracts import Layout
from cotune.core.errors import Code, CotuneError
from cotune.core.seeds import Seeds
from cotune.core.spec import Scope, Spec
from cotune.flower.strategy.arrays import read
from cotune.flower.strategy.checked import LOG, CheckedAvg, Round
from cotune.flower.strategy.steps import FIELDS, SEED, STEPS, optimizer_of
from cotune.flower.strategy.table import plain
from cotune.wire import ScalarsUplink


class ZOReplay(CheckedAvg):
    """Σ n_k θ_k / Σ n_k, each θ_k replayed from the scalars of its steps: 4 bytes a direction go up.

    What came down, the seed that the server issued for a round and a node, and the scalars give θ_k again, bit for bit
    as the node had it. Nodes take their steps by `zo_steps`. Arrays come down whole, as Flower sends them; where that
    is too much, run an app of ours, whose downlink is scalars too. All arrays train, and all are float32: an adapter's,
    as a rule.
    """

    def __init__(
        self,
        *,
        steps: int,
        lr: float,
        eps: float = 2.0**-10,
        directions: int = 1,
        difference: Literal["central", "forward"] = "central",
        direction: Literal["sign", "rank1"] = "sign",
        largest: float | None = None,
        seeds: Literal["each", "shared"] = "each",
        seed: int | None = None,
        **settings: Any,
    ) -> None:
        """Say how nodes train: `seeds = "each"`, P = 1 is MeZO; `shared`, P = 5, `forward` is DeComFL.

        Args:
            steps: of a round; each takes a batch.
            lr: about that of SGD over the number of trained numbers.
            eps: how far the model is moved to look; a power of two, so that ε z is exact.
            directions: P, how many ways a step looks.
            difference: on both sides of θ, or ahead and at θ itself.
            direction: all signs, or a product of two vectors of them for a matrix.
            largest: a slope beyond it is cut to it.
            seeds: each node has directions of its own, or all nodes of a round have the same.
            seed: of all directions; drawn by the operating system where none is given. It stays on the server.
            settings: CheckedAvg's and FedAvg's.

        Raises:
            CotuneError: E_CONFIG for what the optimizer does not take.
        """
        super().__init__(**settings)
        given = {"lr": lr, "mu": eps, "directions": directions, "difference": difference, "direction": direction}
        limit = {} if largest is None else {FIELDS["largest"]: largest}
        self._config = {STEPS: steps, **{FIELDS[field]: value for field, value in given.items()}, **limit}
        self._optimizer = optimizer_of(self._config)
        if not 0 < steps < 10**6:
            raise CotuneError(Code.CONFIG, "no number of steps", got=steps, expected="1 to 999999")
        self._uplink = ScalarsUplink(seeds=seeds)
        self._seeds = Seeds(seed=secrets.randbits(62) if seed is None else seed)

    def table(self, layout: Layout) -> Spec:
        """All alike, in the order of names, which is that of the directions.

        Raises:
            CotuneError: E_DTYPE for arrays that are not float32.
        """
        for name, (dtype, _) in layout.items():
            if dtype != "float32":
                what, fix = "no float32", "send those that train alone, as float32"
                raise CotuneError(Code.DTYPE, what, where=name, got=dtype, fix=fix)
        return plain(layout)

    def told(self) -> Mapping[str, bool | int | float | str]:
        """How to train; the seed is another for every message."""
        return self._config

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """FedAvg's messages, each with the seed of its node: issued once it is known who is asked.

        Raises:
            CotuneError: as CheckedAvg's.
        """
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for message in messages:
            seed = self._seed(server_round, message.metadata.dst_node_id)
            told = ConfigRecord({**message.content.config_records[self.configrecord_key], SEED: seed})
            message.content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: told})
        return messages

    def contribution(self, round_: Round, node: int, weight: float, record: ArrayRecord) -> Contribution:
        """What a node's scalars stand for.

        Raises:
            CotuneError: what is wrong with them; E_SCALAR for one that is too large.
        """
        scalars = read(record, self._optimizer.traced(self._config_steps))
        names = round_.spec.names
        seed = self._seed(round_.number, node)
        origin = Origin(round_.theta, seed, 1.0, round_.spec, Scope(names, names, names))
        return Contribution(str(node), weight, self._uplink.open({"scalars": scalars}, origin), round_.spec)

    def summary(self) -> None:
        """Flower's summary, and how nodes train."""
        super().summary()
        LOG.log(logging.INFO, "\t└──> Zeroth order: %s", ", ".join(f"{k} = {v}" for k, v in self._config.items()))

    @property
    def _config_steps(self) -> int:
        return int(self._config[STEPS])

    def _seed(self, round_: int, node: int) -> int:
        """What the directions of a node follow from in a round."""
        return self._uplink.directions(self._seeds, round_, str(node))
