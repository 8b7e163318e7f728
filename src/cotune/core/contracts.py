"""The contracts of the rooms: every part is a frozen value with pure methods; only `bind` touches the shared model.

`Layout` is what messages are checked against and sized by: name -> (dtype, shape), with torch's dtype names.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from torch import Tensor, nn

from cotune.core.change import Base, Change, Commit, Contribution, Origin, Server
from cotune.core.errors import CotuneError
from cotune.core.events import Say, silent
from cotune.core.journal import Increment, Journal, Refold
from cotune.core.message import Parts
from cotune.core.part import Capability, Part
from cotune.core.rows import Batch as Batch  # noqa: PLC0414  # tasks import these from here
from cotune.core.rows import Corpus as Corpus  # noqa: PLC0414
from cotune.core.rows import Encoded as Encoded  # noqa: PLC0414
from cotune.core.rows import Row as Row  # noqa: PLC0414
from cotune.core.rows import Split as Split  # noqa: PLC0414
from cotune.core.seeds import Seeds
from cotune.core.spec import Scope, Share, Spec
from cotune.core.state import Personal, Private, Theta
from cotune.core.view import NamedTensors, Objective, Step, View

Layout = Mapping[str, tuple[str, tuple[int, ...]]]
Layouts = Mapping[str, Layout]


class Attachable(Protocol):
    """What a trainable needs of a backbone; shapes are enough."""

    @property
    def model(self) -> nn.Module:
        """The shared model; nothing in it requires a gradient."""
        ...

    @property
    def trunk(self) -> nn.Module:
        """The module in it that runs the layers: every forward pass goes through its call, with keyword arguments."""
        ...

    @property
    def head(self) -> tuple[str, ...]:
        """Parameter names of the task head: those that no pretraining has seen."""
        ...

    @property
    def gives(self) -> frozenset[Capability]:
        """What the backbone offers to parts."""
        ...


class Backbone(Attachable, Protocol):
    """A loaded backbone: a frozen model, and what is known about it."""

    @property
    def tokenizer(self) -> Any:
        """The tokenizer that belongs to the model."""
        ...

    @property
    def limit(self) -> int:
        """How many tokens of a row fit."""
        ...

    @property
    def device(self) -> str:
        """Where the model is."""
        ...

    @property
    def digest(self) -> str:
        """SHA-256 of the frozen weights and their configuration."""
        ...

    @property
    def drawn(self) -> tuple[str, ...]:
        """Parameter names outside the head that no file has: an export must carry them, as it carries the head."""
        ...


@dataclass(frozen=True)
class Trained:
    """A trained model as a value: what `bind` takes, and how the user names the backbone.

    Attributes:
        backbone: with the trainable attached.
        spec: the table of the tensors.
        tensors: every trained tensor; a name that is left out keeps the frozen value.
        base: what is added beside frozen weights.
        origin: the hub id, the path, or the whole reference of the backbone.
        revision: of a hub id.
        window: tokens that softmax attention sees; None for all.
        sinks: first tokens that stay visible beside the window.
    """

    backbone: Backbone
    spec: Spec
    tensors: NamedTensors
    base: Base
    origin: str
    revision: str | None = None
    window: int | None = None
    sinks: int = 0


class Trainable(Part):
    """What trains: finds or adds tensors in a backbone and says which of them travel."""

    @abstractmethod
    def attach(self, backbone: Attachable, seed: int, share: Share) -> tuple[Theta, Personal, Spec]:
        """The start of training: what travels, what stays, and the table of both; a function of the seed alone."""

    @property
    def public(self) -> str | None:
        """A reference of public text that the start of training depends on; None where it depends on none."""
        return None

    def started(self, backbone: Backbone, tensors: NamedTensors, windows: Sequence[Sequence[int]]) -> NamedTensors:
        """What the public text, as windows of token ids, changes of the start: name -> value."""
        del backbone, tensors, windows
        return {}

    def scope(self, spec: Spec, round_: int) -> Scope:
        """Names that train, go up, come down in a round; by default everything that is shared travels."""
        del round_
        return Scope(train=spec.names, up=spec.shared, down=spec.shared)

    def fit(self, theta: Theta, spec: Spec) -> Theta:
        """`theta` as a client of another rank holds it."""
        del spec
        return theta

    def restart(self, theta: Theta, spec: Spec, seed: int) -> Theta:
        """`theta` with its factors as a start from `seed` draws them; itself where there are none."""
        del spec, seed
        return theta

    def describe(self, theta: Theta, spec: Spec) -> Mapping[str, float]:
        """Named numbers about a committed theta, recorded each round; `gate/LAYER` is drawn by layer in a report."""
        del theta, spec
        return {}

    def adapter(self, trained: Trained) -> Mapping[str, bytes] | None:
        """File name -> content of a folder that other libraries load beside the backbone; None where there is none."""
        del trained
        return None

    def weights(self, trained: Trained) -> Mapping[str, Tensor] | None:
        """Every tensor of the model under the names that it has with nothing attached; None where no such model is."""
        del trained
        return None


class ClientPart(Part):
    """A part that runs on the client; the hooks are optional and return the view they were given, or its successor."""

    def begin(self, view: View, objective: Objective) -> View:
        """Before the first step."""
        del objective
        return view

    def observe(self, before: View, after: View, gradient: NamedTensors | None) -> View:
        """After each step."""
        del before, gradient
        return after

    def end(self, view: View) -> View:
        """After the last step."""
        return view

    def outbox(self, spec: Spec, scope: Scope) -> Layout:
        """The layout of what this part sends beside theta."""
        del spec, scope
        return {}


class Optimizer(ClientPart):
    """Moves the trained tensors of a view; holds only its own numbers."""

    @abstractmethod
    def init(self, view: View) -> Any:
        """The state before the first step of a round."""

    @abstractmethod
    def step(self, view: View, state: Any, objective: Objective) -> Step:
        """One step; inputs are left as they are, but for the trained tensors of a view that says they are its own."""

    def layer(self, ahead: Sequence[int]) -> int | None:
        """The first layer of the back half, where the model is to run in two; None where it runs as it is.

        Args:
            ahead: how many trained numbers come before layer 1, 2, …, and at last all there are.
        """
        del ahead
        return None

    def traced(self, steps: int) -> Layout:
        """The layout of what replays so many steps; nothing where they cannot be replayed."""
        del steps
        return {}

    def describe(self, traces: Sequence[NamedTensors], rate: float = 1.0) -> Mapping[str, float]:
        """Named numbers about the steps of a round, recorded with it, from what each client's steps are replayed by.

        `rate` is the schedule's factor of the round.
        """
        del traces, rate
        return {}


class Penalty(ClientPart):
    """A term of the client's objective."""

    @abstractmethod
    def __call__(self, tensors: NamedTensors, view: View) -> Tensor:
        """The penalty at `tensors`, 0-dim and differentiable."""


