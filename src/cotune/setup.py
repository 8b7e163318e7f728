"""What both sides derive from the experiment alone: model, trainable, start of theta, everyone's rows."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from cotune.backbone import Backbone as BackboneConfig
from cotune.core.contracts import Attachable, Backbone, ClientInfo, Corpus, Encoded, Task
from cotune.core.events import Say, silent
from cotune.core.part import Capability, check_fit
from cotune.core.seeds import Purpose, Seeds
from cotune.core.spec import Spec
from cotune.core.state import Personal, Theta
from cotune.diagnose.flops import FlopMeter
from cotune.federation import Evaluation, Federation
from cotune.method import Method


@dataclass(frozen=True)
class Plan:
    """The common ground of a run as far as shapes tell: enough to predict every message, without a weight or a token.

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

    @property
    def clients(self) -> list[ClientInfo]:
        """Every client, with how many rows it trains on and holds back."""
        return [ClientInfo(name, len(rows.train), len(rows.held)) for name, rows in sorted(self.corpus.clients.items())]

    @property
    def test_rows(self) -> int:
        """How many test rows are scored."""
        return len(self.corpus.test[: self.evaluation.rows])

    @property
    def one_model(self) -> bool:
        """Whether the global theta alone is a model: nothing personal, nothing personalised."""
        return not self.spec.personal and self.method.personalize is None

    @property
    def keeps(self) -> bool:
        """Whether a client has state of its own between rounds."""
        given = frozenset[Capability]().union(*(part.gives for _, part in self.method.parts))
        stateful = {Capability.PRIVATE, Capability.BASE} & given
        return bool(self.spec.personal or stateful or self.method.downlink.holds)

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
    """

    backbone: Backbone
    test: Encoded
    meter: FlopMeter = field(default_factory=FlopMeter, compare=False)


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

    def build(self, say: Say = silent) -> Setup:
        """Load, divide, attach, encode; `say` is told before a download.

        Raises:
            CotuneError: what loading a backbone or data raises; E_CONFLICT when a part needs what the backbone lacks.
        """
        corpus = self.task.load(self.seeds, say)
        backbone = self.backbone.load(corpus.head, len(corpus.labels), self.seeds.of(Purpose.INIT, "backbone"), say)
        test = self.task.encode(corpus.test[: self.evaluation.rows], backbone.tokenizer, backbone.limit)
        return Setup(**self._fields(corpus, backbone), backbone=backbone, test=test)

    def sketch(self, corpus: Corpus) -> Plan:
        """The same from the backbone's shapes alone."""
        return Plan(**self._fields(corpus, self.backbone.skeleton(corpus.head, len(corpus.labels))))

    def _fields(self, corpus: Corpus, backbone: Attachable) -> dict[str, Any]:
        self.federation.check(self.method)
        check_fit(self.method.parts, {*backbone.gives, Capability.ANCHOR})
        seed = self.seeds.of(Purpose.INIT, "theta")
        start, personal, spec = self.method.trainable.attach(backbone, seed, self.method.share)
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "backbone"}
        return given | {"corpus": corpus, "start": start, "personal": personal, "spec": spec}
