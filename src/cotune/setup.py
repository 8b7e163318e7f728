"""What both sides derive from the experiment alone: model, trainable, start of theta, everyone's rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, overload

from cotune.backbone import Backbone as BackboneConfig
from cotune.backbone.cut import ahead, blocks
from cotune.backbone.frozen import Frozen, unchanging
from cotune.core.contracts import Attachable, Backbone, ClientInfo, Corpus, Encoded, Row, Split, Task
from cotune.core.errors import Code, CotuneError
from cotune.core.events import Say, silent
from cotune.core.journal import Increment
from cotune.core.part import Capability, check_fit
from cotune.core.seeds import Purpose, Seeds
from cotune.core.spec import Spec
from cotune.core.state import Personal, Theta
from cotune.diagnose.flops import FlopMeter
from cotune.federation import Evaluation, Federation
from cotune.method import Method
from cotune.task.general import General, general
from cotune.wire import BYTES_A_REPLY, payload

_NOT_OF_CLIENTS = ("data", "files", "skipped", "test", "test_manifest", "splits")  # facts that hold wherever rows are
PUBLIC, WINDOW = 64, 256  # windows of public text that a start may depend on, and their tokens at most


class Elsewhere(Sequence[Row]):
    """Rows that another machine has: how many, and nothing else."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> Elsewhere: ...

    def __getitem__(self, index: int | slice) -> Row | Elsewhere:
        if isinstance(index, slice):
            return Elsewhere(len(range(*index.indices(self._count))))
        raise CotuneError(Code.DATA, "the rows of this client are elsewhere", got=f"row {index}")


