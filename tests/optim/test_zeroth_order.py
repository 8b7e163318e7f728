"""Zeroth-order steps: unbiased, without a residue, the same from its scalars, and as many passes as the paper says."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cotune.backbone import Backbone, Loaded
from cotune.backbone.bind import Bound, bind
from cotune.core.change import Origin
from cotune.core.errors import Code, CotuneError
from cotune.core.seeds import Seeds, derive, torch_generator
from cotune.core.spec import Entry, Role, Scope, Spec
from cotune.core.view import View
from cotune.diagnose.flops import counting
from cotune.noise import ALL, Direction, Trace
from cotune.objective import StepObjective
from cotune.optim import ZO, SplitZO
from cotune.optim.probe import Probe
from cotune.penalty import Proximal
from cotune.task.classify import Classify
from cotune.trainable import Full, LoRA, Memory
from cotune.wire import ScalarsUplink

SPEC = Spec(
    (
        Entry("a", (3, 4), Role.FULL, "front"),
        Entry("b", (5,), Role.FULL, "front"),
        Entry("c", (2, 3), Role.FULL, "back", block=1),
        Entry("own", (4,), Role.HEAD, "head", block=1, shared=False),
    )
)
OPTIMIZERS = (
    ZO(lr=0.01, directions=2),
    ZO(lr=0.01, directions=3, difference="forward"),
    ZO(lr=0.01, direction=Direction.RANK1),
    SplitZO(lr=0.01, lr_back=0.02, directions=2, again=2),
    SplitZO(lr=0.01, again=2, share_z2=True),
    SplitZO(lr=0.01, again=2, independent_blocks=True),
)


def numbers(seed: int) -> dict[str, Tensor]:
    return {e.name: torch.randn(e.shape, generator=torch_generator(derive(seed, e.name))) for e in SPEC}


HELD = numbers(1)


def view(**fields: Any) -> View:
    theta, personal = SPEC.divide(HELD)
    scope = Scope(SPEC.names, SPEC.shared, SPEC.shared)
    start = View(1, "ada", theta, personal, {}, theta, {}, Seeds(seed=5), SPEC, scope, directions=99)
    return replace(start, **fields)


@dataclass
class Bowl:
    """½ ‖x − target‖² + slope · c · x_front·w: a loss in two halves, computed in any dtype, that counts its passes."""

    dtype: torch.dtype = torch.float64
    portions: int = 1
    cross: float = 0.0
    passes: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return self.portions

    def microbatches(self) -> Iterator[Bowl]:
        return iter([replace(self, portions=1, passes=self.passes) for _ in range(self.portions)])

    def __call__(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return self.back(tensors, self.front(tensors))

    def front(self, tensors: Mapping[str, Tensor]) -> Tensor:
        self.passes.append("front")
        return self._flat(tensors, ("a", "b"))

    def back(self, tensors: Mapping[str, Tensor], halfway: Tensor) -> Tensor:
        self.passes.append("back")
        behind = self._flat(tensors, ("c", "own"))
        loss = (halfway.square().sum() + behind.square().sum()) / 2
        loss = loss + self.cross * halfway[: len(behind)] @ behind
        return loss.float().expand(self.portions)

    def _flat(self, tensors: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
        held = {**HELD, **tensors}
        return torch.cat([held[n].to(self.dtype).view(-1) for n in names])


def gradient(objective: Bowl, here: View) -> Tensor:
    leaves = {n: t.double().requires_grad_() for n, t in here.trained.items()}
    found = torch.autograd.grad(objective(leaves).double().mean(), list(leaves.values()))
    return torch.cat([g.view(-1) for g in found])


def moved(before: View, after: View) -> Tensor:
    return torch.cat([(after.trained[n].double() - t.double()).view(-1) for n, t in before.trained.items()])


def coefficients(part: ZO | SplitZO, here: View, objective: Any) -> Mapping[str, Tensor]:
    trace = part.step(here, None, objective).trace
    assert isinstance(trace, Trace)
    return trace.coefficients


@pytest.mark.parametrize("part", OPTIMIZERS, ids=repr)
def test_the_mean_step_is_the_gradient_step(part: ZO | SplitZO) -> None:
    objective, here, draws = Bowl(cross=0.3), view(), 500
    steps = [moved(here, part.step(replace(here, directions=i + 1), None, objective).view) for i in range(draws)]
    rates = torch.full((27,), part.lr, dtype=torch.float64)
    if isinstance(part, SplitZO) and part.lr_back is not None:
        rates[17:] = part.lr_back
    expected, got = -rates * gradient(objective, here), torch.stack(steps)
    error, chance = (got.mean(0) - expected).abs(), got.std(0) / math.sqrt(draws)
    assert bool((chance < expected.abs().max() / 4).all())  # enough draws to see a factor that is missing
    assert bool((error < 4.5 * chance).all())


def test_both_signs_behind_cancel_what_they_do_to_the_slope_in_front_to_first_order() -> None:
    """Along θ₂ the loss is linear: the slope in front is that of f with θ₂ as it is, whatever z₂ is drawn."""

    @dataclass
    class Linear(Bowl):
        def back(self, tensors: Mapping[str, Tensor], halfway: Tensor) -> Tensor:
            return (halfway.square().sum() / 2 + 100 * self._flat(tensors, ("c", "own")).sum()).expand(1)

    here, objective = view(), Linear()
    alone = coefficients(SplitZO(lr=0.01, independent_blocks=True), here, objective)["0"]
    for again in (1, 3):
        nested = coefficients(SplitZO(lr=0.01, again=again), here, objective)["0"]
        torch.testing.assert_close(nested, alone, rtol=1e-4, atol=0)
    assert abs(float(coefficients(ZO(lr=0.01), here, objective)[ALL][0])) > 10 * abs(float(alone[0]))


@pytest.mark.parametrize(
    ("part", "front", "back"),
    [
        (SplitZO(lr=0.1), 2, 4),
        (SplitZO(lr=0.1, directions=3, again=4), 6, 48),
        (SplitZO(lr=0.1, directions=3, again=4, share_z2=True), 6, 48),
        (SplitZO(lr=0.1, directions=2, again=3, independent_blocks=True), 5, 28),
    ],
)
def test_a_step_runs_the_halves_as_often_as_the_paper_says(part: SplitZO, front: int, back: int) -> None:
    objective = Bowl(portions=2)
    found = coefficients(part, view(), objective)
    assert (objective.passes.count("front"), objective.passes.count("back")) == (2 * front, 2 * back)
    second = part.directions * part.again * (1 if part.share_z2 else 2)
    assert {key: len(tensor) for key, tensor in found.items()} == {"0": part.directions, "1": second}
    announced = {name: shape for name, (_, shape) in part.traced(7).items()}
    assert announced == {"sign/0": (7, part.directions), "sign/1": (7, second)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("part", [ZO(lr=0.0), SplitZO(lr=0.0)], ids=repr)
def test_a_thousand_steps_of_rate_zero_leave_every_bit(part: ZO | SplitZO, dtype: torch.dtype) -> None:
    here, objective = view(), Bowl(dtype)
    here = replace(here, theta=here.theta.replace({"b": torch.full((5,), -0.0)}))
    before = here.theta.sha256(), here.personal.sha256()
    for _ in range(1000):
        here = part.step(here, None, objective).view
    assert (here.theta.sha256(), here.personal.sha256()) == before


@pytest.mark.parametrize("part", OPTIMIZERS, ids=repr)
def test_theta_is_the_same_bit_for_bit_after_a_thousand_steps_from_scalars_alone(part: ZO | SplitZO) -> None:
    here, objective, traces, uplink = view(), Bowl(cross=0.1), [], ScalarsUplink()
    start = here
    for _ in range(1000 if part == OPTIMIZERS[0] else 50):
        step = part.step(here, None, objective)
        here = step.view
        traces.append(step.trace)
    parts = uplink.pack(here, traces)
    assert {n: tuple(t.shape) for n, t in parts["scalars"].items()} == {
        n: shape for n, (_, shape) in part.traced(len(traces)).items()
    }
    change = uplink.open(parts, Origin(start.theta, start.directions, 1.0, SPEC, start.scope))
    assert change.dense().sha256() == here.theta.sha256() != start.theta.sha256()
    assert not torch.equal(here.personal["own"], start.personal["own"])


def test_only_what_trains_moves_and_the_streams_stay_where_they_are() -> None:
    scope, part = Scope(("b",), ("a", "b"), ("a", "b")), ZO(lr=0.01)
    here = view(scope=scope)
    whole, step = part.step(view(), None, Bowl()), part.step(here, None, Bowl())
    signs = [(s.view.theta["b"] - here.theta["b"]).sign() for s in (whole, step)]
    assert torch.equal(signs[0].abs(), torch.ones(5))
    assert torch.equal(signs[0], signs[1]) or torch.equal(signs[0], -signs[1])
    for name in ("a", "c"):
        assert torch.equal(step.view.theta[name], here.theta[name])
    replayed = ScalarsUplink().open(
        ScalarsUplink().pack(step.view, [step.trace]), Origin(here.theta, here.directions, 1.0, SPEC, scope)
    )
    assert replayed.dense().sha256() == step.view.theta.select(("a", "b")).sha256()


def test_a_slope_beyond_the_limit_is_cut_and_one_that_is_not_finite_moves_nothing() -> None:
    class Cliff(Bowl):
        def __call__(self, tensors: Mapping[str, Tensor]) -> Tensor:
            self.passes.append("whole")
            return torch.tensor([math.inf if len(self.passes) == 1 else 1e3 * len(self.passes)])

    here = view()
    found = coefficients(ZO(lr=0.01, directions=2, largest=5.0), here, Cliff())
    assert found[ALL].tolist() == pytest.approx([0.0, 0.01 / 2 * 5.0])
    with pytest.raises(CotuneError) as caught:
        ZO(lr=0.01).step(here, None, Cliff())
    assert caught.value.code is Code.NONFINITE


def test_the_schedule_of_the_rates_is_in_the_coefficients() -> None:
    whole, half = (coefficients(ZO(lr=0.01), view(rate=rate), Bowl())[ALL] for rate in (1.0, 0.5))
    torch.testing.assert_close(half, whole / 2)


@pytest.mark.parametrize("part", [SplitZO(lr=0.01, again=4), SplitZO(lr=0.2, lr_back=0.01)], ids=repr)
def test_scalars_tell_how_the_energy_of_the_gradient_is_divided(part: SplitZO) -> None:
    here, objective = view(), Bowl()
    found = gradient(objective, here)
    ratio = float(found[17:].square().sum() / found[:17].square().sum())
    traces = []
    for i in range(400):
        named = coefficients(part, replace(here, directions=i + 1), objective)
        traces.append({f"sign/{key}": tensor[None] for key, tensor in named.items()})
    told = part.describe(traces)
    assert told["energy_ratio"] == pytest.approx(ratio, rel=0.2)
    assert told["suggested_again"] == pytest.approx(max(1.0, math.sqrt(told["energy_ratio"]) / 2))
    assert part.describe([]) == {} == SplitZO(lr=0.0).describe(traces)


@pytest.mark.parametrize("arch", ["llama", "opt", "gpt2", "bert"])
def test_the_flops_of_a_step_are_those_of_the_halves_it_runs(arch: str) -> None:
    backbone, part = loaded(arch), SplitZO(lr=0.01, directions=2, again=3)
    here = begun(backbone, Full())

    def flops(action: Callable[[], object]) -> int:
        with torch.no_grad(), counting() as counter:
            action()
        return int(counter.get_total_flops())

    with bind(backbone.model, here.tensors, here.spec) as bound:
        objective = real(bound, here)
        front = flops(lambda: objective.front(here.trained))
        with torch.no_grad():
            halfway = objective.front(here.trained)
        back = flops(lambda: objective.back(here.trained, halfway))
        assert front + back == flops(lambda: objective(here.trained))
        assert flops(lambda: part.step(here, None, objective)) == 2 * 2 * front + 4 * 2 * 3 * back


@pytest.mark.parametrize(("cut", "layer"), [(3, 3), (0.75, 2), (0.4, 1), (0.01, 1), (0.82, 3), (0.99, 4)])
def test_a_cut_is_a_layer_or_a_share_of_what_trains_with_a_layer_on_each_side(cut: float, layer: int) -> None:
    # Of 100 trained numbers, 50 in embeddings and layer 0, 25 in layer 1, 10 in each of 2 and 3, 5 behind.
    assert SplitZO(lr=0.1, cut=cut).layer([50, 75, 85, 95, 100]) == layer


def test_unless_it_is_given_a_cut_has_three_quarters_of_the_layers_in_front() -> None:
    assert [SplitZO(lr=0.1).layer([0] * layers) for layers in (2, 3, 4, 12, 24)] == [1, 2, 3, 9, 18]


# On real models.


def loaded(arch: str, head: str = "classification", **fields: Any) -> Loaded:
    return Backbone(ref=f"random:{arch}?layers=3&hidden=16&heads=2", **fields).load(head, 2, seed=3)


def real(bound: Bound, here: View, penalties: tuple[Proximal, ...] = ()) -> StepObjective:
    ids = torch.randint(7, 250, (4, 9), generator=torch_generator(2))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    batch = {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([0, 1, 1, 0])}
    batches = tuple({n: t[rows] for n, t in batch.items()} for rows in (slice(0, 3), slice(3, 4)))
    task = Classify(data="synth:sentiment?clients=2&rows=8")
    return StepObjective(bound, task, penalties, here, batches, 2)


def begun(backbone: Loaded, trainable: Full | LoRA | Memory) -> View:
    theta, personal, spec = trainable.attach(backbone, 0, "all")
    scope = Scope(spec.names, spec.shared, spec.shared)
    return View(1, "ada", theta, personal, {}, theta, {}, Seeds(seed=5), spec, scope, directions=99)


@pytest.mark.parametrize("arch", ["llama", "bert"])
@pytest.mark.parametrize("trainable", [Full(), LoRA(rank=2)], ids=repr)
def test_a_step_s_objective_in_halves_is_the_objective_penalties_in(arch: str, trainable: Full | LoRA) -> None:
    backbone = loaded(arch)
    here = begun(backbone, trainable)
    tensors = {n: t + 0.02 for n, t in here.trained.items()}
    with torch.no_grad(), bind(backbone.model, here.tensors, here.spec) as bound:
        objective = real(bound, here, (Proximal(mu=0.3),))
        whole = objective(tensors)
        assert torch.equal(objective.back(tensors, objective.front(tensors)), whole)
        assert whole.shape == (4,)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_steps_of_rate_zero_leave_a_model_of_any_dtype_and_its_theta(dtype: str) -> None:
    backbone = loaded("llama", dtype=dtype)
    here = begun(backbone, Full())
    before = here.theta.sha256()
    frozen = {n: p.clone() for n, p in backbone.model.named_parameters()}
    with bind(backbone.model, here.tensors, here.spec) as bound:
        for part in (ZO(lr=0.0), SplitZO(lr=0.0)) * 3:
            here = part.step(here, None, real(bound, here)).view
    assert here.theta.sha256() == before
    assert all(torch.equal(p, frozen[n]) for n, p in backbone.model.named_parameters())


def test_dropout_is_off_and_a_slope_is_the_directional_derivative() -> None:
    backbone = loaded("bert")
    assert any(isinstance(module, nn.Dropout) and module.p > 0 for module in backbone.model.modules())
    here = begun(backbone, LoRA(rank=2))
    here = here.moved({n: t + 0.05 for n, t in here.trained.items()})
    with bind(backbone.model, here.tensors, here.spec) as bound:
        objective, probe = real(bound, here), Probe(here, Direction.SIGN)
        with torch.no_grad():
            assert torch.equal(objective(here.trained), objective(probe.at(0, 0.0)))
        z = {n: (t - here.trained[n]).double() for n, t in probe.at(0, 1.0).items()}
        leaves = {n: t.clone().requires_grad_() for n, t in here.trained.items()}
        slopes = torch.autograd.grad(objective(leaves).mean(), list(leaves.values()))
        expected = sum(float((g.double() * z[n]).sum()) for n, g in zip(leaves, slopes, strict=True))
        slope = -float(coefficients(ZO(lr=1.0, mu=2.0**-8), here, objective)[ALL][0])
    assert slope == pytest.approx(expected, rel=0.01)


def test_forward_passes_alone_teach_a_memory_its_rules() -> None:
    backbone = loaded("llama", window=4)
    theta, personal, spec = Memory(factors=False).attach(backbone, 0, "all")
    scope = Scope(spec.names, spec.shared, spec.shared)
    here = View(1, "ada", theta, personal, {}, theta, {}, Seeds(seed=5), spec, scope, directions=99)
    part = SplitZO(lr=0.02, again=2)
    with bind(backbone.model, here.tensors, here.spec) as bound:
        objective = real(bound, here)
        with torch.no_grad():
            before = float(objective(here.trained).mean())
        for _ in range(40):
            here = part.step(here, None, real(bound, here)).view
        with torch.no_grad():
            after = float(objective(here.trained).mean())
    assert after < before
