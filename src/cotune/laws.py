"""The laws of every room, run on any part: ours in the tests, anybody's by `cotune check`.

A law is a function whose docstring is the sentence that it checks; it raises AssertionError with what it saw. Laws use
tensors of a few numbers, and the trainables a model of a few thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from cotune.backbone import Backbone, Loaded
from cotune.backbone.bind import bind
from cotune.core.change import Base, Commit, Contribution, Origin, Server, Tensors
from cotune.core.contracts import (
    Aggregator,
    Downlink,
    Layout,
    Layouts,
    Optimizer,
    Penalty,
    Trainable,
    Uplink,
)
from cotune.core.journal import Increment
from cotune.core.part import Capability, Part, kind_of, resolve
from cotune.core.seeds import Seeds, derive, torch_generator
from cotune.core.spec import Entry, Role, Scope, Spec
from cotune.core.state import Personal, Theta, digest
from cotune.core.view import NamedTensors, View
from cotune.wire import dtype_name

Law = Callable[..., None]

# Two low-rank pairs, one of them on a layer that is not square, and a head.
SPEC = Spec(
    (
        Entry("one.A", (2, 6), Role.FACTOR_A, "one", scale=2.0),
        Entry("one.B", (6, 2), Role.FACTOR_B, "one", scale=2.0),
        Entry("two.A", (2, 5), Role.FACTOR_A, "two", scale=2.0),
        Entry("two.B", (7, 2), Role.FACTOR_B, "two", scale=2.0),
        Entry("head", (3,), Role.HEAD, "head"),
    )
)
CLIENTS = ("ada", "bo", "cy")
CAUSAL_OR_NOT = ("random:llama?layers=2&hidden=16&heads=2", "random:bert?layers=2&hidden=16&heads=2")


def check_part(part: Part) -> list[tuple[str, str | None]]:
    """(the law, what broke it or None) for every law of the part's room."""
    found: list[tuple[str, str | None]] = []
    for law in laws_of(part):
        try:
            law(part)
        except Exception as error:  # noqa: BLE001  # a part of anybody's may raise anything; that breaks the law
            said = (
                str(error) if isinstance(error, AssertionError) and str(error) else f"{type(error).__name__}: {error}"
            )
            found.append((sentence(law), said.strip().splitlines()[0]))
        else:
            found.append((sentence(law), None))
    return found


def laws_of(part: Part) -> Sequence[Law]:
    """The laws of every part, and those of its room."""
    return (
        *LAWS[Part],
        *(law for room, laws in LAWS.items() if room is not Part and isinstance(part, room) for law in laws),
    )


def sentence(law: Law) -> str:
    """What a law says."""
    return (law.__doc__ or "").strip().splitlines()[0]


