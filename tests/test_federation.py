"""Who is asked, how much a reply counts, and what groups do differently: functions of the seed and the round alone."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cotune.aggregate import Mean, MeanControl
from cotune.core.contracts import ClientInfo
from cotune.core.errors import Code, CotuneError
from cotune.core.part import Capability
from cotune.core.seeds import Seeds
from cotune.core.spec import Entry, Role, Spec
from cotune.core.view import Budget
from cotune.federation import Evaluation, Federation, Group, Sampling, Weighting
from cotune.method import Method
from cotune.optim import SGD, AdamW, Scaffold
from cotune.trainable import Full, LoRA
from cotune.wire import TensorsUplink

CLIENTS = [ClientInfo(f"client-{i:02d}", rows=i % 4) for i in range(20)]  # every fourth has no rows
FULL = sorted(client.id for client in CLIENTS if client.rows)
METHOD = Method(trainable=LoRA(), budget=Budget(steps=1), optimizer=SGD(lr=0.1))


class Pairs(Mean):
    """A mean that takes factors of several ranks, as far as its word goes."""

    kind: ClassVar[str] = "pairs"
    gives: ClassVar[frozenset[Capability]] = frozenset({Capability.FACTORS})


class Quiet(TensorsUplink):
    """Another uplink."""

    kind: ClassVar[str] = "quiet"


# ---- sampling


SAMPLINGS = st.sampled_from(
    [Federation(cohort=5), Federation(cohort=5, sampling=Sampling.POISSON), Federation(sampling=Sampling.ALL)]
)


@given(SAMPLINGS, st.integers(0, 2**63 - 1), st.integers(1, 1000), st.permutations(CLIENTS))
def test_a_cohort_depends_on_the_seed_and_the_round_and_not_on_the_order_of_clients(
    federation: Federation, seed: int, round_: int, order: list[ClientInfo]
) -> None:
    cohort = federation.sample(order, Seeds(seed=seed), round_)
    assert cohort == federation.sample(CLIENTS, Seeds(seed=seed), round_)
    assert cohort == sorted(set(cohort))
    assert set(cohort) <= set(FULL), "clients without rows are never asked"
    assert cohort == federation.sample([c for c in CLIENTS if c.rows], Seeds(seed=seed), round_)


def test_a_fixed_cohort_has_its_size_and_asks_everyone_alike() -> None:
    federation, seen = Federation(cohort=5), Counter[str]()
    for round_ in range(1, 601):
        cohort = federation.sample(CLIENTS, Seeds(seed=3), round_)
        assert len(cohort) == 5
        seen.update(cohort)
    assert set(seen) == set(FULL)
    # 600 draws of 5 of 15: mean 200, deviation 11.5.
    assert all(abs(count - 200) < 5 * 11.5 for count in seen.values())


def test_a_poisson_cohort_asks_each_client_by_itself() -> None:
    federation, seen, sizes = Federation(cohort=5, sampling=Sampling.POISSON), Counter[str](), []
    for round_ in range(1, 601):
        cohort = federation.sample(CLIENTS, Seeds(seed=3), round_)
        sizes.append(len(cohort))
        seen.update(cohort)
    assert all(abs(count - 200) < 5 * 11.5 for count in seen.values())
    mean = sum(sizes) / 600
    variance = sum((size - mean) ** 2 for size in sizes) / 599
    assert abs(mean - 5) < 0.4
    assert abs(variance - 15 * (1 / 3) * (2 / 3)) < 0.8, "a fixed cohort would have none"


@given(SAMPLINGS.filter(lambda federation: federation.sampling is not Sampling.ALL))
def test_other_rounds_and_other_seeds_draw_other_cohorts(federation: Federation) -> None:
    by_round = {tuple(federation.sample(CLIENTS, Seeds(seed=1), round_)) for round_ in range(1, 30)}
    by_seed = {tuple(federation.sample(CLIENTS, Seeds(seed=seed), 1)) for seed in range(1, 30)}
    assert len(by_round) > 20
    assert len(by_seed) > 20


def test_sampling_follows_its_own_seed() -> None:
    federation = Federation(cohort=5)
    ours = federation.sample(CLIENTS, Seeds(seed=1), 4)
    assert federation.sample(CLIENTS, Seeds(seed=9, sampling=1), 4) == ours
    assert federation.sample(CLIENTS, Seeds(seed=1, sampling=9), 4) != ours


def test_all_asks_everyone_with_rows() -> None:
    assert Federation(sampling=Sampling.ALL).sample(CLIENTS, Seeds(), 1) == FULL
    assert Federation().sampling is Sampling.ALL
    assert Federation(sampling=Sampling.ALL).sample([], Seeds(), 1) == []


def test_a_cohort_larger_than_the_clients_that_have_rows_is_refused() -> None:
    assert Federation(cohort=15).sample(CLIENTS, Seeds(), 1) == FULL
    for sampling in (Sampling.FIXED, Sampling.POISSON):
        with pytest.raises(CotuneError, match="got 16, expected at most 15") as caught:
            Federation(cohort=16, sampling=sampling).sample(CLIENTS, Seeds(), 1)
        assert caught.value.code is Code.CONFLICT


@pytest.mark.parametrize(
    "fields",
    [
        {"sampling": "fixed"},
        {"sampling": "poisson"},
        {"cohort": 2, "min_replies": 3},
        {"cohort": 0},
        {"rounds": 0},
        {"deadline": 0},
        {"deadline": float("nan")},
        {"patience": 0},
        {"cohorts": 3},
    ],
)
def test_what_cannot_be_meant_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Federation.model_validate(fields)


# ---- counting


@pytest.mark.parametrize(("selected", "needed"), [(0, 1), (1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (100, 50)])
def test_half_the_cohort_must_reply(selected: int, needed: int) -> None:
    assert Federation().quorum(selected) == needed


@pytest.mark.parametrize("selected", [0, 1, 10])
def test_min_replies_is_the_quorum_whatever_the_cohort(selected: int) -> None:
    assert Federation(min_replies=7).quorum(selected) == 7


def test_a_reply_counts_by_its_rows_or_like_any_other() -> None:
    rows = (10, 990)
    by_rows = [Federation().weight(n) for n in rows]
    alike = [Federation(weighting=Weighting.UNIFORM).weight(n) for n in rows]
    assert by_rows[1] / sum(by_rows) == 0.99
    assert alike[1] / sum(alike) == 0.5


@pytest.mark.parametrize(
    ("which", "every", "due"),
    [("cohort", 1, [1, 2, 3, 4, 5]), ("all", 2, [2, 4, 5]), ("none", 1, []), ("global", 9, [5])],
)
def test_the_last_round_is_always_scored(which: Any, every: int, due: list[int]) -> None:
    evaluation = Evaluation(which=which, every=every)
    assert [round_ for round_ in range(1, 6) if evaluation.due(round_, 5)] == due


# ---- groups


GROUPS = Federation(
    groups=(
        Group(match="phone-1*", optimizer=AdamW(lr=0.5), budget=Budget(steps=9)),
        Group(match="phone-*", uplink=Quiet(), rank=2),
        Group(match="[ab]?"),
    )
)
SPEC = Spec(
    (
        Entry("m.A", (8, 6), Role.FACTOR_A, "m", scale=2.0),
        Entry("m.B", (5, 8), Role.FACTOR_B, "m", scale=2.0),
        Entry("head", (3,), Role.HEAD, "head"),
    )
)


def test_the_first_group_that_matches_counts() -> None:
    found = {name: GROUPS.group(name) for name in ("phone-12", "phone-2", "a1", "laptop", "PHONE-1", "xphone-1")}
    places = {name: GROUPS.groups.index(group) if group else None for name, group in found.items()}
    assert places == {"phone-12": 0, "phone-2": 1, "a1": 2, "laptop": None, "PHONE-1": None, "xphone-1": None}


def test_a_group_replaces_what_it_names_and_nothing_else() -> None:
    fast = GROUPS.method_of("phone-12", METHOD)
    assert (fast.optimizer, fast.budget) == (AdamW(lr=0.5), Budget(steps=9))
    assert fast.model_copy(update={"optimizer": METHOD.optimizer, "budget": METHOD.budget}) == METHOD
    quiet = GROUPS.method_of("phone-2", METHOD)
    assert quiet.uplink == Quiet()
    assert quiet.model_copy(update={"uplink": METHOD.uplink}) == METHOD
    assert GROUPS.method_of("a1", METHOD) == GROUPS.method_of("laptop", METHOD) == METHOD


def test_a_group_has_its_own_rank_and_the_same_alpha() -> None:
    spec = GROUPS.spec_of("phone-2", SPEC)
    assert [entry.shape for entry in spec] == [(2, 6), (5, 2), (3,)]
    assert spec["m.A"].scale * 2 == SPEC["m.A"].scale * 8
    assert GROUPS.spec_of("phone-12", SPEC) == GROUPS.spec_of("laptop", SPEC) == SPEC


@pytest.mark.parametrize("aggregator", [Mean(), MeanControl()])
def test_another_rank_is_refused_by_an_aggregator_that_adds_name_by_name(aggregator: Mean | MeanControl) -> None:
    optimizer = Scaffold(lr=0.1) if isinstance(aggregator, MeanControl) else SGD(lr=0.1)
    method = Method(trainable=LoRA(), budget=Budget(steps=1), optimizer=optimizer, aggregator=aggregator)
    with pytest.raises(CotuneError, match=r"group 'phone-\*' has its own rank") as caught:
        Federation(groups=(Group(match="phone-*", rank=2),)).check(method)
    assert caught.value.code is Code.CONFLICT
    Federation(groups=(Group(match="phone-*"),)).check(method)


def test_another_rank_is_taken_by_an_aggregator_that_gives_factors() -> None:
    Federation(groups=(Group(match="phone-*", rank=2),)).check(METHOD.model_copy(update={"aggregator": Pairs()}))


@pytest.mark.parametrize("match", ["phone-*", "[ab]*", "[!x]", "?"])
def test_a_group_whose_parts_do_not_fit_is_refused_whatever_it_matches(match: str) -> None:
    with pytest.raises(CotuneError, match="optimizer needs 'aux'") as caught:
        Federation(groups=(Group(match=match, optimizer=Scaffold(lr=0.1)),)).check(METHOD)
    assert caught.value.code is Code.CONFLICT


def test_a_group_behind_another_that_matches_the_same_is_checked_too() -> None:
    groups = (Group(match="*"), Group(match="*", optimizer=Scaffold(lr=0.1)))
    with pytest.raises(CotuneError, match="optimizer needs 'aux'"):
        Federation(groups=groups).check(METHOD)


def test_groups_are_read_from_tables_and_equal_to_them() -> None:
    table: dict[str, Any] = {"match": "phone-*", "optimizer": {"kind": "sgd", "lr": 0.5}, "budget": {"steps": 2}}
    federation = Federation.model_validate({"groups": [table]})
    assert federation.groups == (Group(match="phone-*", optimizer=SGD(lr=0.5), budget=Budget(steps=2)),)
    assert Federation.model_validate(federation.model_dump(mode="json")) == federation
    with pytest.raises(CotuneError, match="did you mean 'sgd'"):
        Federation.model_validate({"groups": [{**table, "optimizer": {"kind": "sdg"}}]})


def test_a_method_that_trains_whole_weights_has_no_ranks_to_change() -> None:
    weights = Spec((Entry("w", (8, 6), Role.FULL, "w"),))
    assert Federation(groups=(Group(match="*", rank=2),)).spec_of("a", weights) == weights
    method = Method(trainable=Full(), budget=Budget(steps=1), optimizer=SGD(lr=0.1))
    with pytest.raises(CotuneError, match="has its own rank"):
        Federation(groups=(Group(match="*", rank=2),)).check(method)
