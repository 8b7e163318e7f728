"""The comparison of Subspace-Reg: searches, simulations and verdicts against dumb oracles, and the whole in small."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from cotune import linalg
from cotune.aggregate import ProductSVD
from cotune.comparison import Question
from cotune.comparison.lengths import WITHIN, Matched, length
from cotune.comparison.question import with_rate
from cotune.core.errors import Code, CotuneError
from cotune.core.seeds import torch_generator
from cotune.core.spec import Entry, Role, Spec
from cotune.core.state import Theta, from_bytes
from cotune.reproduce import Laptop, geometry, nodata, paper, quadratic, ranks, tables, verdicts
from cotune.reproduce.aligned import FEDAVG, ORTHONORMAL, SUBSPACE
from cotune.reproduce.reproduction import Found
from cotune.reproduce.subspace import Size, SubspaceHellaSwag, at_one_length, pulls, question
from cotune.store import Run

RESULTS = paper.folder("subspace_reg") / "results"
TINY = Size(
    ref="random:bert?layers=1&hidden=16&heads=2",
    rounds=2,
    steps=1,
    clients=3,
    cohort=2,
    rows=120,
    test=30,
    sweep=(4e-3,),
    tries=1,
    mus=(0.0, 5.0),
    draws=1,
)


class Small(SubspaceHellaSwag):
    """Two rows that have learned nothing."""

    size = TINY
    labels = (FEDAVG, SUBSPACE)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("subspace")


@pytest.fixture(scope="module")
def small(out: Path) -> Found:
    return Small().laptop(Laptop(out, seeds=2))


def test_it_leaves_a_page_with_every_measure_and_three_verdicts(small: Found) -> None:
    text = (small.folder / "subspace-hellaswag-laptop.md").read_text("utf-8")
    for said in (*geometry.FORMS.values(), *geometry.LOST.values(), "‖A‖", "‖B‖", "rate × steps of a round"):
        assert said in text
    assert [line[:10] for line in text.splitlines() if line.startswith("Verdict")] == [
        "Verdict 1,",
        "Verdict 2,",
        "Verdict 3,",
    ]
    assert "**Synthetic**" in text
    assert "not HellaSwag" in text


def test_its_results_are_numbers_of_every_row_and_nothing_of_the_machine(small: Found, out: Path) -> None:
    for suffix in ("md", "json", "html"):
        text = (small.folder / f"subspace-hellaswag-laptop.{suffix}").read_text("utf-8")
        for trace in (str(out), str(Path.home()), os.uname().nodename, '"seconds"', '"peak_bytes"'):
            assert trace not in text, (suffix, trace)
    found = json.loads((small.folder / "subspace-hellaswag-laptop.json").read_text("utf-8"))
    assert set(found["swept"]["hashes"]) == {FEDAVG, SUBSPACE}
    assert set(found["mu"]["hashes"]) == {"mu = 0", "mu = 5", ORTHONORMAL}
    assert found["lengths"][FEDAVG]["reached"]
    for which in ("swept", "matched", "mu"):
        for row in found[which]["geometry"].values():
            assert all(len(values) == 2 and all(map(math.isfinite, values)) for values in row.values())
    assert found["no_data"]["basis_overlap"][0] != found["no_data"]["basis_overlap"][1]


def test_a_second_call_carries_nothing_out_again(small: Found, out: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in out.rglob("rounds.jsonl")}
    again = Small().laptop(Laptop(out, seeds=2))
    assert again.results == small.results
    assert len(before) > 10
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("rounds.jsonl")}


def test_the_length_of_an_update_is_that_of_dense_products(small: Found) -> None:
    run = Run(next(path.parent for path in small.folder.glob("subspace-reg-seed-0-*/adapter")))
    config = json.loads((run.folder / "adapter" / "adapter_config.json").read_text("utf-8"))
    tensors = from_bytes((run.folder / "adapter" / "adapter_model.safetensors").read_bytes())
    downs = [name for name in tensors if "lora_A" in name]
    assert len(downs) == 2
    products = [tensors[n.replace("lora_A", "lora_B")].double() @ tensors[n].double() for n in downs]
    square = sum(float(product.square().sum()) for product in products)
    assert length(run) == pytest.approx(config["lora_alpha"] / config["r"] * math.sqrt(square), rel=1e-9)


def test_strengths_differ_in_mu_alone_and_none_of_it_keeps_ridge_and_basis() -> None:
    rows = dict(pulls(SubspaceHellaSwag.size, 3, 2e-3).rows)
    plain = rows.pop(ORTHONORMAL)
    assert list(rows) == ["mu = 0", "mu = 0.05", "mu = 0.5", "mu = 5"]
    rests = {method.model_copy(update={"penalties": ()}).model_dump_json() for method in (*rows.values(), plain)}
    assert len(rests) == 1
    assert not plain.penalties
    for label, method in rows.items():
        pull, *others = (part.model_dump() for part in method.penalties)
        assert label == f"mu = {pull['mu']:g}"
        assert [(other["kind"], other.get("strength", other.get("alpha"))) for other in others] == [
            ("ridge", 1e-5),
            ("basis", 0.01),
        ]


def test_all_rows_share_the_ground_and_the_seed_of_the_search_is_none_of_the_tests() -> None:
    asked = question(SubspaceHellaSwag.size, SubspaceHellaSwag.seeds)
    assert len(asked.rows) == 6
    assert asked.search_seed not in asked.numbers
    assert len(asked.numbers) == 3
    assert {method.budget for method in asked.rows.values()} == {asked.ground.method.budget}
    assert {method.trainable.model_dump()["rank"] for method in asked.rows.values()} == {8}


@given(
    gain=st.floats(0.1, 1e4),
    rise=st.floats(0.5, 2.5),
    target=st.floats(0.05, 20),
    grid=st.lists(st.sampled_from([5e-4, 1e-3, 2e-3, 4e-3, 8e-3]), min_size=1, max_size=4, unique=True),
    broken=st.booleans(),
)
def test_the_rate_of_a_length_is_found_on_any_power_law(
    gain: float, rise: float, target: float, grid: list[float], broken: bool
) -> None:
    def long(lr: float) -> float:
        return gain * math.pow(lr, rise)

    wanted = math.pow(target / gain, 1 / rise)
    assume(min(grid) / 10 < wanted < max(grid) * 10)
    tried: dict[float, float | None] = {lr: long(lr) for lr in grid}
    if broken:
        tried[10.0] = None
    one = Matched(target, tried)
    for _ in range(6):
        if one.reached:
            break
        guess = one.guess()
        one = Matched(target, {**one.tried, guess: long(guess)})
    assert one.reached
    assert abs(long(one.lr) / target - 1) <= WITHIN


def test_a_search_without_a_length_says_so() -> None:
    with pytest.raises(CotuneError, match="fell apart") as caught:
        Matched(1.0, {1e-3: None}).guess()
    assert caught.value.code is Code.CONFLICT
    assert not Matched(1.0, {1e-3: None}).reached


def ranked(values: list[float]) -> list[float]:
    """Half of the values that are equal stand below each, and so do all that are smaller."""
    return [sum(v < value for v in values) + (sum(v == value for v in values) + 1) / 2 for value in values]


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=2, max_size=12))
def test_a_rank_correlation_is_that_of_counted_ranks(cells: list[tuple[int, int]]) -> None:
    left, right = ([float(cell[side]) for cell in cells] for side in (0, 1))
    found = ranks.spearman(np.array(left), np.array(right))
    if len({*left}) == 1 or len({*right}) == 1:
        assert found is None
        return
    assert found is not None
    assert found == pytest.approx(float(np.corrcoef(ranked(left), ranked(right))[0, 1]), abs=1e-12)
    assert ranks.spearman(np.exp(np.array(left)), -np.array(right)) == pytest.approx(-found, abs=1e-12)


def test_a_cell_that_is_not_known_counts_in_neither_ranking() -> None:
    known = ranks.spearman(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0]))
    assert ranks.spearman(np.array([[1.0, math.nan], [2.0, 3.0]]), np.array([[1.0, 9.0], [3.0, 2.0]])) == known


def test_a_measure_that_orders_the_rows_is_ahead_of_one_that_does_not_and_of_itself_it_is_not() -> None:
    score = np.add.outer(np.arange(6.0), [0.0, 0.01, 0.02])
    noise = np.add.outer([3.0, 1.0, 2.0, 3.0, 1.0, 2.0], [0.0, 0.3, 0.1])
    found, ahead = ranks.correlations({"order": 2 * score, "same": score**3, "noise": noise}, score, "order", 0)
    assert found["order"] == ranks.Correlation(1.0, 1.0, 1.0)
    assert ahead["same"] == ranks.Correlation(0.0, 0.0, 0.0)
    assert ahead["noise"].side == 1
    _, turned = ranks.correlations({"order": score, "noise": noise}, score, "noise", 0)
    assert turned["order"].side == -1
    constant, _ = ranks.correlations({"order": score, "flat": np.ones_like(score)}, score, "order", 0)
    assert constant["flat"] == ranks.Correlation(None, None, None)


LAYERS = {"one": (7, 6), "two": (5, 9)}
RANK, SCALE = 2, 4.0
SHARES = {"a": 0.5, "b": 0.3, "c": 0.2}


def spec() -> Spec:
    rows = []
    for layer, (tall, wide) in LAYERS.items():
        rows.append(Entry(f"{layer}.A", (RANK, wide), Role.FACTOR_A, layer, scale=SCALE))
        rows.append(Entry(f"{layer}.B", (tall, RANK), Role.FACTOR_B, layer, scale=SCALE))
    return Spec(tuple(rows))


def start(seed: int) -> Theta:
    generator = torch_generator(seed)
    return Theta({entry.name: torch.randn(entry.shape, generator=generator) for entry in spec()})


def test_a_random_update_is_as_long_as_it_is_told_and_moves_what_trains_alone() -> None:
    theta, names = start(0), ("one.B", "two.B")
    found = nodata.moved(theta, names, 0.25, 3)
    square = sum(float((found[name].double() - theta[name].double()).square().sum()) for name in names)
    assert math.sqrt(square) == pytest.approx(0.25, rel=1e-5)
    assert set(found) == set(names)
    assert not torch.equal(found["one.B"], nodata.moved(theta, names, 0.25, 4)["one.B"])


def test_without_data_the_rounds_are_those_of_dense_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[dict[str, np.ndarray[Any, Any]]] = []
    plain = nodata.moved

    def noted(*given: Any) -> Theta:
        found = plain(*given)
        steps.append({name: found[name].double().numpy() for name in found})
        return found

    monkeypatch.setattr(nodata, "moved", noted)
    names = tuple(entry.name for entry in spec())
    walks = [nodata.Walk(SHARES, size, names) for size in (0.6, 0.9)]
    found = nodata.walk(start(1), spec(), ProductSVD(split="orthonormal-b"), walks, seed=5)
    assert len(steps) == 6
    for number, told in enumerate(found):
        sent = steps[3 * number : 3 * number + 3]
        overlaps, dots, mean = [], np.zeros((3, 3)), 0.0
        for layer in LAYERS:
            products = [SCALE * one[f"{layer}.B"] @ one[f"{layer}.A"] for one in sent]
            total = sum(share * product for share, product in zip(SHARES.values(), products, strict=True))
            new = np.linalg.svd(total)[0][:, :RANK]
            for one in sent:
                own = np.linalg.qr(one[f"{layer}.B"])[0]
                overlaps.append(np.linalg.norm(new.T @ own) / math.sqrt(RANK))
            dots += [[(p * q).sum() for q in products] for p in products]
            mean += float((total**2).sum())
        lengths = np.sqrt(np.diag(dots))
        assert told["basis_overlap"] == pytest.approx(np.mean(overlaps), rel=1e-5)
        assert told["cancellation"] == pytest.approx(math.sqrt(mean) / (lengths @ list(SHARES.values())), rel=1e-5)
        cosines = (dots / np.outer(lengths, lengths))[np.triu_indices(3, 1)]
        assert told["pairwise_cosine"] == pytest.approx(np.mean(cosines), rel=1e-5)


def test_the_constants_of_the_quadratic_are_what_is_said() -> None:
    for seed in range(3):
        given_ = quadratic.problem(seed)
        apart = given_.minima - given_.mean
        assert float(apart.square().sum()) / len(apart) == pytest.approx(quadratic.SPREAD**2)
        sigma = torch.linalg.svdvals(given_.mean)
        assert int((sigma > 1e-6).sum()) == given_.rank == 2
        assert float(given_.mean.norm()) == pytest.approx(4)


def test_a_client_of_the_quadratic_ends_where_gradient_steps_on_its_factors_do() -> None:
    given_, mu = quadratic.problem(1), 3.0
    u, sigma, v = torch.linalg.svd(given_.mean)
    reference = given_.mean
    b, a = u[:, :2].clone().requires_grad_(), (sigma[:2, None] * v[:2]).clone().requires_grad_()
    for _ in range(600):
        loss = (b @ a - given_.minima[0]).square().sum() / 2 + mu / 2 * (b @ a - reference).square().sum()
        for factor, gradient in zip((b, a), torch.autograd.grad(loss, (b, a)), strict=True):
            factor.data -= 0.02 * gradient
    exact = quadratic.best((given_.minima[0] + mu * reference) / (1 + mu), 2)
    assert torch.allclose(b @ a, exact, atol=1e-6)


def test_the_server_of_the_quadratic_is_the_one_of_the_rows() -> None:
    given_, mu = quadratic.problem(2), 0.7
    pairs = []
    for minimum in given_.minima:
        u, sigma, v = torch.linalg.svd((minimum + mu * given_.mean) / (1 + mu))
        pairs.append((u[:, :2] * sigma[:2].sqrt(), sigma[:2, None].sqrt() * v[:2]))
    b, a = linalg.truncate(pairs, [1 / 6] * 6, 2, "orthonormal-b")
    assert torch.allclose(quadratic.step(given_.mean, given_.minima, mu, 2), b @ a, atol=1e-12)


@pytest.mark.parametrize("mu", [0.5, 5.0])
def test_without_truncation_the_quadratic_has_a_closed_form(mu: float) -> None:
    """W' − W̄ = (mu (W − W̄) + N) / (1 + mu), N of variance σ² (K − c) / (c (K − 1)): Var W = Var N / (1 + 2 mu)."""
    whole = quadratic.Problem(quadratic.problem(0).minima, 7)
    assert quadratic.everyone(whole, mu, 0) < 1e-20
    values = [quadratic.sampled(whole, mu, seed) for seed in range(8)]
    assert np.mean(values) == pytest.approx(4 / (2 * 5) / (1 + 2 * mu), rel=0.15)