@dataclass(frozen=True)
class Plan:
    """The common ground of a run as far as shapes tell: enough to predict every message, without a weight or a token.

    Where a task makes several examples of a row, or none, a row counts as one until a tokenizer is there.

    Attributes:
        run: the experiment's hash, 16 hex digits.
        method: its parts.
        federation: who takes part.
        evaluation: when and on what a model is scored.
        task: data and scoring.
        seeds: derived randomness.
        corpus: everyone's rows.
        spec: the server's table.
        start: theta before training.
        personal: what stays with each client, before training.
        cut: the first layer of the back half, where an optimizer cuts the model in two.
        past: round -> what the journal keeps of it, once it was predicted.
    """

    run: str
    method: Method
    federation: Federation
    evaluation: Evaluation
    task: Task
    seeds: Seeds
    corpus: Corpus
    spec: Spec
    start: Theta
    personal: Personal
    cut: int | None
    past: dict[int, Increment | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def clients(self) -> list[ClientInfo]:
        """Every client, with how many rows it trains on and holds back."""
        return [self.info(client) for client in sorted(self.corpus.clients)]

    def info(self, client: str) -> ClientInfo:
        """A client, with how many rows it trains on and holds back."""
        rows = self.corpus.clients[client]
        return ClientInfo(client, len(rows.train), len(rows.held))

    @property
    def test_rows(self) -> int:
        """How many test rows are scored."""
        return len(self.corpus.test[: self.evaluation.rows])

    def train_rows(self, client: str) -> int:
        """How many examples a client trains on."""
        return len(self.corpus.clients[client].train)

    def opening(self, theta: Theta, round_: int) -> Theta:
        """The server's theta as a round starts from it: with new factors where the last are in the backbone."""
        if not self.method.aggregator.restarts or round_ == 1:
            return theta
        return self.method.trainable.restart(theta, self.spec, self.seeds.of(Purpose.INIT, "theta", round_))

    @property
    def one_model(self) -> bool:
        """Whether the global theta alone is a model: nothing personal, nothing personalised."""
        return not self.spec.personal and self.method.personalize is None

    def scores_held(self, round_: int) -> bool:
        """Whether clients score their held-back rows in a round: when it is due, and anybody asks for them."""
        asked = self.evaluation.which != "global" or not self.one_model
        return asked and self.evaluation.due(round_, self.federation.rounds)

    @property
    def keeps(self) -> bool:
        """Whether a client has state of its own between rounds."""
        given = frozenset[Capability]().union(*(part.gives for _, part in self.method.parts))
        stateful = {Capability.PRIVATE, Capability.BASE} & given
        return bool(self.spec.personal or stateful or self.method.downlink.holds)

    @cached_property
    def logged_bytes(self) -> int:
        """The most that the replies of one round take when they come down, names aside; 0 where none ever does."""
        if Capability.SCALARS not in self.method.downlink.needs:
            return 0
        clients, sizes = self.corpus.clients, list[int]()
        for group in range(len(self.federation.groups) + 1):
            method, spec = self.federation.method_in(group, self.method), self.federation.spec_in(group, self.spec)
            rows = 1 if method.budget.epochs is None else max(map(self.train_rows, clients), default=1)
            sizes.append(sum(payload({"scalars": method.sent(spec, 1, rows).get("scalars", {})}).values()))
        return len(clients) * (BYTES_A_REPLY + max(sizes))

    @cached_property
    def added_bytes(self) -> int:
        """The most that a round adds to the backbone, names aside; 0 where none ever does."""
        if Capability.BASE not in self.method.aggregator.gives:
            return 0
        increment = self.method.aggregator.increment([self.spec_of(name) for name in self.corpus.clients])
        return 4 * sum(math.prod(shape) for _, shape in increment.values())

    def method_of(self, client: str) -> Method:
        """The method as this client carries it out."""
        return self.federation.method_of(client, self.method)

    def spec_of(self, client: str) -> Spec:
        """The table of this client's tensors."""
        return self.federation.spec_of(client, self.spec)


@dataclass(frozen=True)
class Setup(Plan):
    """The common ground of a run with its model loaded.

    Attributes:
        backbone: the trainable is attached to it.
        test: the rows that no client holds, encoded.
        meter: counts FLOPs, each shape once.
        frozen: the layers in front of everything that can change, run once a row.
        general: text to measure forgetting on; None where none is given, or where models are personal.
    """

    backbone: Backbone
    test: Encoded
    frozen: Frozen = field(compare=False, repr=False)
    meter: FlopMeter = field(default_factory=FlopMeter, compare=False)
    general: General | None = None
    _known: dict[str, tuple[Encoded, Encoded]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def encoded(self, client: str) -> tuple[Encoded, Encoded]:
        """What a client trains on, and what it holds back to be scored on; encoded once."""
        if client not in self._known:
            rows, most = self.corpus.clients[client], self.evaluation.rows
            self._known[client] = self._encode(rows.train), self._encode(rows.held[:most]).first(most)
        return self._known[client]

    def told(self, clients: Sequence[ClientInfo]) -> Setup:
        """The same with the clients that an engine tells of: of those that are not here, no more than how many rows."""
        if list(clients) == self.clients:
            return self
        own = self.corpus.clients
        known = {info.id: own.get(info.id, Split(Elsewhere(info.rows), Elsewhere(info.held))) for info in clients}
        sizes = {info.id: {"train": info.rows, "held": info.held} for info in clients}
        kept = {name: value for name, value in self.corpus.facts.items() if name in _NOT_OF_CLIENTS}
        corpus = replace(self.corpus, clients=known, facts={**kept, "sizes": sizes})
        setup = replace(self, corpus=corpus)
        for info in clients:
            there = Encoded(Elsewhere(info.rows)), Encoded(Elsewhere(info.held))
            setup._known[info.id] = self.encoded(info.id) if info.id in own else there
        return setup

    def layer(self, client: str) -> int | None:
        """The first layer of the back half for a client whose optimizer cuts the model in two."""
        return self.cut if Capability.SPLIT in self.method_of(client).optimizer.needs else None

    def _encode(self, rows: Sequence[Row]) -> Encoded:
        return self.task.encode(rows, self.backbone.tokenizer, self.backbone.limit)

    def info(self, client: str) -> ClientInfo:
        """A client, with how many examples it trains on and holds back."""
        if self.task.rowwise:
            return super().info(client)
        train, held = self.encoded(client)
        return ClientInfo(client, len(train.examples), len(held.examples))

    def check_rows(self) -> None:
        """Raise E_DATA when there are rows to train on, and every one of them was dropped."""
        if any(info.rows for info in self.clients) or not any(rows.train for rows in self.corpus.clients.values()):
            return
        dropped = sum((Counter(self.encoded(client)[0].dropped) for client in self.corpus.clients), Counter[str]())
        raise CotuneError(
            Code.DATA,
            "no row to train on is left",
            where=f"task {self.task.kind}",
            got=", ".join(f"{count} {reason}" for reason, count in sorted(dropped.items())),
            fix=f"the model takes {self.backbone.limit} tokens: ask for other rows, or choose another model",
        )

    @property
    def test_rows(self) -> int:
        """How many test examples are scored."""
        return len(self.test.examples)

    @property
    def cells(self) -> list[tuple[str, ...]]:
        """The strata of each test example; none where a task does not say which row is behind an example."""
        rows, sources = self.corpus.test, self.test.sources
        if sources is None:
            sources = range(len(self.test.examples)) if self.task.rowwise else ()
        return [self.corpus.cells(source, self.task.cell(rows[source])) for source in sources]

    def train_rows(self, client: str) -> int:
        """How many examples a client trains on."""
        return super().train_rows(client) if self.task.rowwise else len(self.encoded(client)[0].examples)

    @property
    def facts(self) -> dict[str, Any]:
        """Counts worth reporting: of the corpus, of what its rows became as tokens, and of the general text."""
        found = dict(self.corpus.facts)
        if not self.task.rowwise:
            parts = [self.test, *(part for client in self.corpus.clients for part in self.encoded(client))]
            dropped = sum((Counter(part.dropped) for part in parts), Counter[str]())
            cut = sum(part.truncated for part in parts)
            found["encoded"] = {
                "examples": sum(len(part.examples) for part in parts),
                "cut": cut,
                "dropped": dict(dropped),
            }
        if self.evaluation.general is not None:
            measured = len(self.general.examples) if self.general else 0
            found["general"] = {"data": self.evaluation.general, "examples": measured}
            found["general"] |= {} if self.general else {"skipped": "models are personal"}
        return found


@dataclass(frozen=True)
class Blueprint:
    """The values that a setup is built from; small, and sent to other processes as they are."""

    run: str
    method: Method
    federation: Federation
    evaluation: Evaluation
    task: Task
    seeds: Seeds
    backbone: BackboneConfig

    def build(self, say: Say = silent, corpus: Corpus | None = None) -> Setup:
        """Load, divide, attach, encode; `say` is told before a download.

        Args:
            say: is told one line at a time.
            corpus: rows that are not those of the task's own data: a site's, or a server's.

        Raises:
            CotuneError: what loading a backbone or data raises; E_CONFLICT when a part needs what the backbone lacks.
        """
        setup = self._started(self.equip(corpus or self.task.load(self.seeds, say), say), say)
        data, rows = self.evaluation.general, self.evaluation.general_rows
        if data is None or not setup.one_model:
            return setup
        words, limit = setup.backbone.tokenizer, setup.backbone.limit
        text = general(data, rows, self.seeds, tokenizer=words, limit=limit, say=say)
        return replace(setup, general=text)

    def _started(self, setup: Setup, say: Say) -> Setup:
        """The setup from whose start training goes on, where that depends on a public text."""
        trainable, words = setup.method.trainable, setup.backbone
        if trainable.public is None:
            return setup
        text = general(
            trainable.public, PUBLIC, self.seeds, tokenizer=words.tokenizer, limit=min(words.limit, WINDOW), say=say
        )
        windows = [example["input_ids"] for example in text.examples]
        changed = trainable.started(setup.backbone, {**setup.start, **setup.personal}, windows)
        parts = {"start": setup.start, "personal": setup.personal}
        moved = {name: part.replace({n: t for n, t in changed.items() if n in part}) for name, part in parts.items()}
        return replace(setup, **moved)  # type: ignore[arg-type]  # each of its own type

    def equip(self, corpus: Corpus, say: Say = silent) -> Setup:
        """The same for data that is there already, or of which no more than the labels is needed."""
        backbone = self.backbone.load(corpus.head, len(corpus.labels), self.seeds.of(Purpose.INIT, "backbone"), say)
        model: Any = backbone.model
        chance = self.task.chance(corpus, model.get_input_embeddings().num_embeddings)
        corpus, most = replace(corpus, chance=chance), self.evaluation.rows
        test = self.task.encode(corpus.test[:most], backbone.tokenizer, backbone.limit).first(most)
        given = self._fields(corpus, backbone)
        return Setup(**given, backbone=backbone, test=test, frozen=self._frozen(given["spec"], backbone))

    def sketch(self, corpus: Corpus) -> Plan:
        """The same from the backbone's shapes alone."""
        return Plan(**self._fields(corpus, self.backbone.skeleton(corpus.head, len(corpus.labels))))

    def _fields(self, corpus: Corpus, backbone: Attachable) -> dict[str, Any]:
        self.federation.check(self.method)
        check_fit(self.method.parts, {*backbone.gives, Capability.ANCHOR})
        if self.evaluation.general is not None and Capability.CAUSAL not in backbone.gives:
            what = "forgetting is measured by predicting text, and this model predicts classes"
            fix = "leave evaluation.general out, or choose a task of language"
            raise CotuneError(Code.CONFLICT, what, where="evaluation.general", got=f"a {corpus.head} head", fix=fix)
        seed = self.seeds.of(Purpose.INIT, "theta")
        start, personal, spec = self.method.trainable.attach(backbone, seed, self.method.share)
        cut = self._cut(spec, backbone)
        spec = spec if cut is None else spec.halved(blocks(backbone.model, cut))
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "backbone"}
        return given | {"corpus": corpus, "start": start, "personal": personal, "spec": spec, "cut": cut}

    def _frozen(self, spec: Spec, backbone: Backbone) -> Frozen:
        """The layers that run once a row: none on an accelerator, or where the server adds to frozen weights."""
        known = backbone.device == "cpu" and Capability.SPLIT in backbone.gives
        changes = Capability.BASE in self.method.aggregator.gives
        return Frozen(backbone.model, unchanging(backbone.model, spec.names) if known and not changes else 0)

    def _cut(self, spec: Spec, backbone: Attachable) -> int | None:
        """The first layer of the back half, where an optimizer cuts the model in two."""
        methods = [self.method, *(group.method(self.method) for group in self.federation.groups)]
        cuts = {cut_layer(method, backbone, spec) for method in methods} - {None}
        if len(cuts) > 1:
            got = f"layers {', '.join(str(layer) for layer in sorted(cuts, key=str))}"
            raise CotuneError(Code.CONFLICT, "groups cut the model in different places", got=got, expected="one cut")
        return next(iter(cuts), None)


def cut_layer(method: Method, backbone: Attachable, spec: Spec) -> int | None:
    """The first layer of the back half, if the optimizer cuts the model in two, for a table of what trains."""
    if Capability.SPLIT not in method.optimizer.needs:
        return None
    return method.optimizer.layer(ahead(backbone.model, {entry.name: entry.numel for entry in spec}))