class Personalize(ClientPart):
    """How a client makes the global theta its own."""

    @abstractmethod
    def view(self, theta: Theta, private: Private) -> Theta:
        """The theta that this client is evaluated with."""


class Uplink(Part):
    """How a client's training is sent."""

    def begin(self, view: View) -> View:
        """The view as training starts from it, where what is to be sent decides how a client may move."""
        return view

    @abstractmethod
    def pack(self, view: View, traces: Sequence[object]) -> Parts:
        """The message parts of what a client arrived at."""

    @abstractmethod
    def open(self, parts: Parts, origin: Origin) -> Change:
        """The change that the parts stand for, given where training started from."""

    @abstractmethod
    def layout(self, spec: Spec, scope: Scope, steps: int) -> Layouts:
        """Which parts `pack` makes: their names, dtypes and shapes."""

    def carries(self, traced: Layout) -> Layouts:
        """Which parts `pack` makes of an optimizer's traces; none where theta itself is sent."""
        del traced
        return {}

    def directions(self, seeds: Seeds, round_: int, client: str) -> int:
        """The seed that the server issues for a client's directions; 0 where there are none."""
        del seeds, round_, client
        return 0


class Downlink(Part):
    """How theta comes down to a client that holds an older one; version 0 is the start, which all can derive."""

    holds: ClassVar[bool] = False  # whether a client keeps theta for the next message to build on

    @abstractmethod
    def pack(self, theta: Theta, scope: Scope, journal: Journal, held: int) -> Parts:
        """The message parts that bring version `held` to `theta`."""

    @abstractmethod
    def open(self, parts: Parts, held: Theta, refold: Refold) -> Theta:
        """The theta that the parts stand for, on top of the one held; `refold` repeats a round from its replies."""

    @abstractmethod
    def layout(self, spec: Spec, scope: Scope, past: Sequence[Increment]) -> Layouts:
        """Which parts `pack` makes, given the rounds since the version held; of their tensors, shapes are enough."""

    @property
    def builds_on(self) -> int | None:
        """How many of the last committed rounds its messages may build on; None for any."""
        return None