def test_the_squared_gradient_falls_as_the_bound_says_where_everyone_takes_part_and_slower_where_two_do() -> None:
    everyone, sampled, horizon = (quadratic.slope(draws[0]) for draws in quadratic.swept(1).values())
    assert everyone == pytest.approx(-2, abs=0.1)
    assert sampled == pytest.approx(-1, abs=0.3)
    assert horizon > 0.2
    assert quadratic.slope([mu**-1.5 for mu in quadratic.MUS]) == pytest.approx(-1.5)


def pair(gain: float, *, seen: bool, label: str = "mu = 5", apart: float = 0.001) -> dict[str, Any]:
    ends = {"gain": gain, "low": gain - 0.01, "high": gain + 0.01, "by_seed": [gain, gain + apart], "seen": seen}
    return {"ours": label, "theirs": "mu = 0", **ends}


def test_the_verdict_on_the_penalty_falls_whichever_way_the_pairs_do() -> None:
    def said(*pairs: dict[str, Any]) -> str:
        return verdicts.penalty(pairs, ["mu = 0.5", "mu = 5"], "mu = 0")[0]

    assert said(pair(0.2, seen=True)).endswith("it is seen to add at mu = 5.")
    assert said(pair(-0.2, seen=True)).endswith("it is seen to cost at mu = 5.")
    assert said(pair(-0.2, seen=True, apart=0.1)).endswith("it is seen to cost at mu = 5 (on these seeds).")
    both = said(pair(0.2, seen=True, label="mu = 0.5"), pair(-0.2, seen=True))
    assert both.endswith("it is seen to add at mu = 0.5 and it is seen to cost at mu = 5.")
    assert "no strength is told apart" in said(pair(0.2, seen=False))