def numbers(seed: int, spec: Spec = SPEC, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Standard normal numbers for every name of a spec, drawn name by name."""
    return {
        e.name: torch.randn(e.shape, generator=torch_generator(derive(seed, e.name)), dtype=torch.float64).to(dtype)
        for e in spec
    }


def view(seed: int = 1, dtype: torch.dtype = torch.float32, train: tuple[str, ...] = SPEC.names) -> View:
    """A client in its second round, some way from its anchor."""
    shared = tuple(name for name in train if SPEC[name].shared)
    return View(
        round=2,
        client="ada",
        theta=Theta(numbers(seed, dtype=dtype)),
        personal=Personal(),
        private={},
        anchor=Theta(numbers(seed + 1, dtype=dtype)),
        aux=numbers(seed + 2, dtype=dtype),
        seeds=Seeds(seed=seed),
        spec=SPEC,
        scope=Scope(train, shared, shared),
    )


@dataclass(frozen=True)
class Quadratic:
    """Loss of row i: ½ ‖θ − target_i‖² over all names: an objective whose gradient anyone can check."""

    targets: Sequence[NamedTensors]

    def __call__(self, tensors: NamedTensors) -> Tensor:
        """Losses (rows,)."""
        rows = []
        for target in self.targets:
            squares = [(tensor - target[name]).square().sum() for name, tensor in tensors.items()]
            rows.append(torch.stack(squares).sum() / 2)
        return torch.stack(rows)

    def microbatches(self) -> Iterator[Quadratic]:
        """One row at a time."""
        return (Quadratic([target]) for target in self.targets)

    @property
    def rows(self) -> int:
        """How many targets."""
        return len(self.targets)


OBJECTIVE = Quadratic([numbers(11), numbers(12)])


@dataclass
class ListJournal:
    """A journal in memory."""

    increments: list[Increment] = field(default_factory=list)

    def append(self, increment: Increment) -> None:
        """Add one."""
        self.increments.append(increment)

    def since(self, held: int) -> Sequence[Increment]:
        """Those after version `held`."""
        return [increment for increment in self.increments if increment.round > held]


def layout_of(named: NamedTensors) -> Layout:
    """The layout of tensors at hand."""
    return {name: (dtype_name(tensor.dtype), tuple(tensor.shape)) for name, tensor in named.items()}


def _same(what: str, got: object, expected: object) -> None:
    assert got == expected, f"{what}: got {got}, expected {expected}"


def _close(what: str, got: Tensor, expected: Tensor, tolerance: float) -> None:
    error = float((got.double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-12))
    assert error <= tolerance, f"{what}: relative error {error:.1e}, allowed {tolerance:.0e}"


# ---- every part


def is_a_value(part: Part) -> None:
    """It equals the part that its own table makes, and hashes alike."""
    again = resolve("part", {kind_of(type(part)): type(part)}, part.model_dump())
    _same("the part made from its table", again, part)
    _same("its hash", hash(again), hash(part))


def says_what_it_does(part: Part) -> None:
    """The first line of its docstring says what it does."""
    assert len(type(part).summary()) > 10, "no docstring"


# ---- penalties


def penalty_is_differentiable(part: Penalty) -> None:
    """It is a finite 0-dim number whose gradient is that of finite differences, in float64."""
    at, here = numbers(3, dtype=torch.float64), view(dtype=torch.float64)
    names, leaves = list(at), [tensor.requires_grad_() for tensor in at.values()]

    def value(*inputs: Tensor) -> Tensor:
        return part(dict(zip(names, inputs, strict=True)), here)

    result = value(*leaves)
    _same("its shape", tuple(result.shape), ())
    assert bool(torch.isfinite(result)), "not finite"
    assert torch.autograd.gradcheck(value, leaves), "gradient differs from finite differences"


def penalty_leaves_inputs(part: Penalty) -> None:
    """It leaves its inputs as they are."""
    at, here = numbers(3), view()
    before = digest(at), here.theta.sha256(), here.anchor.sha256()
    part(at, here)
    _same("inputs", (digest(at), here.theta.sha256(), here.anchor.sha256()), before)


def penalty_vanishes_at_the_anchor(part: Penalty) -> None:
    """If it needs an anchor, it is zero there, and its gradient too."""
    if Capability.ANCHOR not in part.needs:
        return
    here = view()
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in here.anchor.items()}
    value = part(leaves, here)
    _same("at the anchor", float(value.detach()), 0.0)
    for name, grad in zip(leaves, torch.autograd.grad(value, list(leaves.values()), allow_unused=True), strict=True):
        assert grad is None or not bool(grad.any()), f"gradient of {name} is not zero at the anchor"


def penalty_vectorizes(part: Penalty) -> None:
    """If it says so, clients as a leading axis give what one after another give."""
    if Capability.VECTORIZABLE not in part.gives:
        return
    here, clients = view(), [numbers(seed) for seed in range(3)]
    stacked = {name: torch.stack([client[name] for client in clients]) for name in SPEC.names}
    together = torch.func.vmap(lambda at: part(at, here))(stacked)
    _close("vmap", together, torch.stack([part(client, here) for client in clients]), 1e-5)


# ---- optimizers


def _begun(part: Optimizer, here: View) -> tuple[View, object]:
    here = part.begin(here, OBJECTIVE)
    return here, part.init(here)


def optimizer_is_pure(part: Optimizer) -> None:
    """A step leaves its inputs as they are, and the same step again gives the same bits."""
    here, state = _begun(part, view())
    before = here.theta.sha256(), {kind: private.sha256() for kind, private in here.private.items()}
    first, second = (part.step(here, state, OBJECTIVE).view.theta.sha256() for _ in range(2))
    after = here.theta.sha256(), {kind: private.sha256() for kind, private in here.private.items()}
    _same("inputs", after, before)
    _same("the same step again", second, first)


def optimizer_moves_what_trains(part: Optimizer) -> None:
    """A step moves the names in scope, keeps their shapes and dtypes, and no other name."""
    chosen = ("one.B", "head")
    here, state = _begun(part, view(train=chosen))
    after = part.step(here, state, OBJECTIVE).view
    _same("layout", layout_of(after.theta), layout_of(here.theta))
    moved = tuple(name for name in SPEC.names if not torch.equal(after.theta[name], here.theta[name]))
    _same("what moved", moved, chosen)
    _same("steps counted", after.step, here.step + 1)


def optimizer_obeys_the_schedule(part: Optimizer) -> None:
    """Where the schedule's factor is 0, a step changes nothing, bit for bit."""
    here, state = _begun(part, replace(view(), rate=0.0))
    _same("theta", part.step(here, state, OBJECTIVE).view.theta.sha256(), here.theta.sha256())


def optimizer_descends(part: Optimizer) -> None:
    """Thirty steps on a quadratic lower its loss."""
    here = replace(view(), aux={name: torch.zeros_like(tensor) for name, tensor in view().theta.items()})
    here, state = _begun(part, here)
    start = float(OBJECTIVE(here.trained).mean())
    for _ in range(30):
        here, state, *_rest = part.step(here, state, OBJECTIVE)
    end = float(OBJECTIVE(here.trained).mean())
    assert end < start, f"loss went from {start:.4g} to {end:.4g}"


def optimizer_hands_out_its_gradient(part: Optimizer) -> None:
    """If it gives a gradient, that is the gradient of the mean loss."""
    if Capability.GRADIENT not in part.gives:
        return
    here, state = _begun(part, view())
    gradient = part.step(here, state, OBJECTIVE).gradient
    assert gradient is not None, "no gradient"
    for name, tensor in here.trained.items():
        mean = torch.stack([target[name] for target in OBJECTIVE.targets]).mean(0)
        _close(f"gradient of {name}", gradient[name], tensor - mean, 1e-5)


def optimizer_fills_its_outbox(part: Optimizer) -> None:
    """What it sends beside theta has the layout that it announces."""
    here, state = _begun(part, view())
    after = part.end(part.step(here, state, OBJECTIVE).view)
    _same("outbox", layout_of(after.outbox), dict(part.outbox(SPEC, here.scope)))


# ---- wire


def origin_of(here: View) -> Origin:
    """Where a view started from."""
    return Origin(here.anchor, here.directions, here.rate, here.spec, here.scope)


def uplink_is_exact(part: Uplink) -> None:
    """What is opened is what was packed, bit for bit unless it says that it is lossy, in the layout announced."""
    here = view()
    parts = part.pack(here, ())
    _same("layout", {name: layout_of(named) for name, named in parts.items()}, _plain(part.layout(SPEC, here.scope, 1)))
    if Capability.LOSSY not in part.gives:
        _same("theta", part.open(parts, origin_of(here)).dense().sha256(), here.theta.select(here.scope.up).sha256())


def uplink_adds_what_it_opens(part: Uplink) -> None:
    """Adding a change to a sum adds weight times its dense form, in float64."""
    here = view()
    change = part.open(part.pack(here, ()), origin_of(here))
    total = {name: torch.zeros(SPEC[name].shape, dtype=torch.float64) for name in here.scope.up}
    change.add_to(total, 3.0)
    for name, tensor in change.dense().items():
        _close(name, total[name], 3.0 * tensor.double(), 1e-12)


def downlink_reaches_the_newest(part: Downlink) -> None:
    """From every version that a client may hold, it arrives at the newest theta; its layout is the one announced."""
    scope = Scope(SPEC.names, SPEC.shared, SPEC.shared)
    history, journal = [Theta(numbers(0))], ListJournal()
    changes = (("one.A",), ("one.B", "head"), ("head",))
    for round_, names in enumerate(changes, start=1):
        fresh = numbers(round_)
        history.append(history[-1].replace({name: fresh[name] for name in names}))
        journal.append(Increment(round_, names))
    for held, old in enumerate(history):
        parts = part.pack(history[-1], scope, journal, held)
        _same(f"theta from version {held}", part.open(parts, old).sha256(), history[-1].sha256())
        announced = part.layout(SPEC, scope, changes[held:])
        _same("layout", {name: layout_of(named) for name, named in parts.items()}, _plain(announced))


def _plain(layouts: Layouts) -> dict[str, Layout]:
    return {part: dict(layout) for part, layout in layouts.items()}


# ---- aggregators


def _aggregate(part: Aggregator, clients: Sequence[str], weights: Sequence[float], order: Sequence[int]) -> Commit:
    aux = {name: torch.zeros(shape) for name, (_, shape) in part.broadcast(SPEC).items()}
    server = Server(round=2, population=4, spec=SPEC, up=SPEC.shared, aux=aux)
    fold = part.init(Theta(numbers(20)), server)
    for i in order:
        change = Tensors(Theta(numbers(derive(30, clients[i]))))
        fold = part.add(fold, Contribution(clients[i], weights[i], change, SPEC, numbers(derive(40, clients[i]))))
    return part.finish(fold)


def effective(theta: NamedTensors, base: Base) -> dict[str, Tensor]:
    """What theta does to the model: scale · B A plus what is added to the backbone; other tensors as they are."""
    done = {}
    for module in ("one", "two"):
        product = SPEC[f"{module}.B"].scale * theta[f"{module}.B"].double() @ theta[f"{module}.A"].double()
        done[module] = product + (base.delta(module).double() if module in base.factors else 0.0)
    return {**done, "head": theta["head"].double()}


def aggregator_keeps_layout(part: Aggregator) -> None:
    """It keeps theta's names, shapes and dtypes, and what it sends besides has the layout that it announces."""
    commit = _aggregate(part, CLIENTS, (1.0, 2.0, 3.0), (0, 1, 2))
    _same("theta", layout_of(commit.theta), layout_of(numbers(0)))
    _same("aux", layout_of(commit.aux), dict(part.broadcast(SPEC)))
    _same("base", layout_of(commit.base.tensors()), dict(part.increment([SPEC] * 3)))
    for name, tensor in commit.theta.items():
        assert bool(torch.isfinite(tensor).all()), f"{name} is not finite"


def aggregator_is_identity_for_one(part: Aggregator) -> None:
    """One client's model comes back: bit for bit where replies add up name by name, else to 1e-6."""
    commit, sent = _aggregate(part, CLIENTS, (7.0, 0.0, 0.0), (0,)), numbers(derive(30, CLIENTS[0]))
    if Capability.FACTORS not in part.gives:
        _same("theta", commit.theta.sha256(), Theta(sent).sha256())
    got, expected = effective(commit.theta, commit.base), effective(sent, Base())
    for name, tensor in expected.items():
        _close(name, got[name], tensor, 1e-6)


def aggregator_ignores_order(part: Aggregator) -> None:
    """The order in which replies are added does not matter."""
    weights = (1.0, 2.0, 3.0)
    first, second = (_aggregate(part, CLIENTS, weights, order) for order in ((0, 1, 2), (2, 0, 1)))
    ours, theirs = effective(first.theta, first.base), effective(second.theta, second.base)
    for name, tensor in ours.items():
        _close(name, theirs[name], tensor, 1e-6)


def aggregator_weighs_in_proportion(part: Aggregator) -> None:
    """Ten times every weight is the same round; another share is another round."""
    once, tenfold, other = (
        _aggregate(part, CLIENTS, weights, (0, 1, 2))
        for weights in ((1.0, 2.0, 3.0), (10.0, 20.0, 30.0), (3.0, 2.0, 1.0))
    )
    for name, tensor in effective(once.theta, once.base).items():
        _close(name, effective(tenfold.theta, tenfold.base)[name], tensor, 1e-6)
    assert digest(effective(other.theta, other.base)) != digest(effective(once.theta, once.base)), (
        "weights do not count"
    )


# ---- trainables


def _attached(part: Trainable, ref: str, seed: int, share: str = "all") -> tuple[Loaded, Theta, Personal, Spec]:
    backbone = Backbone(ref=ref).load("classification", 2, seed=5)
    return (backbone, *part.attach(backbone, seed, share))


def _logits(backbone: Loaded, named: NamedTensors, spec: Spec) -> Tensor:
    ids = torch.arange(10, 22).reshape(2, 6)
    with torch.no_grad(), bind(backbone.model, named, spec) as bound:
        logits: Tensor = bound(named, input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    return logits


def trainable_is_derived(part: Trainable) -> None:
    """Its start is a function of the seed: both sides derive the same theta, whatever was drawn before."""
    for ref in CAUSAL_OR_NOT:
        first = _attached(part, ref, seed=1)
        torch.rand(3)
        second = _attached(part, ref, seed=1)
        _same("theta", second[1].sha256(), first[1].sha256())
        _same("spec", second[3].digest, first[3].digest)


def trainable_says_what_it_trains(part: Trainable) -> None:
    """Its table, its tensors and the model's parameters agree in names and shapes, and `none` shares nothing."""
    for ref in CAUSAL_OR_NOT:
        backbone, theta, personal, spec = _attached(part, ref, seed=1)
        own = {**theta, **personal}
        _same("names", sorted(own), sorted(spec.names))
        parameters = dict(backbone.model.named_parameters())
        for entry in spec:
            _same(f"shape of {entry.name}", tuple(own[entry.name].shape), entry.shape)
            _same(f"parameter {entry.name}", tuple(parameters[entry.name].shape), entry.shape)
            _same(f"dtype of {entry.name}", own[entry.name].dtype, torch.float32)
        scope = part.scope(spec, 1)
        assert set(scope.up) | set(scope.down) <= set(spec.shared), "something personal travels"
        assert set(scope.train) <= set(spec.names), "something unknown trains"
        _same("shared under 'none'", len(_attached(part, ref, seed=1, share="none")[1]), 0)


def trainable_starts_at_the_backbone(part: Trainable) -> None:
    """At its start the model computes what the backbone computes, and afterwards the backbone is as it was."""
    for ref in CAUSAL_OR_NOT:
        plain = Backbone(ref=ref).load("classification", 2, seed=5)
        backbone, theta, personal, spec = _attached(part, ref, seed=1)
        frozen = digest(dict(backbone.model.named_parameters()))
        own = {**theta, **personal}
        assert torch.equal(_logits(backbone, own, spec), _logits(plain, {}, Spec(()))), f"other logits on {ref}"
        _logits(backbone, {name: tensor + 1 for name, tensor in own.items()}, spec)
        _same("frozen parameters", digest(dict(backbone.model.named_parameters())), frozen)


def trainable_reaches_the_loss(part: Trainable) -> None:
    """Every tensor that trains reaches the loss, and nothing else in the model asks for a gradient."""
    for ref in CAUSAL_OR_NOT:
        backbone, theta, personal, spec = _attached(part, ref, seed=1)
        own = {name: tensor.clone().requires_grad_() for name, tensor in {**theta, **personal}.items()}
        asking = [name for name, parameter in backbone.model.named_parameters() if parameter.requires_grad]
        _same("parameters that ask for a gradient", asking, [])
        ids = torch.arange(10, 22).reshape(2, 6)
        with bind(backbone.model, own, spec) as bound:
            loss = bound(own, input_ids=ids, attention_mask=torch.ones_like(ids)).logits.square().sum()
            train = part.scope(spec, 1).train
            grads = torch.autograd.grad(loss, [own[name] for name in train], allow_unused=True)
        unreached = [name for name, grad in zip(train, grads, strict=True) if grad is None]
        _same("unreached", unreached, [])


LAWS: Mapping[type[Part], tuple[Law, ...]] = {
    Part: (is_a_value, says_what_it_does),
    Penalty: (
        penalty_is_differentiable,
        penalty_leaves_inputs,
        penalty_vanishes_at_the_anchor,
        penalty_vectorizes,
    ),
    Optimizer: (
        optimizer_is_pure,
        optimizer_moves_what_trains,
        optimizer_obeys_the_schedule,
        optimizer_descends,
        optimizer_hands_out_its_gradient,
        optimizer_fills_its_outbox,
    ),
    Uplink: (uplink_is_exact, uplink_adds_what_it_opens),
    Downlink: (downlink_reaches_the_newest,),
    Aggregator: (
        aggregator_keeps_layout,
        aggregator_is_identity_for_one,
        aggregator_ignores_order,
        aggregator_weighs_in_proportion,
    ),
    Trainable: (
        trainable_is_derived,
        trainable_says_what_it_trains,
        trainable_starts_at_the_backbone,
        trainable_reaches_the_loss,
    ),
}