class Aggregator(Part):
    """A fold over accepted replies: memory does not grow with the number of clients, unless products are kept."""

    restarts: ClassVar[bool] = False  # whether both sides draw factors anew for every round

    @abstractmethod
    def init(self, theta: Theta, server: Server) -> Any:
        """The empty fold of a round that started from `theta`."""

    @abstractmethod
    def add(self, fold: Any, contribution: Contribution) -> Any:
        """The fold with one more client; the server calls it in the order of the client ids."""

    @abstractmethod
    def finish(self, fold: Any) -> Commit:
        """What the round has come to."""

    def broadcast(self, spec: Spec) -> Layout:
        """The layout of what comes down beside theta."""
        del spec
        return {}

    def increment(self, specs: Sequence[Spec]) -> Layout:
        """The layout of what a round adds to the backbone, `module/B` and `module/A`, given its clients' tables."""
        del specs
        return {}

    def moved(self, spec: Spec, names: Sequence[str]) -> tuple[str, ...]:
        """The theta names that commits move, given those that go up; what comes down follows by the same rule."""
        del spec
        return tuple(names)


class Task(Part):
    """Versioned data and how a model is trained and scored on it."""

    version: ClassVar[int]
    ratios: ClassVar[Mapping[str, tuple[str, str]]] = {}  # metric -> (above, below): exp(Σ above / Σ below) over rows
    rowwise: ClassVar[bool] = True  # whether `encode` makes exactly one example of every row

    @property
    @abstractmethod
    def head(self) -> str:
        """Of the model: 'causal', 'classification', 'multiple-choice' or 'masked'; mostly a class attribute."""

    @property
    @abstractmethod
    def metrics(self) -> tuple[str, ...]:
        """What `judged` returns for each row, 'loss' among them; mostly a class attribute."""

    @abstractmethod
    def load(self, seeds: Seeds, say: Say = silent) -> Corpus:
        """The data, divided among the clients; a function of the data seed alone. `say` is told before a download."""

    def chance(self, corpus: Corpus, vocabulary: int) -> Mapping[str, float]:
        """Metric -> what guessing scores, for a model that tells `vocabulary` tokens apart."""
        del vocabulary
        return corpus.chance

    def cell(self, row: Row) -> str:
        """The stratum of a test row, say 'gap 64', in which its shares are averaged too; '' for none.

        Asked of tasks that make one example of a row, or say in `sources` which row is behind each.
        """
        del row
        return ""

    @abstractmethod
    def encode(self, rows: Sequence[Row], tokenizer: Any, limit: int) -> Encoded:
        """Rows as token ids, at most `limit` each."""

    @abstractmethod
    def collate(self, examples: Sequence[Mapping[str, Any]], tokenizer: Any) -> Batch:
        """Examples as one padded batch."""

    @abstractmethod
    def losses(self, model: Callable[..., Any], batch: Batch) -> Tensor:
        """Training losses (rows,), float32."""

    @abstractmethod
    def scores(self, model: Callable[..., Any], batch: Batch) -> Mapping[str, Tensor]:
        """Metric -> (rows,) float32; a mean over rows is the metric."""

    def judged(
        self, model: Callable[..., Any], batch: Batch, examples: Sequence[Mapping[str, Any]], tokenizer: Any
    ) -> Mapping[str, Tensor]:
        """`scores` of the batch that `examples` make; a task whose model writes an answer reads it here."""
        del examples, tokenizer
        return self.scores(model, batch)


@dataclass(frozen=True)
class ClientInfo:
    """What an engine tells the server about a client before any round."""

    id: str
    rows: int
    held: int = 0


@dataclass(frozen=True)
class Outcome:
    """How an exchange ended.

    Attributes:
        ok: clients whose reply came in time.
        failed: client -> why no reply came; the first cause, never just a timeout.
    """

    ok: tuple[str, ...] = ()
    failed: Mapping[str, CotuneError] = field(default_factory=dict)


OnReply = Callable[[str, "bytes | CotuneError"], None]


class Engine(Protocol):
    """Carries bytes to clients and back; knows nothing of what they mean."""

    def clients(self) -> Sequence[ClientInfo]:
        """Everyone who can be asked."""
        ...

    def exchange(self, downs: Mapping[str, bytes], deadline: float | None, min_ok: int, on_reply: OnReply) -> Outcome:
        """Send each client its message and hand every reply, or its failure, to `on_reply` as it arrives.

        Messages are written when they are taken: `downs[client]` once each, and not all of them at once.
        Returns when all have answered or failed, or `deadline` seconds have passed, whichever is first.
        """
        ...

    def close(self) -> None:
        """Release workers and models."""
        ...