def test_what_is_said_of_overlap_follows_its_numbers() -> None:
    same = [0.9, 0.91, 0.92]
    higher = [value + 0.05 for value in same]
    needs_none = verdicts.overlap(same, higher, 0.95, 0.5, "mu = 5")
    assert "it needs no data" in needs_none
    assert "above what averaging factors has at its best rate, 0.50000" in needs_none
    assert "mu = 5 raises it" in needs_none
    taught = verdicts.overlap(higher, same, 0.6, 0.99, "mu = 5")
    assert "0.36000 more of it than random updates" in taught
    assert "averaging" not in taught
    assert "mu = 5 lowers it" in taught
    assert "is not seen to change it" in verdicts.overlap(same, [0.91, 0.9, 0.92], 0.9, 0.5, "mu = 5")


def test_the_verdict_on_the_predictors_falls_whichever_way_the_correlations_do() -> None:
    def correlation(low: float, high: float) -> ranks.Correlation:
        return ranks.Correlation((low + high) / 2, low, high)

    better, worse, neither = correlation(0.1, 0.9), correlation(-0.9, -0.1), correlation(-0.5, 0.5)

    def said(*found: ranks.Correlation) -> str:
        return verdicts.predicting([{"x": one} for one in found], ["x"])

    assert "yes, in both tables" in said(better, better)
    assert "no, it predicts worse in both" in said(worse, worse)
    assert "in part" in said(better, neither)
    assert "no: worse than some" in said(worse, neither)
    assert "not seen" in said(neither, neither)
    assert "not settled" in said(better, worse)
    line = verdicts.predictors({"overlap": better, "x": neither}, {"x": better}, "Best rates")
    assert "better against x, +0.50 [+0.10, +0.90]" in line
    assert "No measure" not in line
    assert "No measure" in verdicts.predictors({"overlap": neither}, {}, "Best rates")


@pytest.mark.parametrize(
    ("slope", "interval", "words"),
    [
        (-1.94, (-1.95, -1.93), "as 1/mu²"),
        (-2.3, (-2.7, -1.9), "as 1/mu²"),
        (-1.0, (-1.2, -0.8), "it falls, but slower than 1/mu²"),
        (-3.0, (-3.1, -2.9), "it falls faster than 1/mu²"),
        (0.3, (0.2, 0.4), "it rises"),
        (0.0, (-0.1, 0.1), "no trend"),
    ],
)
def test_a_slope_is_named_by_its_interval(slope: float, interval: tuple[float, float], words: str) -> None:
    assert verdicts.falls(slope, interval) == words
    said = verdicts.bound({"case": words})
    assert ("yes, in every case" in said) == (words == "as 1/mu²")


def hashes(asked: Question, rates: dict[str, float]) -> dict[str, list[str]]:
    """Label -> the hash of each seed's experiment, at these learning rates."""
    return {
        label: [asked.experiment(label, with_rate(asked.rows[label], lr), seed, ()).hash for seed in asked.numbers]
        for label, lr in rates.items()
    }


def test_committed_results_are_of_the_experiments_that_the_command_carries_out() -> None:
    found = json.loads((RESULTS / "hellaswag-laptop.json").read_text("utf-8"))
    size, seeds = SubspaceHellaSwag.size, SubspaceHellaSwag.seeds
    rates = {which: {row["label"]: row["lr"] for row in found[which]["rows"]} for which in ("swept", "matched", "mu")}
    asked = {
        "swept": question(size, seeds),
        "matched": at_one_length(size, seeds, rates["matched"]),
        "mu": pulls(size, seeds, rates["swept"][SUBSPACE]),
    }
    for which, one in asked.items():
        assert list(rates[which]) == list(one.rows)
        assert hashes(one, rates[which]) == found[which]["hashes"]
    assert {label: one["lr"] for label, one in found["lengths"].items()} == rates["matched"]


def test_the_readme_gives_the_verdicts_of_the_results_word_for_word() -> None:
    found = json.loads((RESULTS / "hellaswag-laptop.json").read_text("utf-8"))
    lines = [line for lines in found["verdicts"].values() for line in lines]
    page = (RESULTS / "hellaswag-laptop.md").read_text("utf-8").splitlines()
    readme = " ".join((RESULTS.parent / "README.md").read_text("utf-8").split())
    assert len([line for line in lines if line.startswith("Verdict")]) == 3
    for line in lines:
        assert line in page
        assert not line.startswith("Verdict") or line in readme


def test_the_readmes_table_and_slopes_are_those_of_the_results() -> None:
    found = json.loads((RESULTS / "hellaswag-laptop.json").read_text("utf-8"))
    readme = (RESULTS.parent / "README.md").read_text("utf-8")
    best, equal = ({row["label"]: row["value"] for row in found[which]["rows"]} for which in ("swept", "matched"))
    for label, value in best.items():
        overlap = geometry.mean(found["swept"]["geometry"][label]["basis_overlap"])
        assert f"| `{label}` | {value:.3f} | {equal[label]:.3f} | {overlap:.3f} |" in readme
    slopes = [f"{case['slope']:+.2f}".replace("-", "−") for case in found["quadratic"]["cases"].values()]
    assert f"The slopes are {slopes[0]}, {slopes[1]} and {slopes[2]}." in readme
    pairs = [pair for which in ("swept", "matched") for pair in found[which]["pairs"]]
    apart = [ends for pair in pairs if (ends := tables.over_seeds(pair["by_seed"]))]
    assert len(apart) == 30
    assert ("no difference between two rows is off zero" in readme) == all(low <= 0 <= high for low, high in apart)


def test_the_published_setting_says_what_it_needs_four_texts_a_question() -> None:
    source, files = SubspaceHellaSwag.source, SubspaceHellaSwag.files
    planned = [paper.experiment(source, file) for file in files]
    assert {one.task.kind for one in planned} == {"hellaswag"}
    lines = list(paper.needed(planned[0], paper.expected(source), SubspaceHellaSwag.texts))
    assert lines[0] == "subspace-roberta-code: FacebookAI/roberta-large, 355 M parameters, 3.56 M numbers train"
    assert "4 × 256 tokens" in lines[1]
